// Package objstoretest is the conformance suite that every provider and every
// decorator of package objstore passes. What it checks is what the comments of
// objstore.Store promise.
//
// Concurrency: the tests of one Run are made one after the other, each on a
// store of its own; some of them use that store from many goroutines.
package objstoretest
