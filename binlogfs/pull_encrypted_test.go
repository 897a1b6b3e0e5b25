package binlogfs

import (
	"crypto/tls"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// encryptedServer starts a server whose binary log nobody else can read.
func encryptedServer(t *testing.T, k dbtest.Kind) *dbtest.Server {
	t.Helper()
	if !k.MariaDB() {
		s := dbtest.StartPrepared(t, k, dbtest.Keyring(t), "--binlog-encryption=ON")
		if got := s.Value(t, "select @@global.binlog_encryption"); got != "1" {
			t.Fatalf("binlog_encryption is %s", got)
		}
		return s
	}
	keys := filepath.Join(testenv.TempDir(t), "keys")
	if err := os.WriteFile(keys, []byte("1;770A8A65DA156D24EE2A093277530142\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dbtest.Start(t, k, "--encrypt-binlog=1", "--plugin-load-add=file_key_management", "--file-key-management-filename="+keys)
}

// A source that encrypts its binary log sends it in clear: the archive's files are
// readable by everybody's tools, and replicas take them.
func TestPuller_EncryptedSource_ArchiveIsInClear(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MariaDB118, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			s := encryptedServer(t, k)
			l := newPlace(t).log()
			work(t, s, 0)
			r := pull(t, l, nil, s)
			r.caughtUp(t, l, s)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			work(t, s, 1)
			r = pull(t, l, nil, s) // from the middle of a file
			r.caughtUp(t, l, s)
			const secret = "create table a (i int primary key"
			for _, name := range s.BinaryLogs(t) {
				if body := read(t, name); strings.Contains(string(body), secret) {
					t.Fatalf("the source's %s is in clear", name)
				}
			}
			readable(t, l, s, secret)
			o := ServerOptions{Archive: l}
			if k != dbtest.MariaDB1011 {
				o.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, MinVersion: tls.VersionTLS12}
			}
			_, addr := serveLog(t, o)
			f := &follower{dbtest.Start(t, k), t, addr}
			f.change(f.byGTID)
			f.caughtUp(s)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// readable lets the server's own tool read the archive's files, in which text must be.
func readable(t *testing.T, l *Log, s *dbtest.Server, text string) {
	t.Helper()
	names, bodies := ownFiles(t, l)
	dir, found := testenv.TempDir(t), false
	tool := "mysqlbinlog"
	if s.Kind.MariaDB() {
		tool = "mariadb-binlog"
	}
	for i, name := range names {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, bodies[i], 0o600); err != nil {
			t.Fatal(err)
		}
		argv := append(s.Tool(t, tool), "--no-defaults", "--verify-binlog-checksum", file)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Errorf("%s on %s: %v\n%.2000s", tool, name, err, out)
		}
		found = found || strings.Contains(string(out), text)
	}
	if !found {
		t.Errorf("%s shows nowhere %q", tool, text)
	}
}
