// Package mem is an object store in memory, for tests and benchmarks: fast,
// strongly consistent, without real I/O or timers, so that it runs inside a
// testing/synctest bubble.
//
// A store made by NewRecording keeps its write history: every successful Put
// and Delete in the order in which they took effect. At(n) is a store that
// holds the state after the first n of them: what a bucket would hold had the
// writer died there. Bodies are shared between all of them, never copied.
//
//	history     m0 m1 … m63 | m64 … m127 | …
//	checkpoint  ^0            ^64          ^128     a copy-on-write tree each
//
// At copies the checkpoint below n, in constant time, and applies at most 63
// mutations to it, so that 10,000 prefixes are cheap.
//
// Concurrency: one mutex guards the tree and the history; bodies are immutable
// once stored; a store returned by At is independent of its origin.
package mem
