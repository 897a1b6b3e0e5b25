package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// rowBytes is about what a row of sysbench's takes without its index.
const rowBytes = 200

// queryer is a database that is asked for one row.
type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// copyServer is a server on a copy.
type copyServer interface {
	queryer
	end() error
}

// backupLab is what the ways copy: a MariaDB and a MySQL, each on a mount of its
// own, with the same rows.
type backupLab struct {
	c      figureConfig
	v      *volume
	db     *databaseServer
	data   string  // of the MariaDB
	myv    *volume // the MySQL's
	my     *mysqlServer
	mysql  string       // the fetched program; empty: there is none
	second *mysqlServer // that holds nothing, and takes the first one's data
	rows   int64
	points int // snapshots so far
}

// way is one way from a running database to a second server.
type way struct {
	name    string
	missing string // why it can't be gone here; empty: it can
	// before makes what the way needs, and is no part of it; nil: nothing.
	before func(ctx context.Context) error
	// make takes the copy, in a directory of the place that is its own and empty.
	make func(ctx context.Context, p *place, dir string) error
	// start makes a server of the copy, with its data in the same place.
	start func(ctx context.Context, p *place, dir string) (copyServer, error)
	// clear mends what both left outside of the directory; nil: nothing.
	clear func(ctx context.Context) error
}

// place is where copies go.
type place struct {
	name   string
	dir    string
	volume *volume // that is mounted there; nil: a local directory
}

// cloneWay is what every other way is compared with.
const cloneWay = "snapshot, clone, start on it"

func (l *backupLab) ways() []way {
	return []way{
		{name: cloneWay, make: l.makeClone, start: l.startClone, clear: l.clearClone},
		{name: "mariadb-dump, gzip, load", make: l.makeDump, start: l.startDump, missing: missingProgram("mariadb-dump", "gzip")},
		{name: "mydumper, myloader", make: l.makeDumper, start: l.startLoader, missing: missingProgram("mydumper", "myloader")},
		{name: "mariadb-backup, prepare, copy back", make: l.makeBackup, start: l.startBackup, missing: missingProgram("mariadb-backup")},
		{name: "rsync of the stopped datadir", make: l.makeRsync, start: l.startRsync, clear: l.clearRsync, missing: missingProgram("rsync")},
		{name: "MySQL's CLONE INSTANCE", before: l.openSecond, make: l.makeInstance, start: l.startInstance, clear: l.closeSecond, missing: l.noMySQL()},
	}
}

func (l *backupLab) noMySQL() string {
	if l.mysql == "" {
		return "a MySQL, which can't be fetched"
	}
	return ""
}

// runBackupWays goes every way once to each place.
func runBackupWays(ctx context.Context, c figureConfig, f *figures) (err error) {
	l, err := c.openBackupLab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close(ctx)) }()
	n, err := allocated(l.data)
	if err != nil {
		return err
	}
	f.add("the MariaDB's data", "MiB", float64(n)/mebibyte)
	target, err := c.newBriefVolume(ctx, "ways-target")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.close(ctx)) }()
	local := filepath.Join(c.base, "ways-local")
	if err := os.Mkdir(local, 0o755); err != nil {
		return fmt.Errorf("make the local place: %w", err)
	}
	for _, p := range []*place{{name: "local directory", dir: local}, {name: "mount", dir: target.dir, volume: target}} {
		var clone float64
		for _, w := range l.ways() {
			if w.missing != "" {
				f.missing = append(f.missing, w.name+": the machine lacks "+w.missing)
				continue
			}
			took, err := l.goWay(ctx, w, p, f)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, p.name, err)
			}
			if w.name == cloneWay {
				clone = took
				continue
			}
			f.add(w.name+", "+p.name+": times the clone", "×", took/clone)
		}
	}
	return nil
}

// goWay measures one way to one place and clears it away.
func (l *backupLab) goWay(ctx context.Context, w way, p *place, f *figures) (took float64, err error) {
	for _, v := range []*volume{l.v, l.myv, p.volume} {
		if v == nil {
			continue
		}
		if err := errors.Join(v.rest(ctx), v.collect(ctx)); err != nil {
			return 0, err
		}
	}
	dir := filepath.Join(p.dir, "copy")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, fmt.Errorf("make a directory for the copy: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		if w.clear != nil {
			err = errors.Join(err, w.clear(context.WithoutCancel(ctx)))
		}
	}()
	if w.before != nil {
		if err := w.before(ctx); err != nil {
			return 0, err
		}
	}
	begun := time.Now()
	if err := w.make(ctx, p, dir); err != nil {
		return 0, err
	}
	copied := time.Since(begun).Seconds()
	server, err := w.start(ctx, p, dir)
	if err != nil {
		return 0, err
	}
	took = time.Since(begun).Seconds()
	rows, err := rowsIn(ctx, server)
	if err := errors.Join(err, server.end()); err != nil {
		return 0, err
	}
	if rows != l.rows {
		return 0, fmt.Errorf("the copy has %d rows instead of %d", rows, l.rows)
	}
	f.add(w.name+", "+p.name+": copy", "s", copied)
	f.add(w.name+", "+p.name+": until a server answers", "s", took-copied)
	return took, nil
}

