// Package objstore is the engine's view of an object store: the Store
// contract, what is built on it (Create, CompareAndSwap, ReadRange, ReadAll,
// ListAll, Probe), and the decorators that cmd wraps around a provider.
//
// # What the engine relies on
//
// A key holds one whole body or none. A Put is applied whole or not at all,
// and a create-only Put never replaces anything, however many writers race.
// A Get or List that starts after a Put returned sees it. Probe refuses a
// store that breaks one of these.
//
// A Put whose reply is an error may have been applied, may not have been, or
// may be applied later. Create and CompareAndSwap settle that by reading back
// and comparing the whole body; nothing else may repeat a conditional Put.
//
// # Order of decorators
//
// From the provider outwards, as cmd composes them:
//
//	provider → WithPrefix → WithTimeout → WithMetrics → WithHedge → WithBandwidth → WithLimit → WithRetry
//
// so that a timeout bounds one attempt, metrics see every attempt, waiting for
// a free connection or for bandwidth is not part of an attempt, a hedged read
// measures the store alone and takes a second connection only where one is free,
// and a retry gives up its connection while it waits.
//
// # Concurrency
//
// Everything here is safe for concurrent use. No function starts a goroutine
// that outlives the call (a hedged read waits for the request that it called
// off), except the timers of WithTimeout, which end with the request. Time comes from package time alone, so that all of it runs inside a
// testing/synctest bubble over the store of package mem.
package objstore
