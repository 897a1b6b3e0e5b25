// Package control carries requests from commands to the process that serves a
// mount: HTTP over a Unix socket. What is asked and answered is its users'
// business; this package guards who may ask, bounds what is asked, and brings
// errors across with the exit status that they mean.
//
// # On the wire
//
//	Call     one JSON document, or {"error": text, "status": exit status} with an HTTP status of 500
//	Stream   {"item": …} a line, and at the end {"end": true} or {"error": text, "status": n}
//	Body     bytes, and a trailer Cistern-End: "ok" or the error's document
//
// A reply that breaks off is an error to the client, never a short success.
//
// # Bounds
//
// The socket has mode 0600 and every connection's peer must be root or the
// user who serves it. At most 64 connections are served at a time; what is not
// a file's content is at most 1 MiB. A client that stops reading or writing
// holds its connection only until the server closes.
//
// # Concurrency
//
// Every request has a goroutine of its own, owned by the Server; Close waits
// for them. A Client is safe for concurrent use and keeps no connection open.
package control
