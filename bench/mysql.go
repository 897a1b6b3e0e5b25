package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver that startMySQL uses

	"github.com/cisternfs/cistern/internal/harness"
)

// mysqlServer is a fetched MySQL with its Clone plugin.
type mysqlServer struct {
	*sql.DB
	proc *harness.Process
	port int
	run  string
}

// initMySQL makes a data directory with the system tables.
func initMySQL(ctx context.Context, program, data string) error {
	argv := append(harness.MySQLProgram(program), "--user=root", "--initialize-insecure", "--datadir="+data)
	if _, err := harness.Run(ctx, "", argv...); err != nil {
		return fmt.Errorf("make a data directory in %s: %w", data, err)
	}
	return nil
}

// startMySQL starts a server on a data directory and returns when it answers.
func startMySQL(ctx context.Context, program, data string) (m *mysqlServer, err error) {
	m = &mysqlServer{}
	if m.port, err = freePort(); err != nil {
		return nil, err
	}
	if m.run, err = os.MkdirTemp("", "bench-my-"); err != nil {
		return nil, fmt.Errorf("make a directory for the server's socket: %w", err)
	}
	argv := append(harness.MySQLProgram(program), "--datadir="+data, "--socket="+m.Socket(), "--pid-file="+filepath.Join(m.run, "pid"), "--tmpdir="+m.run,
		"--bind-address=127.0.0.1", "--port="+strconv.Itoa(m.port), "--skip-name-resolve", "--user=root", "--server-id="+strconv.Itoa(m.port),
		"--log-bin=mysql-bin", "--sync-binlog=1", "--innodb-buffer-pool-size=256M", "--innodb-redo-log-capacity=256M", "--plugin-load-add=mysql_clone.so")
	if m.proc, err = harness.Start(argv, m.run); err != nil {
		return nil, errors.Join(err, os.RemoveAll(m.run))
	}
	if m.DB, err = sql.Open("mysql", fmt.Sprintf("root@unix(%s)/", m.Socket())); err == nil {
		err = m.wait(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start MySQL on %s: %w\n%s", data, err, m.proc.LogTail()), m.end())
	}
	return m, nil
}

// Socket is the path of the server's Unix socket.
func (m *mysqlServer) Socket() string { return filepath.Join(m.run, "s") }

func (m *mysqlServer) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if m.PingContext(ctx) == nil {
			return nil
		}
		select {
		case <-m.proc.Done():
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// exec runs statements.
func (m *mysqlServer) exec(ctx context.Context, statements ...string) error {
	for _, q := range statements {
		if _, err := m.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("MySQL: %.100s: %w", q, err)
		}
	}
	return nil
}

// end ends the server at once and leaves its data.
func (m *mysqlServer) end() error {
	if m == nil {
		return nil
	}
	var err error
	if m.DB != nil {
		err = m.Close()
	}
	return errors.Join(err, m.proc.Kill(), os.RemoveAll(m.run))
}
