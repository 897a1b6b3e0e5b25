package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// Accounts of the servers and of the relay, which listen on 127.0.0.1 alone and
// live as long as a run.
const (
	replUser     = "repl"
	replPassword = "repl-secret"
)

// databaseServer is a MariaDB server that listens on 127.0.0.1.
type databaseServer struct {
	*harness.MariaDB
	*sql.DB
	port, id int
	run      string
}

// startDatabase makes a server in a directory of its own and starts it.
func (c figureConfig) startDatabase(ctx context.Context, name string, id int, args ...string) (*databaseServer, error) {
	data := filepath.Join(c.base, name)
	if err := c.install(ctx, data); err != nil {
		return nil, err
	}
	d, err := c.startOn(ctx, data, id, args...)
	if err != nil {
		return nil, err
	}
	return d, d.exec(ctx, "SET sql_log_bin=0", "CREATE USER "+replUser+"@'%' IDENTIFIED BY '"+replPassword+"'",
		"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "+replUser+"@'%'", "SET sql_log_bin=1")
}

// startOn starts a server on a data directory that is there, and returns when it
// answers.
func (c figureConfig) startOn(ctx context.Context, data string, id int, args ...string) (d *databaseServer, err error) {
	d = &databaseServer{id: id}
	if d.port, err = freePort(); err != nil {
		return nil, err
	}
	if d.run, err = os.MkdirTemp("", "bench-db-"); err != nil {
		return nil, fmt.Errorf("make a directory for the server's socket: %w", err)
	}
	d.MariaDB = &harness.MariaDB{
		DataDir: data, RunDir: d.run,
		Args: append([]string{
			"--skip-networking=0", "--bind-address=127.0.0.1", "--port=" + strconv.Itoa(d.port), "--server-id=" + strconv.Itoa(id),
			"--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M", "--max-allowed-packet=1G", "--binlog-format=row",
			"--max-binlog-size=1G", "--plugin-load-add=ha_blackhole", "--log-bin=mysql-bin",
		}, args...),
	}
	ready, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	if err := d.Start(ready); err != nil {
		return nil, errors.Join(err, os.RemoveAll(d.run))
	}
	if d.DB, err = d.Open(""); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// install makes a data directory with the system tables, which are made once a run.
func (c figureConfig) install(ctx context.Context, data string) error {
	ctx, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	template := harness.MariaDB{DataDir: filepath.Join(c.base, "system-tables"), RunDir: c.base}
	if _, err := os.Stat(template.DataDir); errors.Is(err, os.ErrNotExist) {
		if err := template.Install(ctx); err != nil {
			return err
		}
	}
	if err := os.CopyFS(data, os.DirFS(template.DataDir)); err != nil {
		return fmt.Errorf("copy the system tables: %w", err)
	}
	return nil
}

// close ends the server and removes its data.
func (d *databaseServer) close() error {
	if d == nil {
		return nil
	}
	return errors.Join(d.end(), os.RemoveAll(d.DataDir))
}

// end ends the server at once and leaves its data.
func (d *databaseServer) end() error {
	var err error
	if d.DB != nil {
		err = d.DB.Close()
	}
	return errors.Join(err, d.Kill(), os.RemoveAll(d.run))
}

func (d *databaseServer) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(d.port)) }

// exec runs statements on one connection.
func (d *databaseServer) exec(ctx context.Context, statements ...string) error {
	conn, err := d.Conn(ctx)
	if err != nil {
		return fmt.Errorf("server %d: %w", d.id, err)
	}
	defer conn.Close()
	for _, q := range statements {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("server %d: %.100s: %w", d.id, q, err)
		}
	}
	return nil
}

