// Package storeserver starts real object store servers for tests and
// benchmarks, each a process of its own on 127.0.0.1 with a private port,
// directory and bucket:
//
//	Versitygw   S3 over a directory; strict, but judges the condition of a PUT before it has the body
//	Rclone      S3 over a directory, from another hand: rclone serve s3
//	FakeGCS     Google Cloud Storage's JSON API, in memory
//
// The programs come from tools/servers, a module of its own, so that what they
// need is no dependency of the product. They are compiled once for each state of
// that module and Go version, into
//
//	<user's cache directory>/cistern-test/<hash>/{versitygw,rclone,fake-gcs-server}
//
// which may be deleted at any time. Tests call testenv.StoreServer, which also
// ends the server and shows its output when the test has failed.
//
// Concurrency: a Server is used by one goroutine at a time; a file lock keeps
// processes that run side by side from compiling the same program twice.
package storeserver
