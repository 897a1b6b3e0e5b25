package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver that Open uses

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// The account for replicas. MySQL 5.6 takes every account.
const (
	User     = "repl"
	Password = "repl-secret"
)

// readyWait stops a server that hangs; no test measures against it.
const readyWait = 2 * time.Minute

// Server is a running server.
type Server struct {
	Kind    Kind
	Dir     string // everything of it
	DataDir string
	Socket  string
	Port    int
	ID      int // its server id
	Args    []string

	fetched string
	cluster int // the port of a Galera node for its cluster
	proc    *harness.Process
	db      *sql.DB
}

// Start makes a server and starts it; args are further options, which win over
// the usual ones. It ends with the test.
func Start(t testing.TB, k Kind, args ...string) *Server {
	t.Helper()
	return StartPrepared(t, k, func(*Server) {}, args...)
}

// StartPrepared is Start, and calls prepare when the data directory is there and
// before the server runs.
func StartPrepared(t testing.TB, k Kind, prepare func(s *Server), args ...string) *Server {
	t.Helper()
	s := &Server{Kind: k, Args: args, Dir: testenv.TempDir(t), Port: testenv.FreePort(t), fetched: k.fetch(t)}
	s.DataDir, s.Socket, s.ID = filepath.Join(s.Dir, "data"), filepath.Join(s.Dir, "s"), 1000+s.Port
	if out, err := exec.Command("cp", "-r", "--reflink=auto", k.template(t, s.fetched), s.DataDir).CombinedOutput(); err != nil {
		t.Fatalf("copy the system tables of %s: %v\n%s", k, err, out)
	}
	if k == Galera {
		s.cluster = testenv.FreePort(t)
	}
	prepare(s)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s in %s:\n%s", k, s.Dir, s.proc.LogTail())
		}
		s.Kill(t)
	})
	s.Restart(t)
	if k == MySQL56 {
		return s // it has no accounts
	}
	account := "'" + User + "'@'%'"
	s.Exec(t, "set sql_log_bin=0", "create user "+account+" identified by '"+Password+"'", "grant replication slave, replication client on *.* to "+account, "set sql_log_bin=1")
	return s
}