// value is the named column of the only row that a query gives.
func (d *databaseServer) value(ctx context.Context, query, column string) (string, error) {
	rows, err := d.QueryContext(ctx, query)
	if err != nil {
		return "", fmt.Errorf("server %d: %s: %w", d.id, query, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return "", err
	}
	cells := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range cells {
		into[i] = &cells[i]
	}
	if !rows.Next() {
		return "", fmt.Errorf("server %d: %s: no row (%v)", d.id, query, rows.Err())
	}
	if err := rows.Scan(into...); err != nil {
		return "", err
	}
	for i, name := range names {
		if strings.EqualFold(name, column) {
			return cells[i].String, nil
		}
	}
	return "", fmt.Errorf("server %d: %s: no column %s", d.id, query, column)
}

// follow makes the server a replica of another server or of a relay.
func (d *databaseServer) follow(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	return d.exec(ctx, "STOP SLAVE", fmt.Sprintf("CHANGE MASTER TO master_host='%s', master_port=%s, master_user='%s', master_password='%s', "+
		"master_connect_retry=1, master_use_gtid=slave_pos", host, port, replUser, replPassword), "START SLAVE")
}

// reached waits until the replica has executed what the primary has logged. A
// replica that has stopped reading never will.
func (d *databaseServer) reached(ctx context.Context, primary *databaseServer) error {
	pos, err := primary.value(ctx, "SELECT @@gtid_binlog_pos AS p", "p")
	if err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		got, err := d.value(ctx, fmt.Sprintf("SELECT MASTER_GTID_WAIT('%s', 1) AS w", pos), "w")
		if err != nil || got == "0" {
			return err == nil, err
		}
		running, err := d.value(ctx, "SHOW SLAVE STATUS", "Slave_IO_Running")
		if err != nil || running != "No" {
			return false, err
		}
		reason, err := d.value(ctx, "SHOW SLAVE STATUS", "Last_IO_Error")
		if err == nil {
			err = fmt.Errorf("server %d will not reach %s: %s", d.id, pos, reason)
		}
		return false, err
	})
}

// semiSyncClients waits until as many replicas acknowledge what the server commits.
func (d *databaseServer) semiSyncClients(ctx context.Context, n int) error {
	return poll(ctx, func() (bool, error) {
		got, err := d.value(ctx, "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'", "Value")
		return got == strconv.Itoa(n), err
	})
}

// poll asks again and again until it is told yes.
func poll(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("what was waited for did not come: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// relayServer is a `cistern binlog relay` in a process of its own.
type relayServer struct {
	c                       figureConfig
	dir, bucket             string
	listen, metrics, source string
	args                    []string
	proc                    *harness.Process
	states                  int
}

// newRelay makes an empty volume and a relay for it, which is not started.
func (c figureConfig) newRelay(ctx context.Context, name string, source *databaseServer, args ...string) (*relayServer, error) {
	r := &relayServer{c: c, dir: filepath.Join(c.base, name), source: source.addr()}
	r.bucket = filepath.Join(r.dir, "bucket")
	if err := os.MkdirAll(r.bucket, 0o755); err != nil {
		return nil, fmt.Errorf("make the store: %w", err)
	}
	if _, err := harness.Run(ctx, "", c.Cistern, "format", "file://"+r.bucket); err != nil {
		return nil, err
	}
	for file, text := range map[string]string{"password": replPassword, "users": replUser + ":native:read:" + replPassword + "\n"} {
		if err := os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write the relay's passwords: %w", err)
		}
	}
	for _, addr := range []*string{&r.listen, &r.metrics} {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		*addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	r.args = args
	return r, nil
}

// start starts it and returns when it pulls.
func (r *relayServer) start(ctx context.Context) (err error) {
	argv := append([]string{
		r.c.Cistern, "binlog", "relay", "file://" + r.bucket, "--state", filepath.Join(r.dir, "state"+strconv.Itoa(r.states)), "--foreground",
		"--source", r.source, "--source-user", replUser, "--source-password-file", filepath.Join(r.dir, "password"), "--server-id", "99",
		"--listen", r.listen, "--users-file", filepath.Join(r.dir, "users"), "--metrics-addr", r.metrics, "--ack", r.c.Ack,
	}, r.args...)
	if r.proc, err = harness.Start(argv, r.dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mountWait)
	defer cancel()
	return r.proc.WaitLine(ctx, "ready")
}

// stop ends it in good order.
func (r *relayServer) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, umountWait)
	defer cancel()
	return r.proc.Stop(ctx)
}

// forget gives up the local state: what comes next is in the bucket alone.
func (r *relayServer) forget() { r.states++ }

// close ends it at once and removes its volume.
func (r *relayServer) close() error {
	if r == nil {
		return nil
	}
	var err error
	if r.proc != nil {
		err = r.proc.Kill()
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// metric asks for one of the relay's metrics.
func (r *relayServer) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask for metrics: %w\n%s", err, r.proc.LogTail())
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("the relay has no metric %s", name)
}

// has waits until the relay has published so many bytes.
func (r *relayServer) has(ctx context.Context, bytes int64) error {
	return poll(ctx, func() (bool, error) {
		n, err := r.metric(ctx, "cistern_binlog_bytes")
		return int64(n) >= bytes, err
	})
}

// cpu is the relay's CPU time so far.
func (r *relayServer) cpu() (time.Duration, error) { return procCPU(r.proc.PID()) }
