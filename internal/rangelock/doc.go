// Package rangelock locks byte ranges of one inode, shared or exclusive, in
// the order of arrival.
//
// A request waits for every earlier request that it conflicts with, held or
// waiting: their ranges overlap and one of the two is exclusive. So an
// exclusive waiter is not starved by readers that keep coming, and requests for
// other ranges pass it.
//
//	list of requests, oldest first:  [held] [held] [waits for 1] [held] [waits for 2] …
//
// Each request counts those before it that block it; who leaves takes itself
// off the counts behind it, and a request whose count reaches zero holds its
// range. A call costs a walk over the requests that are there, a few dozen at
// most when a kernel's queue is in front.
//
// # Concurrency
//
// One mutex guards the list, never held while waiting. A waiter has a channel
// of its own, kept with its request for the next waiter. What happened before
// an Unlock is seen by who gets a conflicting range after it.
package rangelock