func (c figureConfig) openBackupLab(ctx context.Context) (l *backupLab, err error) {
	l = &backupLab{c: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(ctx))
		}
	}()
	perTable := max(1, int(c.DataBytes/rowBytes/oltpTables))
	l.rows = int64(perTable) * oltpTables
	if l.v, err = c.newBriefVolume(ctx, "ways"); err != nil {
		return l, err
	}
	l.data = filepath.Join(l.v.dir, "db")
	if l.db, err = c.startDatabase(ctx, filepath.Join("ways", "dir", "db"), 1); err != nil {
		return l, err
	}
	if err = c.loadTables(ctx, l.db, perTable); err != nil {
		return l, err
	}
	// The log of the load is twice as large as the tables, and no part of what is
	// measured.
	if err = l.db.exec(ctx, "RESET MASTER"); err != nil {
		return l, err
	}
	l.mysql, err = harness.FetchServer(ctx, "mysql")
	if errors.Is(err, harness.ErrNotToBeHad) {
		l.mysql = ""
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if l.myv, err = c.newBriefVolume(ctx, "ways-mysql"); err != nil {
		return l, err
	}
	data := filepath.Join(l.myv.dir, "mysql")
	if err = initMySQL(ctx, l.mysql, data); err != nil {
		return l, err
	}
	if l.my, err = startMySQL(ctx, l.mysql, data); err != nil {
		return l, err
	}
	if err = l.my.exec(ctx, "CREATE DATABASE sbtest", "CREATE USER cloner@'%' IDENTIFIED BY '"+replPassword+"'", "GRANT BACKUP_ADMIN ON *.* TO cloner@'%'"); err != nil {
		return l, err
	}
	if _, err = sysbench(ctx, l.my, perTable, "--threads=2", "prepare"); err != nil {
		return l, err
	}
	return l, l.my.exec(ctx, "RESET BINARY LOGS AND GTIDS")
}

func (l *backupLab) close(ctx context.Context) error {
	var err error
	if l.db != nil {
		err = l.db.end()
	}
	return errors.Join(err, l.second.end(), l.my.end(), l.v.close(ctx), l.myv.close(ctx))
}

// socket is where the MariaDB listens.
func (l *backupLab) socket() string { return l.db.Socket() }

func (l *backupLab) makeDump(ctx context.Context, _ *place, dir string) error {
	return shell(ctx, `mariadb-dump --no-defaults -uroot -S "$1" --single-transaction --databases sbtest | gzip > "$2"`, l.socket(), filepath.Join(dir, "dump.gz"))
}

// fresh starts an empty server in the copy's directory.
func (l *backupLab) fresh(ctx context.Context, dir string) (*databaseServer, error) {
	data := filepath.Join(dir, "data")
	if err := l.c.install(ctx, data); err != nil {
		return nil, err
	}
	return l.c.startOn(ctx, data, 8)
}

