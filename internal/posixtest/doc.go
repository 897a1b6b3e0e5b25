// Package posixtest checks that a directory behaves as one of a local Linux
// file system does: Run goes through a table of operations and the errno that
// each must give, and through behaviours (timestamps, link counts, locks,
// coherence of mappings with reads and writes, listing while names go). Every
// case holds on ext4, where this package's own tests run them; a case whose
// answer legitimately differs on FUSE says so.
//
// Exercise and ExerciseTree do random operations from a printed seed: the
// first against a model of one file's bytes, the second beside the same
// operations on the local disk.
//
// The caller's TestMain must go through Main, because some cases start the
// test's own binary again as a second process. The tests run as root: they
// make devices, change owners and become other users.
//
// # Concurrency
//
// Cases run one after the other. Other users' calls are made by a thread of
// their own, which ends with the call. A directory must not be served by the
// process that runs the tests on it.
package posixtest
