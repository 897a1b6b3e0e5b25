package faultproxy

import (
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Kind is what happens to one request.
type Kind int

const (
	None         Kind = iota // it passes
	Status                   // it is answered with Fault.Status and never reaches the server
	Reset                    // its connection is reset before anything reaches the server
	Hang                     // it gets no answer until the client gives up; never reaches the server
	HalfRequest              // the connection breaks in the middle of the request's body
	HalfReply                // the server does it; the connection breaks in the middle of the reply's body
	LostReply                // the server does it; the connection is reset instead of the reply
	WrongRequest             // one byte of the request's body is another one
	WrongReply               // one byte of the reply's body is another one
	Duplicate                // it passes, and reaches the server once more after Fault.Delay
	DelayedBody              // the server gets the header, and the body only after Fault.Delay
)

// String is the kind's name in tests' output.
func (k Kind) String() string {
	return [...]string{
		"none", "status", "reset", "hang", "half request", "half reply", "lost reply",
		"wrong request", "wrong reply", "duplicate", "delayed body",
	}[k]
}

// Fault is what happens to one request; the zero value lets it pass.
type Fault struct {
	Kind   Kind
	Status int           // of Status: 500, 503, 429, 403, …
	Code   string        // of Status: the error's code in the body; empty for one that fits the status
	Delay  time.Duration // of Duplicate and DelayedBody
}

// Chooser decides what happens to a request. It is called once a request, from
// many goroutines, and must not read the body.
type Chooser func(r *http.Request) Fault

// Random makes a Chooser that gives about one request in every a fault drawn
// from faults; the same seed draws the same sequence. every is at least 1, which
// means each request.
func Random(seed uint64, every int, faults ...Fault) Chooser {
	var mu sync.Mutex // guards r
	r := rand.New(rand.NewPCG(seed, 0))
	return func(*http.Request) Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.IntN(every) != 0 {
			return Fault{}
		}
		return faults[r.IntN(len(faults))]
	}
}

// Writes says whether a request may change the bucket.
func Writes(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodPost || r.Method == http.MethodDelete
}

// errorBody is the body of an S3 error.
const errorBody = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
	`<Error><Code>%s</Code><Message>injected by the proxy</Message><Resource>%s</Resource><RequestId>0</RequestId></Error>`

// code is the error code that S3 sends with a status.
func (f Fault) code() string {
	switch {
	case f.Code != "":
		return f.Code
	case f.Status == http.StatusServiceUnavailable || f.Status == http.StatusTooManyRequests:
		return "SlowDown"
	case f.Status == http.StatusForbidden:
		return "AccessDenied"
	default:
		return "InternalError"
	}
}

// cut is a body that breaks after n bytes.
type cut struct {
	io.Reader
	n int64
}

func (c *cut) Read(p []byte) (int, error) {
	if c.n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Reader.Read(p[:min(int64(len(p)), c.n)])
	c.n -= int64(n)
	return n, err
}

// flip is a body of which the byte at offset at is another one.
type flip struct {
	io.Reader
	at int64
}

func (f *flip) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if f.at >= 0 && f.at < int64(n) {
		p[f.at] ^= 0x20
	}
	f.at -= int64(n)
	return n, err
}
