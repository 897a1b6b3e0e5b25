// Package testenv gives tests what they need of the machine: a MariaDB server, a
// cistern mount, a FUSE loopback, a free port, each stopped and removed when the
// test ends, with its log shown when the test has failed.
//
// It is also the one place that may skip a test. SkipUnless skips on a
// developer's machine and fails where CI=true, so that a run that counts never
// leaves anything out silently.
//
// Concurrency: helpers are called from the test's goroutine; what they return
// has the rules of package harness.
package testenv
