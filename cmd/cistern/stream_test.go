package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore/local"
)

// pipeline runs a shell's pipeline of which every part has to succeed, with the
// program as $C and the volume as $U.
func (p *place) pipeline(text string) {
	p.t.Helper()
	if p.built == "" {
		p.built = testenv.Cistern(p.t)
	}
	c := exec.Command("bash", "-c", "set -euo pipefail; cd "+p.dir+"; "+text)
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+p.dir, "C="+p.built, "U="+p.url())
	if out, err := c.CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", text, err, out)
	}
}

func TestApp_Streams_BackupsOfMariaDBThroughAnUnmountedVolume(t *testing.T) {
	testenv.Long(t)
	testenv.NeedPrograms(t, "mariadb", "mariadb-dump", "mariadb-backup", "mbstream", "tar")
	p := newPlace(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "create database shop", "create database again",
		"create table shop.orders (id int primary key, a varchar(200), b blob) engine=InnoDB",
		"insert into shop.orders select seq, sha2(seq, 512), unhex(sha2(seq + 1, 512)) from shop.seq_1_to_30000")
	p.must("format", p.url(), "--object-size", "1M")
	at := " --no-defaults --user=root --socket=" + s.Socket

	p.pipeline("mariadb-dump" + at + ` --single-transaction shop | tee dump | "$C" put "$U" dump.sql -`)
	p.pipeline(`"$C" get "$U" dump.sql - | cmp - dump`)
	p.pipeline(`"$C" get "$U" dump.sql - | mariadb` + at + " again")
	sums := s.Rows(t, "checksum table shop.orders, again.orders")
	if len(sums) != 2 || sums[0][1] != sums[1][1] || sums[0][1] == "0" {
		t.Errorf("what the dump restored differs: %v", sums)
	}

	p.pipeline("mariadb-backup" + at + " --backup --stream=xbstream --datadir=" + s.DataDir + ` --target-dir="$PWD/tmp" | tee backup | "$C" put -p "$U" daily/full.xb -`)
	p.pipeline(`"$C" get "$U" daily/full.xb - | tee >(cmp - backup >&2) | (mkdir restored; mbstream -x -C restored)`)
	p.pipeline(`"$C" get "$U" daily/full.xb - | cmp - backup`)
	p.pipeline("mariadb-backup --no-defaults --prepare --target-dir=restored")

	p.pipeline(`tar -c restored | tee tar | "$C" put "$U" - daily/data.tar`)
	p.pipeline(`"$C" get "$U" daily/data.tar - | cmp - tar`)
	p.pipeline(`"$C" get "$U" daily/data.tar - | tar -d`)
	p.must("check", "--data", p.url())
	for _, name := range []string{"dump", "backup", "tar"} {
		if st, err := os.Stat(p.path(name)); err != nil || st.Size() < 4<<20 {
			t.Errorf("%s is no stream to prove anything: %v, %v", name, st, err)
		}
	}
}

// endPut ends the program with a signal while it puts standard input, which stays
// open, and returns its exit status; -1 when the signal killed it.
func (p *place) endPut(vol string, sig syscall.Signal) int {
	p.t.Helper()
	if p.built == "" {
		p.built = testenv.Cistern(p.t)
	}
	c := exec.Command(p.built, "put", vol, "backup", "-")
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+p.dir)
	var errs bytes.Buffer
	c.Stderr = &errs
	in, err := c.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer in.Close()
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	if _, err := in.Write(random(3 << 20)); err != nil { // more than a pipe holds
		p.t.Errorf("feed: %v", err)
	}
	if err := c.Process.Signal(sig); err != nil {
		p.t.Error(err)
	}
	if err := c.Wait(); err == nil {
		p.t.Errorf("put ended by %v succeeds", sig)
	}
	if status := c.ProcessState.ExitCode(); status < 0 || strings.HasPrefix(errs.String(), "cistern: ") {
		return status
	}
	p.t.Errorf("put ended by %v says %q", sig, errs.String())
	return c.ProcessState.ExitCode()
}

