package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/internal/vfs"
)

// tracesOf counts what a private server's work may leave in a database.
func tracesOf(t *testing.T, db *sql.DB) (accounts, channels int) {
	t.Helper()
	if err := db.QueryRow("SELECT COUNT(*) FROM mysql.user WHERE User LIKE 'cistern-%'").Scan(&accounts); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query("SHOW ALL SLAVES STATUS")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		channels++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return accounts, channels
}

// chownAll gives a tree to a user, who may go through the directory above it.
func chownAll(t *testing.T, above, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, uid, uid)
	})
	if err = errors.Join(err, os.Chmod(above, 0o755)); err != nil {
		t.Fatal(err)
	}
}

// A recovery that is interrupted leaves no account and no replication in the database,
// and one whose server is killed names both.
func TestPrivate_Stop_InterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		dir := testenv.TempDir(t)
		server := testenv.MariaDB(t, filepath.Join(dir, "data"))
		target, err := binlogfs.ParseGTIDState(binlogfs.MariaDB, "0-1-1000")
		if err != nil {
			t.Fatal(err)
		}
		o := privateOptions{dir: filepath.Join(dir, "p"), data: server.DataDir, program: "mariadbd", log: "binlog"}
		if os.Geteuid() == 0 {
			// As a packaged server's directory is another user's, who can't read the option file.
			o.owner, o.defaults = [2]uint32{65534, 65534}, filepath.Join(dir, "secret.cnf")
			if err := os.WriteFile(o.defaults, []byte("[mariadbd]\nmax_connections = 17\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			chownAll(t, dir, server.DataDir, 65534)
		}
		m, err := startPrivate(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			var most int
			if err := m.db.QueryRow("SELECT @@max_connections").Scan(&most); err != nil || most != 17 {
				t.Errorf("the option file says 17 connections, the server %d, %v", most, err)
			}
			st, err := os.Stat("/proc/" + strconv.Itoa(m.cmd.Process.Pid))
			if err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 {
				t.Errorf("the server runs as another user: %v, %v", st, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a := &app{stderr: io.Discard}
		plan := &untilPlan{db: &database{}, target: target}
		if _, _, err := m.recover(ctx, "127.0.0.1:1", binlogfs.User{Name: "u", Password: "p"}, plan, a); !errors.Is(err, errNowhere) || m.replicates {
			t.Errorf("without a place in the log: %v", err)
		}
		plan.db.state = binlogfs.NewGTIDState(binlogfs.MariaDB) // it is at the log's beginning
		_, _, err = m.recover(ctx, "127.0.0.1:1", binlogfs.User{Name: "u", Password: "p"}, plan, a)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if killed {
			if err := m.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-m.ended
			err := m.stop(ctx, false)
			if err == nil || !strings.Contains(err.Error(), m.user) || !strings.Contains(err.Error(), "RESET SLAVE 'cistern-restore' ALL") {
				t.Errorf("killed: %v", err)
			}
			continue
		}
		if err := m.stop(ctx, false); err != nil {
			t.Fatal(err)
		}
		testenv.StartMariaDB(t, server)
		db, err := server.Open("")
		if err != nil {
			t.Fatal(err)
		}
		if accounts, channels := tracesOf(t, db); accounts != 0 || channels != 0 {
			t.Errorf("%d accounts and %d replications are left", accounts, channels)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		testenv.StopMariaDB(t, server)
	}
}

// What was made for a private mount goes only when nothing is mounted there.
func TestDropPrivate_NothingThroughTheMount(t *testing.T) {
	p, mnt := mountPlace(t)
	used := p.lockedDir(".") // its mnt is the mount
	p.mount()
	if err := os.WriteFile(filepath.Join(mnt, "ibdata1"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := dropPrivate(used, p.path("state")); err == nil {
		t.Error("a mount's state is dropped")
	}
	if err := dropPrivate(used, p.path("none")); err == nil { // as when its lock is not taken yet
		t.Error("a mount point in use is dropped")
	}
	if body, err := os.ReadFile(filepath.Join(mnt, "ibdata1")); err != nil || string(body) != "x" {
		t.Errorf("the volume's file: %q, %v", body, err)
	}
	p.mustBinary("umount", mnt)
	free := p.path("private")
	if err := os.MkdirAll(filepath.Join(free, privateMountPoint), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := dropPrivate(p.lockedDir("private"), p.path("state")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{free, p.path("state")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// lockedDir is a directory of the place as a command's temporary one.
func (p *place) lockedDir(name string) *tempDir {
	p.t.Helper()
	l, err := vfs.OS().Lock(p.path(name, "lock"))
	if err != nil {
		p.t.Fatal(err)
	}
	return &tempDir{p.path(name), l}
}

// A log that only the option file names is another server's, perhaps one that runs.
func TestPrivate_Args_OptionFileNamesNoLog(t *testing.T) {
	for log, want := range map[string]string{"": "--skip-log-bin", "binlog": "--log-bin=binlog"} {
		m := private{o: privateOptions{dir: t.TempDir(), data: "data", log: log, defaults: "secret.cnf"}}
		if args := m.args(); !slices.Contains(args, want) {
			t.Errorf("log %q: %q lack %s", log, args, want)
		}
	}
}

// A private mount that ended by itself, as one that was killed, may have in its journal
// what the bucket has not: its state stays, and the restore fails.
func TestPrivateMount_End_ProcessFailed_StateStays(t *testing.T) {
	p := newPlace(t)
	for status, kept := range map[string]bool{"0": false, "5": true} {
		if err := os.MkdirAll(p.path("private", privateMountPoint), 0o755); err != nil {
			t.Fatal(err)
		}
		p.write("state/journal", []byte("x"))
		ended, err := startChild(exec.Command("sh", "-c", "exit "+status), syscall.SIGTERM)
		if err != nil {
			t.Fatal(err)
		}
		m := &privateMount{a: &app{}, dir: p.lockedDir("private"), mnt: p.path("private", privateMountPoint), state: p.path("state"), process: ended, served: true}
		if err := m.end(t.Context()); (err != nil) != kept || kept && !strings.Contains(err.Error(), m.state) {
			t.Errorf("status %s: %v", status, err)
		}
		if _, err := os.Lstat(p.path("state", "journal")); errors.Is(err, os.ErrNotExist) == kept {
			t.Errorf("status %s: the journal: %v", status, err)
		}
	}
}
