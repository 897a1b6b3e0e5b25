// Package e2e proves the promises from outside: a real MariaDB, on a real mount,
// under load, whose processes are killed.
//
// A Ledger is the client's own account of what the database has acknowledged.
// Each of its writers commits transactions of three statements: a row in parts,
// a row in checks and its counter in heads. Afterwards Verify compares: every
// acknowledged transaction is there with its bytes, none is there by half, and
// beyond the last acknowledged one there is at most the one whose COMMIT was
// under way.
//
//	parts  (writer, seq) → payload           checks (writer, seq) → crc32 of the payload
//	heads  writer → highest seq
//
// The tests run against three backends: a plain directory and the bare FUSE
// loopback, where the same must hold and which so test the tests, and a cistern
// mount. CISTERN_SEED and CISTERN_ROUNDS choose the random seed and the number
// of rounds; the seed is printed.
//
// The tests named Stores run over real store servers (internal/storeserver): the
// same ledger, and the engine against a model of its files while a proxy
// (internal/faultproxy) does to requests all that a network can. SOAK_SECONDS
// lets the latter go on.
//
// TestStorageManager_Cases_… are the cases that ColumnStore's Storage Manager got
// wrong: in process on a directory, S3 and GCS, and once through a mount.
//
// Concurrency: one goroutine a writer; a Ledger's account is guarded by a mutex.
package e2e
