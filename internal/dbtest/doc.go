// Package dbtest starts private database servers for tests: Debian's MariaDB,
// the same as a Galera node, and MariaDB 11.8, MySQL 9.7 and MySQL 5.6 as scripts/fetch-server.sh brings
// them into the user's cache directory.
//
//	<cache>/cistern-test/<kind>         a fetched server
//	<cache>/cistern-test/data-<kind>    a data directory with the system tables; each server gets a copy
//
// A server has a data directory, a socket and a port of 127.0.0.1 of its own,
// writes a binary log called mysql-bin, and ends with its test. A test whose
// server can't be had here today is left out, and says so.
//
// Concurrency: a Server belongs to its test's goroutine. Tests that run side by
// side share the fetched servers under a file lock.
package dbtest
