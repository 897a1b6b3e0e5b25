package binlogfs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

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

// explainDump tells the reasons of error 1236 apart, which has only a text.
func explainDump(my *mysql.MyError) error {
	text := strings.ToLower(my.Message)
	what := "the source can't send its log"
	switch {
	case strings.Contains(text, "same server_uuid/server_id"), strings.Contains(text, "same server_id"):
		what = "another replica of the source has the relay's server id or UUID: give the relay another server id"
	case strings.Contains(text, "binary log is not open"):
		what = "the source writes no binary log: set log_bin there"
	case strings.Contains(text, "could not find first log file"):
		what = "the source has not got the file any more that the archive goes on in: the log between is lost to this archive"
	case strings.Contains(text, "purged"), strings.Contains(text, "not found in the binlog"), strings.Contains(text, "not in the master's binlog"):
		what = "the source has purged what the archive needs next"
	case strings.Contains(text, "impossible position"), strings.Contains(text, "position > file size"), strings.Contains(text, "beyond"):
		what = "the source's log ends before the archive's: it lost groups that are published here, as after a crash with sync_binlog=0"
	}
	return &fatalError{fmt.Errorf("%s: %w", what, my)}
}