// loaded is fresh with what a program loads.
func (l *backupLab) loaded(ctx context.Context, dir string, load func(socket string) error) (copyServer, error) {
	db, err := l.fresh(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := load(db.Socket()); err != nil {
		return nil, errors.Join(err, db.end())
	}
	return db, nil
}

func (l *backupLab) startDump(ctx context.Context, _ *place, dir string) (copyServer, error) {
	return l.loaded(ctx, dir, func(socket string) error {
		return shell(ctx, `gunzip -c "$2" | mariadb --no-defaults -uroot -S "$1"`, socket, filepath.Join(dir, "dump.gz"))
	})
}

func (l *backupLab) makeDumper(ctx context.Context, _ *place, dir string) error {
	_, err := harness.Run(ctx, "", "mydumper", "--user=root", "--socket="+l.socket(), "--database=sbtest", "--threads=2", "--compress", "--outputdir="+filepath.Join(dir, "dump"))
	return err
}

func (l *backupLab) startLoader(ctx context.Context, _ *place, dir string) (copyServer, error) {
	return l.loaded(ctx, dir, func(socket string) error {
		_, err := harness.Run(ctx, "", "myloader", "--user=root", "--socket="+socket, "--database=sbtest", "--threads=2", "--directory="+filepath.Join(dir, "dump"))
		return err
	})
}

func (l *backupLab) makeBackup(ctx context.Context, _ *place, dir string) error {
	backup := "--target-dir=" + filepath.Join(dir, "backup")
	if _, err := harness.Run(ctx, "", "mariadb-backup", "--no-defaults", "--backup", "--user=root", "--socket="+l.socket(), "--datadir="+l.data, backup); err != nil {
		return err
	}
	_, err := harness.Run(ctx, "", "mariadb-backup", "--no-defaults", "--prepare", backup)
	return err
}

func (l *backupLab) startBackup(ctx context.Context, _ *place, dir string) (copyServer, error) {
	data := filepath.Join(dir, "data")
	if _, err := harness.Run(ctx, "", "mariadb-backup", "--no-defaults", "--copy-back", "--datadir="+data, "--target-dir="+filepath.Join(dir, "backup")); err != nil {
		return nil, err
	}
	return l.started(ctx, data)
}

func (l *backupLab) started(ctx context.Context, data string) (copyServer, error) {
	db, err := l.c.startOn(ctx, data, 8)
	if err != nil {
		return nil, err // not a nil server as an interface
	}
	return db, nil
}

// makeRsync stops the primary for as long as the copy takes; its start again is no
// part of that.
func (l *backupLab) makeRsync(ctx context.Context, _ *place, dir string) error {
	stop, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	if err := errors.Join(l.db.DB.Close(), l.db.MariaDB.Stop(stop)); err != nil {
		return err
	}
	_, err := harness.Run(ctx, "", "rsync", "-a", l.data+"/", filepath.Join(dir, "data")+"/")
	return err
}

func (l *backupLab) startRsync(ctx context.Context, _ *place, dir string) (copyServer, error) {
	return l.started(ctx, filepath.Join(dir, "data"))
}

func (l *backupLab) clearRsync(ctx context.Context) error {
	if err := l.db.end(); err != nil {
		return err
	}
	again, err := l.c.startOn(ctx, l.data, 1)
	if err == nil {
		l.db = again
	}
	return err
}

// recipient is where the second MySQL has its own data.
func (l *backupLab) recipient() string { return filepath.Join(l.c.base, "mysql-recipient") }

func (l *backupLab) openSecond(ctx context.Context) error {
	if err := initMySQL(ctx, l.mysql, l.recipient()); err != nil {
		return err
	}
	m, err := startMySQL(ctx, l.mysql, l.recipient())
	if err != nil {
		return err
	}
	l.second = m
	return m.exec(ctx, fmt.Sprintf("SET GLOBAL clone_valid_donor_list='127.0.0.1:%d'", l.my.port))
}

func (l *backupLab) makeInstance(ctx context.Context, _ *place, dir string) error {
	return l.second.exec(ctx, fmt.Sprintf("CLONE INSTANCE FROM cloner@'127.0.0.1':%d IDENTIFIED BY '%s' DATA DIRECTORY='%s'", l.my.port, replPassword, filepath.Join(dir, "data")))
}

func (l *backupLab) closeSecond(context.Context) error {
	err := l.second.end()
	l.second = nil
	return errors.Join(err, os.RemoveAll(l.recipient()))
}

func (l *backupLab) startInstance(ctx context.Context, _ *place, dir string) (copyServer, error) {
	m, err := startMySQL(ctx, l.mysql, filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// snapshotName is that of the snapshot that the clone is made of.
func (l *backupLab) snapshotName() string { return fmt.Sprintf("ways-%d", l.points) }

func (l *backupLab) makeClone(ctx context.Context, p *place, dir string) error {
	l.points++
	if _, err := l.v.cistern(ctx, "snapshot", "create", l.v.dir, l.snapshotName()); err != nil {
		return err
	}
	from := l.v.url + "@" + l.snapshotName()
	if p.volume != nil {
		_, err := l.v.cistern(ctx, "clone", from, l.cloneURL())
		return err
	}
	_, err := l.v.cistern(ctx, "clone", from, "--to", filepath.Join(dir, "data"))
	return err
}

// cloneURL is the clone's: beside its parent, like that of every other clone.
func (l *backupLab) cloneURL() string { return l.v.url + "-" + l.snapshotName() }

// mountedServer is a server on a mount that ends with it.
type mountedServer struct {
	*databaseServer
	v *volume
}

func (m mountedServer) end() error {
	return errors.Join(m.databaseServer.end(), m.v.close(context.Background()))
}

func (l *backupLab) startClone(ctx context.Context, p *place, dir string) (copyServer, error) {
	if p.volume == nil {
		return l.started(ctx, filepath.Join(dir, "data", "db"))
	}
	v, err := l.c.mountVolume(ctx, "ways-clone", l.cloneURL())
	if err != nil {
		return nil, err
	}
	db, err := l.c.startOn(ctx, filepath.Join(v.dir, "db"), 8)
	if err != nil {
		return nil, errors.Join(err, v.close(ctx))
	}
	return mountedServer{db, v}, nil
}

// clearClone deletes the clone, where there is one, and its snapshot.
func (l *backupLab) clearClone(ctx context.Context) error {
	var err error
	if _, serr := os.Stat(strings.TrimPrefix(l.cloneURL(), "file://")); serr == nil {
		_, err = l.v.cistern(ctx, "destroy", "--yes", l.cloneURL())
	}
	_, serr := l.v.cistern(ctx, "snapshot", "delete", l.v.url, l.snapshotName())
	return errors.Join(err, serr)
}