// Keyring lets a MySQL 9.7 that was not started yet keep its keys in a file of its
// own, so that it can encrypt. What is written beside the fetched program makes
// each server look into its own data directory.
func Keyring(t testing.TB) func(s *Server) {
	t.Helper()
	return func(s *Server) {
		t.Helper()
		usr := filepath.Join(s.fetched, "root", "usr")
		for name, text := range map[string]string{
			filepath.Join(usr, "sbin", "mysqld.my"):                                    `{"read_local_manifest": true}`,
			filepath.Join(usr, "lib", "mysql", "plugin", "component_keyring_file.cnf"): `{"read_local_config": true}`,
			filepath.Join(s.DataDir, "mysqld.my"):                                      `{"components": "file://component_keyring_file"}`,
			filepath.Join(s.DataDir, "component_keyring_file.cnf"):                     `{"path": "` + filepath.Join(s.DataDir, "keyring") + `", "read_only": false}`,
		} {
			tmp, err := os.CreateTemp(filepath.Dir(name), "keyring-")
			if err == nil {
				_, err = tmp.WriteString(text)
			}
			if err == nil {
				err = errors.Join(tmp.Chmod(0o644), tmp.Close(), os.Rename(tmp.Name(), name))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Restart starts the server again, after Stop or Kill, and returns when it
// answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	argv := append(s.Kind.program(s.fetched),
		"--datadir="+s.DataDir, "--socket="+s.Socket, "--pid-file="+filepath.Join(s.Dir, "pid"), "--tmpdir="+s.Dir,
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(s.Port), "--skip-name-resolve", "--user=root",
		"--log-bin=mysql-bin", "--server-id="+strconv.Itoa(s.ID), "--binlog-format=row", "--sync-binlog=1",
		"--innodb-buffer-pool-size=64M", "--max-allowed-packet=1G",
	)
	if !s.Kind.MariaDB() {
		argv = append(argv, "--gtid-mode=on", "--enforce-gtid-consistency=on")
	}
	if s.Kind == MySQL56 {
		argv = append(argv, "--log-slave-updates")
	}
	if s.Kind == Galera {
		argv = append(argv, s.bootstrap(t)...)
	}
	proc, err := harness.Start(append(argv, s.Args...), s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	s.proc = proc
	if s.db == nil {
		if s.db, err = sql.Open("mysql", "root@unix("+s.Socket+")/?interpolateParams=true&multiStatements=true"); err != nil {
			t.Fatal(err)
		}
		s.db.SetMaxIdleConns(1)
	}
	s.wait(t)
}

// bootstrap are the options that make the node a cluster of its own. A node that
// was killed has to be told that nobody knows more than it does.
func (s *Server) bootstrap(t testing.TB) []string {
	t.Helper()
	state := filepath.Join(s.DataDir, "grastate.dat")
	text, err := os.ReadFile(state)
	if err == nil {
		err = os.WriteFile(state, []byte(strings.Replace(string(text), "safe_to_bootstrap: 0", "safe_to_bootstrap: 1", 1)), 0o600)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return []string{
		"--wsrep-on=ON", "--wsrep-provider=" + galeraLibrary, "--wsrep-cluster-address=gcomm://", "--wsrep-new-cluster", "--wsrep-sst-method=rsync",
		"--wsrep-node-address=127.0.0.1", fmt.Sprintf("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%d;gcache.size=32M", s.cluster),
		"--innodb-autoinc-lock-mode=2", "--log-slave-updates=ON", "--wsrep-trx-fragment-size=10000",
	}
}

// wait waits until the server answers.
func (s *Server) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.answers(ctx)
		if err == nil {
			return
		}
		select {
		case <-s.proc.Done():
			t.Fatalf("%s ended while starting:\n%s", s.Kind, s.proc.LogTail())
		case <-ctx.Done():
			t.Fatalf("%s does not answer: %v\n%s", s.Kind, err, s.proc.LogTail())
		case <-tick.C:
		}
	}
}

// Tool is the command line of one of the server's own programs.
func (s *Server) Tool(t testing.TB, name string) []string {
	t.Helper()
	switch s.Kind {
	case MariaDB118, MySQL97:
		return []string{filepath.Join(s.fetched, "run"), "usr/bin/" + name}
	case MySQL56:
		t.Fatalf("%s has no programs of its own", s.Kind)
	}
	return []string{name}
}

// answers returns an error while the server takes no statements. A Galera node
// takes connections before it takes those.
func (s *Server) answers(ctx context.Context) error {
	if s.Kind != Galera {
		return s.db.PingContext(ctx)
	}
	var one int
	return s.db.QueryRowContext(ctx, "select 1 from information_schema.global_status where variable_name='WSREP_READY' and variable_value='ON'").Scan(&one)
}

// Addr is where it listens on TCP.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// DB is a handle for the server as root.
func (s *Server) DB() *sql.DB { return s.db }

// Exec runs statements as root, all on one connection.
func (s *Server) Exec(t testing.TB, statements ...string) {
	t.Helper()
	c, err := s.db.Conn(context.Background())
	if err != nil {
		t.Fatalf("%s: %v", s.Kind, err)
	}
	defer c.Close()
	for _, q := range statements {
		if _, err := c.ExecContext(context.Background(), q); err != nil {
			t.Fatalf("%s: %.200s: %v", s.Kind, q, err)
		}
	}
}

// Value returns the first column of the only row that a query gives.
func (s *Server) Value(t testing.TB, query string) string {
	t.Helper()
	row := s.Rows(t, query)
	if len(row) != 1 || len(row[0]) == 0 {
		t.Fatalf("%s: %s: %d rows where one was expected", s.Kind, query, len(row))
	}
	return row[0][0]
}

// Rows returns what a query gives, as text; NULL is empty.
func (s *Server) Rows(t testing.TB, query string) (all [][]string) {
	t.Helper()
	rows, err := s.db.Query(query)
	if err != nil {
		t.Fatalf("%s: %s: %v", s.Kind, query, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		cells := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		text := make([]string, len(cells))
		for i, c := range cells {
			text[i] = c.String
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %s: %v", s.Kind, query, err)
	}
	return all
}

// BinaryLogs lists the paths of the server's binary logs, the oldest first.
func (s *Server) BinaryLogs(t testing.TB) []string {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(s.DataDir, "mysql-bin.index"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, name := range strings.Fields(string(index)) {
		paths = append(paths, filepath.Join(s.DataDir, filepath.Base(name)))
	}
	return paths
}

// Stop shuts the server down in good order.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWait)
	defer cancel()
	if err := s.proc.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.proc == nil {
		return
	}
	if err := s.proc.Kill(); err != nil {
		t.Errorf("clean up %s: %v", s.Kind, err)
	}
}

// Client runs statements from an ordinary client against a server at addr, as
// the account for replicas, and returns what it prints.
func Client(ctx context.Context, addr, statements string, args ...string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("client for %s: %w", addr, err)
	}
	argv := append([]string{"mariadb", "--no-defaults", "-h", host, "-P", port, "-u" + User, "-p" + Password, "-e", statements}, args...)
	return harness.Run(ctx, "", argv...)
}
