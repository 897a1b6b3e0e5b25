package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cisternfs/cistern/internal/harness"
)

const (
	largeRow    = 64 << 10 // bytes; 16 of them make a large group
	readers     = 8        // at once
	mostOfRates = 3        // rounds: each reads the whole log several times
)

// logKinds are the logs that are pulled and served. Small groups are as large as
// those of sysbench's oltp_write_only, and there are fewer bytes of them.
var logKinds = []struct {
	name  string
	part  int64 // of the bytes asked for
	large bool
}{{"large groups", 1, true}, {"small groups", 4, false}}

// filledServer is a server whose log has so many bytes. The rows go to a table of
// the engine BLACKHOLE, which keeps none: the log is what counts.
func (c figureConfig) filledServer(ctx context.Context, name string, bytes int64, large bool) (*databaseServer, error) {
	d, err := c.startDatabase(ctx, name, 1, "--sync-binlog=0")
	if err != nil {
		return nil, err
	}
	insert := fmt.Sprintf("WHILE i < %d DO INSERT INTO d.t VALUES %s; SET i = i + 1; END WHILE", bytes/mebibyte,
		strings.TrimSuffix(strings.Repeat(fmt.Sprintf("(1, REPEAT('x', %d)),", largeRow), mebibyte/largeRow), ","))
	if !large {
		const group = 2000 // bytes of one
		row := "INSERT INTO d.t VALUES (i, REPEAT('x', 300))"
		insert = fmt.Sprintf("WHILE i < %d DO BEGIN NOT ATOMIC START TRANSACTION; %s; %s; %s; %s; COMMIT; END; SET i = i + 1; END WHILE", bytes/group, row, row, row, row)
	}
	err = d.exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (i INT, s LONGBLOB) ENGINE=BLACKHOLE",
		"CREATE PROCEDURE d.fill() BEGIN DECLARE i INT DEFAULT 0; "+insert+"; END", "CALL d.fill()", "FLUSH BINARY LOGS")
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// logBytes is how long the server's log is, and its first file.
func (d *databaseServer) logBytes(ctx context.Context) (first string, total int64, err error) {
	rows, err := d.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return "", 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return "", 0, err
		}
		if total += n; first == "" {
			first = name
		}
	}
	return first, total, rows.Err()
}

