package binlogfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// pullWait stops a test that hangs; nothing is measured against it.
const pullWait = time.Minute

// pulling is a puller that runs.
type pulling struct {
	*Puller
	cancel context.CancelFunc
	done   chan error
}

// pull begins to pull from servers into a log.
func pull(t testing.TB, l *Log, change func(o *PullOptions), from ...*dbtest.Server) *pulling {
	t.Helper()
	o := PullOptions{
		User: dbtest.User, Password: func() (string, error) { return dbtest.Password, nil }, ServerID: 77,
		Start: Start{Oldest: true}, RetryMax: 200 * time.Millisecond,
	}
	for _, s := range from {
		o.Sources = append(o.Sources, s.Addr())
	}
	if change != nil {
		change(&o)
	}
	p, err := NewPuller(l, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &pulling{Puller: p, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- p.Run(ctx) }()
	t.Cleanup(func() { r.cancel() })
	return r
}

// again runs it once more.
func (r *pulling) again(t testing.TB) {
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.done <- r.Run(ctx) }()
}

// stop ends it and returns its error.
func (r *pulling) stop() error {
	r.cancel()
	return <-r.done
}

// ended waits until it gives up by itself.
func (r *pulling) ended(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(pullWait):
		t.Fatalf("it still runs: %+v", r.Status())
		return nil
	}
}

