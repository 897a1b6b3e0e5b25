package harness

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver that Open uses
)

// MariaDB is a private server: its own data directory, its own socket, no
// network, no configuration file.
type MariaDB struct {
	DataDir string
	RunDir  string   // socket, pid file, error log, temporary files; on the local disk, a short path
	Args    []string // further server options; they win over the defaults

	proc *Process
}

// serverArgs are small and strict: memory for a shared machine, every commit
// fsynced in InnoDB and in the binary log.
func (m *MariaDB) serverArgs() []string {
	args := []string{
		"mariadbd", "--no-defaults",
		"--datadir=" + m.DataDir,
		"--socket=" + m.Socket(),
		"--pid-file=" + filepath.Join(m.RunDir, "mariadbd.pid"),
		"--log-error=" + m.errorLog(),
		"--tmpdir=" + m.RunDir,
		"--skip-networking",
		"--skip-name-resolve",
		"--innodb-buffer-pool-size=64M",
		"--innodb-log-file-size=48M",
		"--innodb-flush-log-at-trx-commit=1",
		"--sync-binlog=1",
		"--log-bin=binlog",
		"--server-id=1",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	return append(args, m.Args...)
}

// Socket is the path of the server's Unix socket.
func (m *MariaDB) Socket() string { return filepath.Join(m.RunDir, "db.sock") }

func (m *MariaDB) errorLog() string { return filepath.Join(m.RunDir, "error.log") }

// Install makes a data directory with the system tables and a root account
// without a password.
func (m *MariaDB) Install(ctx context.Context) error {
	argv := []string{
		// A server that starts deletes the temporary tables in its TMPDIR, also
		// those of others.
		"env", "TMPDIR=" + m.RunDir,
		"mariadb-install-db", "--no-defaults",
		"--datadir=" + m.DataDir,
		"--auth-root-authentication-method=normal",
		"--skip-test-db", "--skip-name-resolve",
	}
	if os.Geteuid() == 0 {
		argv = append(argv, "--user=root")
	}
	if _, err := Run(ctx, "", argv...); err != nil {
		return fmt.Errorf("make a data directory in %s: %w", m.DataDir, err)
	}
	return nil
}

// Start runs the server and returns when it answers queries, which after a
// crash means after its recovery.
func (m *MariaDB) Start(ctx context.Context) error {
	proc, err := Start(m.serverArgs(), m.RunDir)
	if err != nil {
		return err
	}
	m.proc = proc
	db, err := m.Open("")
	if err != nil {
		return errors.Join(err, m.Kill())
	}
	defer db.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := db.PingContext(ctx); err == nil {
			return nil
		}
		select {
		case <-proc.Done():
			return fmt.Errorf("MariaDB ended while starting on %s: %v\n%s\n%s", m.DataDir, proc.err, proc.LogTail(), m.ErrorLogTail())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("MariaDB on %s does not answer: %w\n%s", m.DataDir, ctx.Err(), m.ErrorLogTail()), m.Kill())
		case <-tick.C:
		}
	}
}

// Open returns a handle for the server as root, with database as the default
// one ("" for none). The caller closes it.
func (m *MariaDB) Open(database string) (*sql.DB, error) {
	db, err := sql.Open("mysql", fmt.Sprintf("root@unix(%s)/%s?interpolateParams=true", m.Socket(), database))
	if err != nil {
		return nil, fmt.Errorf("open MariaDB at %s: %w", m.Socket(), err)
	}
	return db, nil
}

// Stop shuts the server down in good order.
func (m *MariaDB) Stop(ctx context.Context) error {
	if m.proc == nil {
		return nil
	}
	if err := m.proc.Stop(ctx); err != nil {
		return fmt.Errorf("shut MariaDB down: %w\n%s", err, m.ErrorLogTail())
	}
	return nil
}

// Kill ends the server with SIGKILL; it is no error when it has ended already.
func (m *MariaDB) Kill() error {
	if m.proc == nil {
		return nil
	}
	return m.proc.Kill()
}

// Alive says whether the server's process runs.
func (m *MariaDB) Alive() bool { return m.proc != nil && m.proc.Alive() }

// PID is the server's process id.
func (m *MariaDB) PID() int { return m.proc.PID() }

// ErrorLog returns the server's error log since its first start.
func (m *MariaDB) ErrorLog() (string, error) {
	b, err := os.ReadFile(m.errorLog())
	if err != nil {
		return "", fmt.Errorf("read MariaDB's error log: %w", err)
	}
	return string(b), nil
}

// ErrorLogTail returns the last 8 KiB of the error log, for messages.
func (m *MariaDB) ErrorLogTail() string {
	text, err := m.ErrorLog()
	if err != nil {
		return err.Error()
	}
	const keep = 8 << 10
	if len(text) > keep {
		text = "…" + text[len(text)-keep:]
	}
	return "MariaDB's error log:\n" + text
}
