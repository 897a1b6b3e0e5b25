package binlogfs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Error codes that the library's list does not have.
const (
	errSlaveSameID = 4052 // MariaDB: another replica with this server id
)

// plain is an error in whose text the library's function names are left out.
type plain struct{ error }

// libraryWords are names and habits of the library that tell a DBA nothing.
var libraryWords = strings.NewReplacer(
	"handleAuthResult: ", "", "readAuthResult: ", "", "readInitialHandshake: ", "", "writeAuthHandshake: ", "", "read initial handshake error: ", "",
	"io.ReadFull(header) failed. err ", "", "io.CopyN failed. err ", "", "Write failed. err ", "", ": connection was bad", "", "connection was bad", "the connection broke off",
	"context deadline exceeded", "it took too long", "context canceled", "it was interrupted",
)

func (e *plain) Error() string { return libraryWords.Replace(e.error.Error()) }
func (e *plain) Unwrap() error { return e.error }

// explain says what a source's refusal means and whether it heals by itself.
func explain(err error) error {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	if errors.As(err, &verify) || errors.As(err, &unknown) || errors.As(err, &host) {
		return &fatalError{fmt.Errorf("the source's certificate is not trusted: %w", err)}
	}
	if strings.Contains(err.Error(), "does not support TLS") {
		return &fatalError{errors.New("the source does not offer TLS, which was asked for")}
	}
	var my *mysql.MyError
	if !errors.As(err, &my) {
		return &plain{err}
	}
	say := func(what string) error { return &fatalError{fmt.Errorf("%s: %w", what, my)} }
	switch my.Code {
	case mysql.ER_ACCESS_DENIED_ERROR, mysql.ER_ACCESS_DENIED_NO_PASSWORD_ERROR, mysql.ER_DBACCESS_DENIED_ERROR:
		return say("the source does not accept the user or the password")
	case mysql.ER_HOST_NOT_PRIVILEGED:
		return say("the source does not let this host in: create the user for it")
	case mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR:
		return say("the user lacks a privilege: GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* to it")
	case errSlaveSameID:
		return say("another replica of the source has the relay's server id: give the relay another one")
	case mysql.ER_NO_BINARY_LOGGING:
		return say("the source writes no binary log: set log_bin there")
	case mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG:
		return explainDump(my)
	}
	return &plain{err}
}

// restoredWay is what an operator can do about a source that does not go on where
// the archive ends.
const restoredWay = `if it was restored, see "A source that was restored" in docs/binlog.md`

// seconds is a time as events have it, for a message.
func seconds(t uint32) string { return time.Unix(int64(t), 0).UTC().Format(time.RFC3339) }

// gapError is ErrGap as a source told it.
type gapError struct {
	what string
	my   *mysql.MyError
}

func (e *gapError) Error() string {
	return fmt.Sprintf("%v: %s; %s: %v", ErrGap, e.what, restoredWay, e.my)
}
func (e *gapError) Unwrap() []error { return []error{ErrGap, e.my} }

// beginning is an error of a source from which an empty archive is to begin: no log
// goes on there.
func beginning(err error) error {
	var gap *gapError
	if errors.As(err, &gap) {
		return &fatalError{fmt.Errorf("%s: %w", gap.what, gap.my)}
	}
	return err
}

// explainDump tells the reasons of error 1236 apart, which has only a text.
func explainDump(my *mysql.MyError) error {
	text := strings.ToLower(my.Message)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	say := func(what string) error { return &fatalError{fmt.Errorf("%s: %w", what, my)} }
	gap := func(what string) error { return &fatalError{&gapError{what, my}} }
	switch {
	case has("same server_uuid/server_id", "same server_id"):
		return say("another replica of the source has the relay's server id or UUID: give the relay another server id")
	case has("binary log is not open"):
		return say("the source writes no binary log: set log_bin there")
	case has("could not find first log file"):
		return gap("the source does not have the file (any more) that it is asked for")
	case has("not in the master's binlog"):
		return gap("the source does not have the last group that it is asked to go on from")
	case has("purged", "not found in the binlog"):
		return gap("the source has purged what the archive needs next")
	case has("impossible position", "position > file size", "beyond"):
		return gap("the source's log ends before the archive's: it lost groups that are published here, by a restore or, with sync_binlog=0, by a crash")
	case has("bogus data", "checksum", "event truncated", "exceeded max_allowed_packet"):
		return gap("the source's file has other bytes where the archive's ends")
	}
	return say("the source can't send its log")
}