// position is where a server writes.
func position(t testing.TB, s *dbtest.Server) (file string, offset int64) {
	t.Helper()
	q := "show master status"
	if s.Kind == dbtest.MySQL97 {
		q = "show binary log status"
	}
	row := s.Rows(t, q)[0]
	n, err := strconv.ParseInt(row[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return row[0], n
}

// caughtUp waits until the log has all that the server wrote.
func (r *pulling) caughtUp(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	file, offset := position(t, s)
	late := time.After(pullWait)
	for {
		end, moved := l.End()
		if end.File == file && end.Offset >= offset {
			// A checkpoint may follow by itself in a moment, which the server's file has.
			time.Sleep(100 * time.Millisecond)
			was, wasAt := file, offset
			if file, offset = position(t, s); file == was && offset == wasAt {
				return
			}
			continue
		}
		select {
		case <-moved:
		case err := <-r.done:
			t.Fatalf("pulling ended at %v, before %s %d: %v", end, file, offset, err)
		case <-late:
			t.Fatalf("the archive is at %v and the server at %s %d: %+v", end, file, offset, r.Status())
		}
	}
}

// identical compares the archive's files of an epoch with the server's.
func identical(t testing.TB, l *Log, epoch uint32, s *dbtest.Server) {
	t.Helper()
	const inUse = 4 + 17 // a byte of the file that is being written, which is not sent
	for _, name := range s.BinaryLogs(t) {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readFile(t.Context(), l.t, path.Join("logs", epochDir(epoch), filepath.Base(name)), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{got, want} {
			if len(b) > inUse {
				b[inUse] &^= flagInUse
			}
		}
		if !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s of %s has %d bytes in the archive and %d at the server; they differ at %d", filepath.Base(name), s.Kind, len(got), len(want), at)
		}
	}
	for _, f := range l.Files() {
		if err := Verify(t.Context(), l.t, "logs", f); err != nil {
			t.Error(err)
		}
	}
}

// verifyByClient lets MariaDB's own tool verify the checksums of the archive's
// files.
func verifyByClient(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	if !s.Kind.MariaDB() {
		return // the tool does not know all of MySQL's events
	}
	dir := testenv.TempDir(t)
	for _, f := range l.Files() {
		body, err := readFile(t.Context(), l.t, path.Join("logs", f.Path()), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), body, 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("mariadb-binlog", "--no-defaults", "--verify-binlog-checksum", "--short-form", filepath.Join(dir, f.Name))
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("mariadb-binlog on %s: %v\n%.2000s", f.Name, err, out)
		}
	}
}

// work changes data in as many ways as the binary log has.
func work(t testing.TB, s *dbtest.Server, round int) {
	t.Helper()
	db := fmt.Sprintf("w%d", round)
	s.Exec(t,
		"create database "+db, "use "+db,
		"create table a (i int primary key auto_increment, s longtext) engine=innodb",
		"create table m (i int, s varchar(100)) engine=myisam",
		"insert into a(s) values ('x'),('y')",
		"begin", "insert into a(s) select s from a", "update a set s='BEGIN'", "commit",
		"insert into m values (1,'COMMIT')",
		"alter table a add column k int",
		"begin", "savepoint s1", "insert into a(s) values ('sp')", "savepoint s2", "insert into a(s) values ('x')", "rollback to s2", "commit",
		"truncate table m",
	)
	if s.Kind != dbtest.Galera { // it has neither
		s.Exec(t, "use "+db,
			"xa start 'one'", "insert into a(s) values ('xa')", "xa end 'one'", "xa prepare 'one'", "xa commit 'one'",
			"xa start 'two'", "insert into a(s) values ('xb')", "xa end 'two'", "xa prepare 'two'", "xa rollback 'two'",
			"set session binlog_format=statement", "insert into a(s) values ('stmt')", "set @v='q'", "insert into m values (3,@v)", "set session binlog_format=row",
		)
	}
	if s.Kind.MariaDB() {
		var with []string
		if s.Kind == dbtest.Galera { // or it refuses the statement
			with = []string{"set session wsrep_trx_fragment_size=0"}
		}
		s.Exec(t, append(with, "use "+db, "create table c as select * from a", "set gtid_domain_id=7", "insert into a(s) values ('domain 7')", "set gtid_domain_id=9", "create table d9 (i int)", "drop table d9, c")...)
	}
	s.Exec(t, "use "+db, fmt.Sprintf("insert into a(s) values (repeat('r',%d))", 1<<20), "flush binary logs", "insert into a(s) values ('after')")
}

func TestPuller_EveryServer_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	for _, k := range dbtest.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			s := dbtest.Start(t, k)
			p := newPlace(t)
			l := p.log()
			work(t, s, 0)
			r := pull(t, l, nil, s)
			work(t, s, 1)
			// It spans packets.
			s.Exec(t, "create table w1.big (s longtext) engine=myisam", fmt.Sprintf("insert into w1.big values (repeat('b',%d))", 20<<20))
			r.caughtUp(t, l, s)
			if st := r.Status(); !st.Connected || st.ServerID != uint32(s.ID) || st.LastError != "" {
				t.Errorf("status %+v", st)
			}
			identical(t, l, 1, s)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			verifyByClient(t, l, s)
			if k != dbtest.MySQL56 || l.State().String() != "" {
				wantState(t, l, s)
			}
		})
	}
}

// wantState compares the archive's GTIDs with the server's.
func wantState(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	flavor, q := MySQL, "select @@global.gtid_executed"
	if s.Kind.MariaDB() {
		flavor, q = MariaDB, "select @@global.gtid_binlog_state"
	}
	want, err := ParseGTIDState(flavor, s.Value(t, q))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.State(); got.String() != want.String() {
		t.Errorf("archive has %s, the server %s", got, want)
	}
}

// cutter is a network whose connections end after a random number of bytes.
type cutter struct {
	rnd  *rand.Rand
	most int64 // bytes; 0: they don't end
	cuts atomic.Int64
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || c.most == 0 {
		return conn, err
	}
	most := c.most
	if c.rnd.IntN(2) == 0 {
		most /= 50
	}
	return &cutConn{Conn: conn, left: 2000 + c.rnd.Int64N(most), c: c}, nil
}

type cutConn struct {
	net.Conn
	left int64
	c    *cutter
}

var errCut = errors.New("the network is cut")

// Read implements net.Conn.
func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.c.cuts.Add(1)
		c.Conn.Close()
		return 0, errCut
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

