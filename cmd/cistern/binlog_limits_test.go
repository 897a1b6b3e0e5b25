package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// until waits until a relay's status is as it should be.
func (r *relayTest) until(t *testing.T, what string, is func(s binlogfs.RelayStatus) bool) binlogfs.RelayStatus {
	t.Helper()
	for deadline := time.Now().Add(relayWait); ; time.Sleep(50 * time.Millisecond) {
		s := r.status(t)
		if is(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %+v", what, s)
		}
	}
}

// semiSync are the options of a primary that waits for its replica, as long as it takes.
func semiSync() []string {
	return []string{"--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-timeout=600000", "--rpl-semi-sync-master-wait-point=AFTER_SYNC"}
}

// fill writes until a file system is full, and returns what makes room again.
func fill(t *testing.T, dir string) (room func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// The relay's disk is full: it takes no more than it can keep, says why, and goes on
// by itself when there is room. The source waits meanwhile, and nothing is lost.
func TestBinlogRelay_LocalDiskFull_GoesOnWhenThereIsRoom(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011, semiSync()...)
	r := newRelayTest(t, s, "--semi-sync", "--journal-size", "64M", "--cache-size", "16M")
	if err := os.Mkdir(r.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", r.state, "tmpfs", 0, "size=160m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill(t)
		if err := syscall.Unmount(r.state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r.start(t)
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s longtext)")
	r.caughtUp(t)
	room := fill(t, r.state)
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 5 && err == nil; i++ {
			_, err = s.DB().Exec("insert into d.t(s) values (repeat('x', 8000000))")
		}
		done <- err
	}()
	full := r.until(t, "the disk is full", func(s binlogfs.RelayStatus) bool { return strings.Contains(s.LastError, "no space") })
	if !full.Pulling || full.Stopped {
		t.Errorf("it gave up: %+v", full)
	}
	room()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.caughtUp(t)
	r.identical(t)
	r.ends(t)
	if out, err := harness.Run(t.Context(), "", r.binary, "check", r.url, "--data"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// The bucket is away while the source writes more than the journal may hold: the relay
// fills the journal, takes no more, answers, and acknowledges nothing that it could
// not keep. When the bucket is back everything drains without a restart.
func TestBinlogRelay_BucketAway_JournalFull_DrainsWhenItIsBack(t *testing.T) {
	testenv.Long(t)
	a := newAwayPlace(t, outage{})
	s := dbtest.Start(t, dbtest.MariaDB1011, semiSync()...)
	settings, err := os.ReadFile(a.env["CISTERN_CONFIG"])
	if err != nil {
		t.Fatal(err)
	}
	config := a.write("relay.ini", []byte(strings.ReplaceAll(string(settings), "${TEST_S3_SECRET}", a.env["TEST_S3_SECRET"])+"[ObjectStorage]\nrequest_timeout = 2\n"))
	r := newRelayTest(t, s, "--semi-sync", "--journal-size", "16M", "--cache-size", "16M", "--config", config)
	r.args[slices.Index(r.args, r.url)], r.url = awayURL, awayURL
	r.global = []string{"--config", config}
	r.start(t)
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s longtext)")
	r.caughtUp(t)
	a.way.refuse()
	done := make(chan error, 1)
	var acked atomic.Int64
	go func() {
		var err error
		for err == nil && acked.Load() < 12 {
			if _, err = s.DB().Exec("insert into d.t(s) values (repeat('x', 3000000))"); err == nil {
				acked.Add(1)
			}
		}
		done <- err
	}()
	// Full: nothing comes any more, though the source has more.
	var last int64 = -1
	for since := time.Now(); time.Since(since) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		if st := r.status(t); st.Received != last {
			last, since = st.Received, time.Now()
		}
	}
	n := acked.Load()
	if n < 1 || n > 8 { // half of the cache holds what the journal only refers to
		t.Errorf("%d transactions of 3 MB were acknowledged with a journal and a cache of 16 MiB", n)
	}
	if st := r.status(t); !st.Pulling || st.Stopped {
		t.Errorf("it gave up: %+v", st)
	}
	a.way.lead(a.good)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.caughtUp(t)
	r.identical(t)
	r.ends(t)
	if out, err := harness.Run(t.Context(), "", append([]string{r.binary, "check", r.url, "--data"}, r.global...)...); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// sluice is the way to a server that lets so many bytes through and then holds them
// back, so that something can happen within a transaction.
type sluice struct {
	addr string
	to   string
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	moved *sync.Cond // broadcast when left or closed changes
	left  int64      // bytes from the server
	shut  bool
	conns map[net.Conn]struct{}
}

func newSluice(t *testing.T, to string) *sluice {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &sluice{addr: ln.Addr().String(), to: to, left: math.MaxInt64, conns: map[net.Conn]struct{}{}}
	s.moved = sync.NewCond(&s.mu)
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close() // Accept ends by it
		s.mu.Lock()
		s.shut = true
		for c := range s.conns {
			_ = c.Close() // both ends notice
		}
		s.moved.Broadcast()
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

// pass lets n more bytes through.
func (s *sluice) pass(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = n
	s.moved.Broadcast()
}

func (s *sluice) carry(c net.Conn) {
	defer c.Close()
	server, err := net.Dial("tcp", s.to)
	if err != nil {
		return
	}
	defer server.Close()
	s.mu.Lock()
	s.conns[c], s.conns[server] = struct{}{}, struct{}{}
	s.mu.Unlock()
	s.wg.Go(func() {
		_, _ = io.Copy(server, c) // the end of either side ends both
		_ = server.Close()
		s.mu.Lock()
		s.moved.Broadcast()
		s.mu.Unlock()
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || !s.take(int64(n)) {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// take waits until n bytes may pass; not after the end.
func (s *sluice) take(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.left < n && !s.shut {
		s.moved.Wait()
	}
	s.left -= n
	return !s.shut
}

// largeBytes is how large the transaction is within which something is killed: 1 GB in
// make soak.
func largeBytes() int64 {
	if os.Getenv("SOAK_SECONDS") != "" {
		return 1 << 30
	}
	return 96 << 20
}

// Relay and primary are killed in the middle of a large transaction: nobody sees a part
// of it, before or after, and in the end it is everywhere, once.
func TestBinlogRelay_KilledWithinALargeTransaction_NobodySeesAPart(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011, semiSync()...)
	d := newDownstream(t, s, "--semi-sync")
	way := newSluice(t, s.Addr())
	d.args[slices.Index(d.args, s.Addr())] = way.addr
	d.start(t)
	d.follow(t)
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s longtext)", "insert into d.t(s) values (repeat('x', 8000000))")
	d.caughtUp(t)
	d.reached(t)
	before := archived(t, d.mount)
	size := largeBytes()
	part := size / 4
	way.pass(part)
	done := make(chan error, 1)
	go func() {
		_, err := s.DB().Exec(fmt.Sprintf("begin; insert into d.t(s) select repeat('y', 8000000) from d.seq_1_to_%d; commit", size/8000000))
		done <- err
	}()
	within := func(when string) {
		t.Helper()
		st := d.until(t, when, func(s binlogfs.RelayStatus) bool { return len(s.Pending) == 1 && s.Pending[0].Bytes > part/2 })
		now := archived(t, d.mount)
		before.goesOn(t, now)
		now.goesOn(t, before)
		if got := d.replica.Value(t, "select count(*) from d.t"); got != "1" {
			t.Errorf("%s the replica has %s rows: %+v", when, got, st)
		}
	}
	within("at first")
	d.kill(t)
	way.pass(2 * part)
	d.start(t)
	within("after a kill of the relay")
	s.Kill(t)
	if err := <-done; err == nil {
		t.Error("a transaction that nobody acknowledged was committed")
	}
	d.until(t, "the source is dead", func(s binlogfs.RelayStatus) bool { return len(s.Pending) == 0 })
	way.pass(part)
	s.Restart(t) // it has the transaction in its log
	within("after a kill of the primary")
	d.kill(t)
	way.pass(math.MaxInt64)
	d.start(t)
	d.caughtUp(t)
	d.reached(t)
	d.identical(t)
	before.goesOn(t, archived(t, d.mount))
	d.sameTables(t, "d.t")
	if got := d.replica.Value(t, "select count(*) from d.t"); got != fmt.Sprint(1+size/8000000) {
		t.Errorf("%s rows in the end", got)
	}
	d.ends(t)
}