func TestApp_Put_Ended_NothingAppears(t *testing.T) {
	p, mnt := mountPlace(t)
	nothing := func(vol string) {
		t.Helper()
		if got := p.must("ls", vol); got != "" {
			t.Errorf("%s shows %q", vol, got)
		}
	}
	pid := p.mount()
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 1, syscall.SIGINT: 1, syscall.SIGKILL: -1} {
		if got := p.endPut(mnt, sig); got != want {
			t.Errorf("%v, mounted: status %d", sig, got)
		}
		nothing(mnt)
	}
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
	nothing(p.url())
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if got := p.endPut(p.url(), sig); got != 1 {
			t.Errorf("%v: status %d", sig, got)
		}
		nothing(p.url())
	}
	if got := p.endPut(p.url(), syscall.SIGKILL); got != -1 {
		t.Errorf("killed: status %d", got)
	}
	nothing(p.url())

	// Nor when what it left is recovered.
	s, err := local.Open(p.path("bucket"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := gateway.ReadLease(t.Context(), s)
	if err != nil || l.Released {
		t.Fatalf("the lease of a command that was killed: %+v, %v", l, err)
	}
	dir := l.Owner.StateDir
	t.Cleanup(func() { os.RemoveAll(dir) })
	v, err := gateway.Open(t.Context(), gateway.Options{
		Store: s, URL: p.url(), FS: vfs.OS(), StateDir: dir, OpenKV: openKV(quietLogger()), Owner: gateway.HostOwner(dir),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	nothing(p.url())
	p.must("check", "--data", p.url())
}

// fountain is a stream of so many bytes, never all in memory, that looks at something
// every few MiB.
type fountain struct {
	left int64
	rng  *rand.ChaCha8
	sum  hash.Hash
	seen int64
	look func(done int64)
}

func (f *fountain) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n := int(min(f.left, int64(len(p))))
	f.rng.Read(p[:n])
	f.sum.Write(p[:n])
	before := f.seen
	f.left, f.seen = f.left-int64(n), f.seen+int64(n)
	if before>>23 != f.seen>>23 {
		f.look(f.seen)
	}
	return n, nil
}

// bytesBelow is what the files below a directory take on the disk, in bytes.
func bytesBelow(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, st os.FileInfo, err error) error {
		if err == nil {
			n += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
		if os.IsNotExist(err) {
			return nil // it has just gone
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

// A stream that is larger than the command's journal and cache together goes through
// them to the bucket, within their bounds, and is not there before its end.
func TestApp_Put_StreamLargerThanTheLocalDisk(t *testing.T) {
	const local, size = 24 << 20, 120 << 20
	p := newPlace(t)
	p.must("format", p.url())
	peak, looks := int64(0), 0
	in := &fountain{left: size, rng: rand.NewChaCha8([32]byte{7}), sum: sha256.New()}
	in.look = func(done int64) {
		looks++
		peak = max(peak, bytesBelow(t, p.path("base")))
		if got := p.must("ls", p.url()); got != "" {
			t.Errorf("after %d bytes of the stream the volume shows %q", done, got)
		}
	}
	var out, errs bytes.Buffer
	a := &app{stdin: in, stdout: &out, stderr: &errs, base: p.path("base"), local: local, lookup: func(string) (string, bool) { return "", false }}
	if status := a.run(context.Background(), []string{"put", p.url(), "stream", "-"}); status != 0 {
		t.Fatalf("put: %d, %s", status, errs.String())
	}
	const index = 16 << 20 // Badger's files
	if looks < 10 || peak < local/2 || peak > 2*local+index {
		t.Errorf("%d MiB on the local disk at the most, of %d looks, where %d are for journal and cache", peak>>20, looks, 2*local>>20)
	}
	t.Logf("%d MiB on the local disk at the most, for a stream of %d", peak>>20, size>>20)
	got := sha256.New()
	a = &app{stdout: got, stderr: &errs, base: p.path("base"), lookup: a.lookup}
	if status := a.run(context.Background(), []string{"cat", p.url(), "stream"}); status != 0 || !bytes.Equal(got.Sum(nil), in.sum.Sum(nil)) {
		t.Errorf("cat: %d, %s", status, errs.String())
	}
}

// peakMemory watches a process until it has ended, and returns the most memory that it
// had, in bytes: the kernel keeps that (VmHWM), so that only what is asked for in the
// last moment can be missed.
func peakMemory(pid int, ended <-chan struct{}) (peak int64) {
	for {
		body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if m := regexp.MustCompile(`VmHWM:\s*([0-9]+) kB`).FindSubmatch(body); err == nil && m != nil {
			kb, _ := strconv.ParseInt(string(m[1]), 10, 64) // digits
			peak = max(peak, kb<<10)
		}
		select {
		case <-ended:
			return peak
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A stream takes memory by its buffers, not by its length, on its way in and out.
func TestApp_Stream_PeakMemoryIsBounded(t *testing.T) {
	testenv.Long(t)
	const size, most = 768 << 20, 320 << 20
	p := newPlace(t)
	p.must("format", p.url())
	if p.built == "" {
		p.built = testenv.Cistern(t)
	}
	run := func(in io.Reader, out io.Writer, args ...string) int64 {
		t.Helper()
		c := exec.Command(p.built, args...)
		var errs bytes.Buffer
		c.Stdin, c.Stdout, c.Stderr = in, out, &errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		peak := make(chan int64, 1)
		go func() { peak <- peakMemory(c.Process.Pid, ended) }()
		err := c.Wait()
		close(ended)
		if err != nil {
			t.Fatalf("cistern %v: %v, %s", args, err, errs.String())
		}
		return <-peak
	}
	in := &fountain{left: size, rng: rand.NewChaCha8([32]byte{9}), sum: sha256.New(), look: func(int64) {}}
	got := sha256.New()
	put := run(in, io.Discard, "put", p.url(), "stream", "-")
	get := run(nil, got, "get", p.url(), "stream", "-")
	t.Logf("a stream of %d MiB: put took %d MiB of memory, get %d MiB", size>>20, put>>20, get>>20)
	for name, peak := range map[string]int64{"put": put, "get": get} {
		if peak < 8<<20 || peak > most {
			t.Errorf("%s took %d MiB of memory", name, peak>>20)
		}
	}
	if !bytes.Equal(got.Sum(nil), in.sum.Sum(nil)) {
		t.Error("other bytes come out than went in")
	}
}