func TestPuller_CutsAndKills_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	for i, k := range dbtest.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			s := dbtest.Start(t, k)
			p := newPlace(t)
			cuts := &cutter{rnd: rnd, most: 5 << 20}
			change := func(o *PullOptions) { o.Dial = cuts.dial }
			var told Position
			for round := 0; round < 3; round++ {
				l := p.log()
				if end, _ := l.End(); end.File < told.File || end.File == told.File && end.Offset < told.Offset {
					t.Fatalf("the archive went back from %v to %v", told, end)
				}
				r := pull(t, l, change, s)
				work(t, s, 2*round)
				if round == 1 {
					s.Kill(t)
					s.Restart(t)
				}
				work(t, s, 2*round+1)
				if round == 2 {
					r.caughtUp(t, l, s)
					if cuts.cuts.Load() == 0 {
						t.Error("no connection was cut")
					}
					if err := r.stop(); err != nil {
						t.Error(err)
					}
					identical(t, l, 1, s)
					verifyByClient(t, l, s)
					return
				}
				told, _ = l.End()
				if err := p.v.Abandon(); err != nil { // killed while it pulls
					t.Fatal(err)
				}
				r.cancel()
				<-r.done
				p.open()
			}
		})
	}
}

func TestPuller_WhatDoesNotHeal_StopsWithASentence(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "set sql_log_bin=0", "create user bare@'%' identified by 'x'", "set sql_log_bin=1", "create database d", "flush binary logs")
	for name, c := range map[string]struct {
		change func(o *PullOptions)
		want   string
	}{
		"password":  {func(o *PullOptions) { o.Password = func() (string, error) { return "wrong", nil } }, "does not accept the user or the password"},
		"privilege": {func(o *PullOptions) { o.User, o.Password = "bare", func() (string, error) { return "x", nil } }, "GRANT REPLICATION SLAVE"},
		"server id": {func(o *PullOptions) { o.ServerID = uint32(s.ID) }, "give the relay another one"},
		"file":      {func(o *PullOptions) { o.Start = Start{File: "mysql-bin.000099"} }, "does not have the file"},
		"TLS":       {func(o *PullOptions) { o.TLS.Mode = TLSRequired }, "does not offer TLS"},
		"zstd":      {func(o *PullOptions) { o.Compress = "zstd" }, "choose zlib"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPlace(t).log()
			r := pull(t, l, c.change, s)
			err := r.ended(t)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if st := r.Status(); !st.Stopped || st.LastError == "" {
				t.Errorf("status %+v", st)
			}
			if len(l.Sources()) != 0 {
				t.Errorf("the archive is bound to %+v", l.Sources())
			}
		})
	}
}

func TestPuller_Start_FileNowAndGTID(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			s := dbtest.Start(t, k)
			s.Exec(t, "create database d", "flush binary logs", "create table d.a (i int)")
			gtid := "select @@global.gtid_executed"
			if k.MariaDB() {
				gtid = "select @@global.gtid_binlog_pos"
			}
			second := s.Value(t, gtid)
			s.Exec(t, "insert into d.a values (1)", "flush binary logs", "insert into d.a values (2)")
			last, _ := position(t, s)
			files := s.BinaryLogs(t)
			for name, c := range map[string]struct {
				start string
				first string
			}{
				"oldest": {"oldest", filepath.Base(files[0])},
				"now":    {"now", last},
				"file":   {"file:" + filepath.Base(files[len(files)-2]) + ":4", filepath.Base(files[len(files)-2])},
				"gtid":   {"gtid:" + second, filepath.Base(files[len(files)-2])},
			} {
				t.Run(name, func(t *testing.T) {
					start, err := ParseStart(c.start)
					if err != nil {
						t.Fatal(err)
					}
					l := newPlace(t).log()
					r := pull(t, l, func(o *PullOptions) { o.Start = start }, s)
					r.caughtUp(t, l, s)
					if got := l.Files()[0].Name; got != c.first {
						t.Errorf("begins with %s, want %s", got, c.first)
					}
					if err := r.stop(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}
