// Package faultproxy puts a bad network between a client and a real store
// server: an HTTP reverse proxy on 127.0.0.1 that adds latency, limits
// bandwidth, and does to single requests what a function of the test asks for.
//
//	client ──▶ latency ─▶ fault? ─▶ bandwidth in ─▶ [key's lock] ─▶ server
//	       ◀──────── bandwidth out ◀── fault? ◀───────────────────
//
// The Host header passes unchanged, so that the signature of an S3 request stays
// right. The proxy speaks HTTP/1.1 and keeps no state about objects; with
// Options.Serialise it reads the whole body of a conditional PUT first and
// holds a lock of the key while the server works on it, which is what makes a
// store that judges the condition before it has the body fit for a volume.
//
// Concurrency: everything is safe for concurrent use. A request is one
// goroutine of the HTTP server's, a late duplicate one of the proxy's; Close
// ends and waits for both.
package faultproxy
