package binlogfs

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestPuller_CompressionAndTLS_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MySQL97)
	work(t, s, 0)
	for name, change := range map[string]func(o *PullOptions){
		"zlib": func(o *PullOptions) { o.Compress = "zlib" },
		"zstd": func(o *PullOptions) { o.Compress = "zstd" },
		"TLS":  func(o *PullOptions) { o.TLS.Mode = TLSRequired },
		"CA, and zlib": func(o *PullOptions) {
			o.TLS, o.Compress = TLSOptions{Mode: TLSVerifyCA, CA: filepath.Join(s.DataDir, "ca.pem")}, "zlib"
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPlace(t).log()
			r := pull(t, l, change, s)
			r.caughtUp(t, l, s)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			identical(t, l, 1, s)
		})
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
