package binlogfs

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// wire counts what comes over a relay's connections.
type wire struct{ bytes atomic.Int64 }

type counted struct {
	net.Conn
	w *wire
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.w.bytes.Add(int64(n))
	return n, err
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return counted{c, w}, nil
}

func TestPuller_CompressionAndTLS_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	zlib := func(o *PullOptions) { o.Compress = "zlib" }
	servers := map[dbtest.Kind]*dbtest.Server{}
	for _, k := range []dbtest.Kind{dbtest.MySQL97, dbtest.MariaDB1011, dbtest.MariaDB118} {
		servers[k] = dbtest.Start(t, k)
		work(t, servers[k], 0)
	}
	for _, c := range []struct {
		kind   dbtest.Kind
		name   string
		change func(s *dbtest.Server) func(o *PullOptions)
	}{
		{dbtest.MySQL97, "zlib", func(*dbtest.Server) func(*PullOptions) { return zlib }},
		{dbtest.MySQL97, "zstd", func(*dbtest.Server) func(*PullOptions) { return func(o *PullOptions) { o.Compress = "zstd" } }},
		{dbtest.MySQL97, "TLS", func(*dbtest.Server) func(*PullOptions) { return func(o *PullOptions) { o.TLS.Mode = TLSRequired } }},
		{dbtest.MySQL97, "CA, and zlib", func(s *dbtest.Server) func(*PullOptions) {
			return func(o *PullOptions) {
				o.TLS, o.Compress = TLSOptions{Mode: TLSVerifyCA, CA: filepath.Join(s.DataDir, "ca.pem")}, "zlib"
			}
		}},
		{dbtest.MariaDB1011, "zlib", func(*dbtest.Server) func(*PullOptions) { return zlib }},
		{dbtest.MariaDB118, "zlib", func(*dbtest.Server) func(*PullOptions) { return zlib }},
	} {
		t.Run(string(c.kind)+" "+c.name, func(t *testing.T) {
			s, l := servers[c.kind], newPlace(t).log()
			var w wire
			r := pull(t, l, func(o *PullOptions) {
				c.change(s)(o)
				o.Dial = w.dial
			}, s)
			r.caughtUp(t, l, s)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			identical(t, l, 1, s)
			size := int64(0)
			for _, f := range l.Files() {
				size += f.Size
			}
			// More than a megabyte of it is one letter.
			if packed := w.bytes.Load() < size/2; packed != strings.Contains(c.name, "z") {
				t.Errorf("%d bytes of logs came in %d bytes", size, w.bytes.Load())
			}
		})
	}
}

// A source that waits for acknowledgements reads them on a compressed connection, too.
func TestPuller_CompressionAndSemiSync_SourceHearsTheRelay(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011, "--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-timeout=600000")
	l := newPlace(t).log()
	r := pull(t, l, func(o *PullOptions) { o.Compress, o.SemiSync = "zlib", true }, s)
	status := func(name string) string { return s.Rows(t, "show status like 'Rpl_semi_sync_master_"+name+"'")[0][1] }
	for deadline := time.Now().Add(pullWait); status("clients") != "1"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the source has no semi-synchronous replica: %+v", r.Status())
		}
	}
	yes, no := status("yes_tx"), status("no_tx")
	s.Exec(t, "create database d", "create table d.a (i int)", "insert into d.a values (1)")
	file, offset := position(t, s)
	if end, _ := l.End(); end.File != file || end.Offset != offset {
		t.Errorf("acknowledged up to %s %d, and the archive ends at %v", file, offset, end)
	}
	if status("yes_tx") == yes || status("no_tx") != no {
		t.Errorf("%s groups with and %s without an acknowledgement", status("yes_tx"), status("no_tx"))
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	identical(t, l, 1, s)
}

// The library goes by what was asked for, and would speak to a source that does not
// compress in frames that it does not understand.
func TestPuller_SourceDoesNotCompress_StopsWithASentence(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MySQL97, "--protocol-compression-algorithms=uncompressed")
	for _, way := range []string{"zlib", "zstd"} {
		r := pull(t, newPlace(t).log(), func(o *PullOptions) { o.Compress = way }, s)
		if err := r.ended(t); err == nil || !strings.Contains(err.Error(), "does not compress connections with "+way) {
			t.Errorf("%s: %v", way, err)
		}
	}
}

func TestPuller_Failover_OnlyToASourceThatHasItAll(t *testing.T) {
	testenv.Long(t)
	first, second := dbtest.Start(t, dbtest.MariaDB1011, "--server-id=5"), dbtest.Start(t, dbtest.MariaDB1011, "--server-id=6", "--log-slave-updates")
	first.Exec(t, "create database d", "create table d.a (i int)")
	l := newPlace(t).log()
	r := pull(t, l, func(o *PullOptions) { o.Failover = time.Millisecond }, first, second)
	r.caughtUp(t, l, first)
	// The second one has the same groups, as a replica of the first has them.
	second.Exec(t, "set server_id=5", "set gtid_seq_no=1", "create database d")
	first.Kill(t)
	for deadline := time.Now().Add(pullWait); r.Status().LastError == "" && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := len(l.Sources()); n != 1 {
		t.Fatalf("%d sources: it went over to one that lacks a group", n)
	}
	second.Exec(t, "set server_id=5", "set gtid_seq_no=2", "create table d.a (i int)")
	second.Exec(t, "insert into d.a values (1)")
	r.caughtUp(t, l, second)
	if n := len(l.Sources()); n != 2 {
		t.Errorf("%d sources", n)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	wantState(t, l, second)
}
