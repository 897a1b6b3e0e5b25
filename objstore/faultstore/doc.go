// Package faultstore wraps an object store and makes it fail on purpose, for
// tests: by a hook that sees every call, by a seed, by a switch for outages,
// and by Kill, after which the client is dead.
//
// A call passes these stages; a fault strikes at one of them:
//
//	killed? → outage? → Delay → [Before, Hang] → inner store → [Lost, Late…] → body [Cut, Flip]
//
// Concurrency: safe for concurrent use; one mutex guards the switches and is
// never held during a call of the inner store or of the hook. Late PUTs run in
// goroutines that the Store owns: Close drops those that have not begun and
// waits for all of them.
package faultstore
