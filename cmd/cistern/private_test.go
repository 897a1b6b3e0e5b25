package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/testenv"
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
		m, err := startPrivate(t.Context(), privateOptions{dir: filepath.Join(dir, "p"), data: server.DataDir, program: "mariadbd", log: "binlog"})
		if err != nil {
			t.Fatal(err)
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
func TestDropMountPoint_NothingThroughTheMount(t *testing.T) {
	p, mnt := mountPlace(t)
	dir := p.path("private")
	inner := filepath.Join(dir, "mnt")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mount()
	if err := os.WriteFile(filepath.Join(mnt, "ibdata1"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := dropMountPoint(mnt, p.path("state")); err == nil {
		t.Error("a mount's state is dropped")
	}
	if err := dropMountPoint(mnt, p.path("none")); err == nil { // as when its lock is not taken yet
		t.Error("a mount point in use is dropped")
	}
	if body, err := os.ReadFile(filepath.Join(mnt, "ibdata1")); err != nil || string(body) != "x" {
		t.Errorf("the volume's file: %q, %v", body, err)
	}
	p.mustBinary("umount", mnt)
	if err := dropMountPoint(inner, p.path("state")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{dir, p.path("state")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