// eachLog makes each kind of log and calls fn for it.
func (c figureConfig) eachLog(ctx context.Context, fn func(kind string, d *databaseServer, first string, total int64) error) error {
	for _, k := range logKinds {
		d, err := c.filledServer(ctx, "source", c.LogBytes/k.part, k.large)
		if err != nil {
			return err
		}
		first, total, err := d.logBytes(ctx)
		if err == nil {
			err = fn(k.name, d, first, total)
		}
		if err = errors.Join(err, d.close()); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

func mbps(bytes int64, took time.Duration) float64 { return float64(bytes) / 1e6 / took.Seconds() }

func runRelayPull(ctx context.Context, c figureConfig, f *figures) error {
	return c.eachLog(ctx, func(kind string, d *databaseServer, first string, total int64) error {
		f.add(kind+": bytes", "MB", float64(total)/1e6)
		for range min(c.Rounds, mostOfRates) {
			own, cpu, err := c.pullOnce(ctx, d, total)
			if err != nil {
				return err
			}
			tool, err := c.rawOnce(ctx, d, first)
			if err != nil {
				return err
			}
			plain, err := c.copyOnce(d)
			if err != nil {
				return err
			}
			f.add(kind+": relay pulls", "MB/s", mbps(total, own))
			f.add(kind+": mariadb-binlog --raw", "MB/s", mbps(total, tool))
			f.add(kind+": copy over loopback", "MB/s", mbps(total, plain))
			f.add(kind+": relay × mariadb-binlog", "", tool.Seconds()/own.Seconds())
			f.add(kind+": CPU per GB", "s", cpu.Seconds()/(float64(total)/1e9))
		}
		f.bar(kind+": relay × mariadb-binlog", Higher, 0.8)
		f.bar(kind+": CPU per GB", Lower, 1.5)
		return nil
	})
}

// pullOnce pulls everything into an empty volume, until it is published.
func (c figureConfig) pullOnce(ctx context.Context, d *databaseServer, total int64) (took, cpu time.Duration, err error) {
	r, err := c.newRelay(ctx, "relay", d)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	begun := time.Now()
	if err := r.start(ctx); err != nil {
		return 0, 0, err
	}
	if err := r.has(ctx, total); err != nil {
		return 0, 0, err
	}
	took = time.Since(begun)
	cpu, err = r.cpu()
	return took, cpu, err
}

// rawOnce lets MariaDB's own tool copy the log.
func (c figureConfig) rawOnce(ctx context.Context, d *databaseServer, first string) (took time.Duration, err error) {
	dir := filepath.Join(c.base, "raw")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	begun := time.Now()
	_, err = harness.Run(ctx, "", "mariadb-binlog", "--no-defaults", "-R", "--raw", "--to-last-log", "--host=127.0.0.1", "--port="+strconv.Itoa(d.port),
		"--user="+replUser, "--password="+replPassword, "--result-file="+dir+"/", first)
	return time.Since(begun), err
}

// copyOnce sends the files through a connection into another one.
func (c figureConfig) copyOnce(d *databaseServer) (took time.Duration, err error) {
	files, err := filepath.Glob(filepath.Join(d.DataDir, "mysql-bin.0*"))
	if err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var g errgroup.Group
	g.Go(func() error {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, name := range files {
			if err := sendFile(conn, name); err != nil {
				return err
			}
		}
		return nil
	})
	begun := time.Now()
	g.Go(func() (err error) {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		out, err := os.Create(filepath.Join(c.base, "copy"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close(), os.Remove(out.Name())) }()
		_, err = io.Copy(out, conn)
		return err
	})
	err = g.Wait()
	return time.Since(begun), err
}

func sendFile(to io.Writer, name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close() // it was only read
	_, err = io.Copy(to, in)
	return err
}

func runRelayServe(ctx context.Context, c figureConfig, f *figures) error {
	return c.eachLog(ctx, func(kind string, d *databaseServer, first string, total int64) (err error) {
		r, err := c.newRelay(ctx, "relay", d)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		if err := r.start(ctx); err != nil {
			return err
		}
		if err := r.has(ctx, total); err != nil {
			return err
		}
		for round := range min(c.Rounds, mostOfRates) {
			took := map[string]time.Duration{}
			for turn := range 2 {
				addr := d.addr()
				if (round+turn)%2 == 0 {
					addr = r.listen
				}
				if took[addr], err = readBy(ctx, 1, addr, first, total); err != nil {
					return err
				}
				if took["8 of "+addr], err = readBy(ctx, readers, addr, first, total); err != nil {
					return err
				}
			}
			own, relay := d.addr(), r.listen
			f.add(kind+": primary's own dump", "MB/s", mbps(total, took[own]))
			f.add(kind+": relay's dump", "MB/s", mbps(total, took[relay]))
			f.add(kind+": relay × primary", "", took[own].Seconds()/took[relay].Seconds())
			f.add(kind+": 8 at once from the primary, all", "MB/s", mbps(readers*total, took["8 of "+own]))
			f.add(kind+": 8 at once from the relay, all", "MB/s", mbps(readers*total, took["8 of "+relay]))
			f.add(kind+": 8 at once, relay × primary", "", took["8 of "+own].Seconds()/took["8 of "+relay].Seconds())
		}
		f.bar(kind+": relay × primary", Higher, 1)
		return c.serveCold(ctx, kind, r, first, total, f)
	})
}

// serveCold serves what lies in the bucket alone, and says how much memory the
// relay took.
func (c figureConfig) serveCold(ctx context.Context, kind string, r *relayServer, first string, total int64, f *figures) error {
	if err := r.stop(ctx); err != nil {
		return err
	}
	r.forget()
	if err := r.start(ctx); err != nil {
		return err
	}
	memory := watchAnonymous(r.proc.PID())
	took, err := readBy(ctx, 1, r.listen, first, total)
	if err == nil {
		f.add(kind+": relay's dump from the bucket alone", "MB/s", mbps(total, took))
		_, err = readBy(ctx, readers, r.listen, first, total)
	}
	peak, merr := memory.end()
	f.add(kind+": relay's memory with 8 readers, peak", "MiB", float64(peak)/mebibyte)
	return errors.Join(err, merr)
}

// readBy lets n readers read the whole log at the same time.
func readBy(ctx context.Context, n int, addr, first string, total int64) (time.Duration, error) {
	begun := time.Now()
	var g errgroup.Group
	for i := range n {
		g.Go(func() error {
			got, _, err := readAll(ctx, addr, uint32(300+i), first)
			if err == nil && got < total*99/100 {
				err = fmt.Errorf("%s sent %d bytes of %d", addr, got, total)
			}
			return err
		})
	}
	err := g.Wait()
	return time.Since(begun), err
}

// largeTransaction is one transaction of so many bytes.
func largeTransaction(ctx context.Context, d *databaseServer, bytes int64) error {
	const row = 4 * mebibyte
	statements := []string{"BEGIN"}
	for n := int64(0); n < bytes; n += row {
		statements = append(statements, fmt.Sprintf("INSERT INTO d.t VALUES (1, REPEAT('x', %d))", row))
	}
	return d.exec(ctx, append(statements, "COMMIT")...)
}

func runRelayMemory(ctx context.Context, c figureConfig, f *figures) (err error) {
	d, err := c.startDatabase(ctx, "source", 1, "--sync-binlog=0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (i INT, s LONGBLOB) ENGINE=BLACKHOLE", "INSERT INTO d.t VALUES (1, 'x')"); err != nil {
		return err
	}
	r, err := c.newRelay(ctx, "relay", d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	peak := map[string]float64{}
	watch := func(name string, fn func() error) error {
		w := watchAnonymous(r.proc.PID())
		err := fn()
		n, merr := w.end()
		peak[name] = float64(n) / mebibyte
		return errors.Join(err, merr)
	}
	err = watch("idle", func() error {
		time.Sleep(5 * time.Second)
		return nil
	})
	if err != nil {
		return err
	}
	err = watch("busy", func() error {
		if err := largeTransaction(ctx, d, c.LogBytes); err != nil {
			return err
		}
		_, total, err := d.logBytes(ctx)
		if err != nil {
			return err
		}
		return r.has(ctx, total)
	})
	if err != nil {
		return err
	}
	f.add("idle relay", "MiB", peak["idle"])
	f.add("during the transaction, peak", "MiB", peak["busy"])
	f.add("above the idle relay", "MiB", peak["busy"]-peak["idle"])
	f.bar("above the idle relay", Lower, 64)
	return nil
}
