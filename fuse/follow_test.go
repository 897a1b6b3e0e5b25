package fuse

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/local"
)

// followServer is a volume that is written to in this process and mounted as
// one that follows it. It moves on when it is told.
type followServer struct {
	v *gateway.Volume
	f *gateway.Follower
	s *Server
}

func serveTestFollower(ctx context.Context, v *gateway.Volume, closeVolume func() error) error {
	if _, err := v.Commit(ctx); err != nil {
		return err
	}
	store, err := local.Open(filepath.Join(os.Getenv(serveState), "bucket"))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	f, err := gateway.OpenFollower(ctx, gateway.FollowOptions{
		Store: store, URL: "file:///bucket", FS: vfs.OS(), Dir: filepath.Join(os.Getenv(serveState), "follow"), Interval: time.Hour, Logger: log,
		OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
	})
	if err != nil {
		return err
	}
	s, err := MountFollower(ctx, f, os.Getenv(serveDir), Options{Logger: log, CacheTimeout: time.Hour})
	if err != nil {
		return err
	}
	f.Start(s)
	fmt.Println("ok")
	x := &followServer{v, f, s}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := x.obey(ctx, strings.Fields(lines.Text())); err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println("ok")
	}
	err = s.Unmount()
	if err != nil {
		err = errors.Join(err, s.Detach())
	}
	return errors.Join(err, f.Close(), closeVolume())
}

func (x *followServer) obey(ctx context.Context, f []string) error {
	switch f[0] {
	case "put": // a file's whole content
		return x.put(ctx, f[1], f[2], 0, true)
	case "patch":
		off, err := strconv.ParseInt(f[3], 10, 64)
		if err != nil {
			return err
		}
		return x.put(ctx, f[1], f[2], off, false)
	case "rename":
		return x.v.Rename(ctx, metadata.RootInode, f[1], metadata.RootInode, f[2], 0)
	case "unlink":
		return x.v.Unlink(ctx, metadata.RootInode, f[1])
	case "commit":
		_, err := x.v.Commit(ctx)
		return err
	case "follow":
		if _, err := x.v.Commit(ctx); err != nil {
			return err
		}
		return x.f.Poll(ctx)
	case "drop-all":
		x.s.DropPages(&gateway.Delta{All: true, Limit: x.f.Head().Totals.NextInode})
		return nil
	case "churn":
		n, err := strconv.Atoi(f[1])
		if err != nil {
			return err
		}
		return x.churn(ctx, n)
	}
	return fmt.Errorf("unknown command %q", f)
}

func (x *followServer) put(ctx context.Context, name, content string, off int64, whole bool) error {
	n, err := x.v.Lookup(ctx, metadata.RootInode, name)
	if errors.Is(err, gateway.ErrNotExist) {
		n, err = x.v.Create(ctx, metadata.RootInode, name, unix.S_IFREG|0o644, 0, gateway.Owner{}, nil)
	}
	if err != nil {
		return err
	}
	defer x.v.Forget(n.ID, 1)
	h, err := x.v.Open(ctx, n.ID)
	if err != nil {
		return err
	}
	if _, err = h.Write(ctx, []byte(content), off, gateway.WriteFlags{}); err == nil && whole {
		size := int64(len(content))
		_, err = x.v.SetAttr(ctx, n.ID, gateway.SetAttr{Size: &size})
	}
	return errors.Join(err, h.Close())
}

// record is a whole record of the file log: length, checksum, bytes.
func record(n int, rng *rand.Rand) string {
	b := make([]byte, 8+n)
	for i := range b[8:] {
		b[8+i] = byte(rng.Uint32()) | 1 // no zero among them
	}
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.LittleEndian.PutUint32(b[4:], crc32.ChecksumIEEE(b[8:]))
	return string(b)
}

// churn appends records to the file log, and replaces the file now by rename,
// whose bytes are all its number; some names come and go.
func (x *followServer) churn(ctx context.Context, rounds int) error {
	rng := rand.New(rand.NewPCG(1, 2))
	end := int64(0)
	for i := range rounds {
		r := record(1+rng.IntN(9000), rng)
		if err := x.put(ctx, "log", r, end, false); err != nil {
			return err
		}
		end += int64(len(r))
		for _, step := range [][]string{
			{"put", "tmp", strings.Repeat(string(rune('A'+i%50)), 1+rng.IntN(20_000))}, {"rename", "tmp", "now"},
			{"put", "x" + strconv.Itoa(i), "x"},
		} {
			if err := x.obey(ctx, step); err != nil {
				return err
			}
		}
		if i >= 20 {
			if err := x.obey(ctx, []string{"unlink", "x" + strconv.Itoa(i-20)}); err != nil {
				return err
			}
		}
		if err := x.obey(ctx, []string{"follow"}); err != nil {
			return err
		}
	}
	return nil
}

func mountFollower(t *testing.T) *mounted { return mountVolume(t, serveFollow+"=1") }

// mapFile maps the first page of a file.
func (m *mounted) mapFile(f *os.File) []byte {
	m.Helper()
	p, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	m.must(err)
	m.Cleanup(func() { _ = unix.Munmap(p) })
	return p
}

func (m *mounted) wantFile(name, want string) {
	m.Helper()
	got, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil || string(got) != want {
		m.Errorf("%s: %.60q (%d bytes), %v; want %.60q", name, got, len(got), err, want)
	}
}

// The kernel believes everything for an hour here: what a move changes must be
// taken out of its caches one by one.
func TestFollower_Mount_PagesFollow(t *testing.T) {
	m := mountFollower(t)
	m.do("put f first")
	m.do("put other stays")
	m.do("follow")
	m.wantFile("f", "first")
	m.wantFile("other", "stays")
	f, err := os.Open(m.dir + "/f")
	m.must(err)
	defer f.Close()
	page := m.mapFile(f)
	see := func(want string) {
		t.Helper()
		m.wantFile("f", want)
		buf := make([]byte, 100)
		n, err := f.ReadAt(buf, 0)
		if string(buf[:n]) != want || err != io.EOF {
			t.Errorf("through the open file: %q, %v; want %q", buf[:n], err, want)
		}
		if got := string(page[:len(want)]); got != want {
			t.Errorf("through the mapping: %q, want %q", got, want)
		}
		if st, err := f.Stat(); err != nil || st.Size() != int64(len(want)) {
			t.Errorf("size %d, %v", st.Size(), err)
		}
	}
	see("first")
	for _, content := range []string{"other", "longer-than-before", "short"} {
		m.do("put f %s", content)
		m.do("commit") // which the mount has not moved to
		m.do("follow")
		see(content)
	}
	m.do("patch f XY 2")
	m.do("follow")
	see("shXYt")
	m.do("drop-all")
	see("shXYt")
	m.wantFile("other", "stays")
}

// Growth never shows as a new size with the zeros of the old last page.
func TestFollower_Mount_NoZerosAtTheOldEnd(t *testing.T) {
	m := mountFollower(t)
	want := "0"
	m.do("put f 0")
	m.do("follow")
	f, err := os.Open(m.dir + "/f")
	m.must(err)
	defer f.Close()
	for i := 1; i < 60; i++ {
		more := strings.Repeat(strconv.Itoa(i%10), 1+97*i%700)
		m.do("patch f %s %d", more, len(want))
		want += more
		m.wantFile("f", want[:len(want)-len(more)])
		m.do("follow")
		st, err := f.Stat()
		m.must(err)
		buf := make([]byte, st.Size())
		if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != want {
			t.Fatalf("after growth to %d bytes there are %d, %v, or other ones", len(want), len(buf), err)
		}
	}
}

func TestFollower_Mount_NamesFollow(t *testing.T) {
	m := mountFollower(t)
	missing := func(name string) {
		t.Helper()
		if _, err := os.Lstat(filepath.Join(m.dir, name)); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	list := func(want string) {
		t.Helper()
		entries, err := os.ReadDir(m.dir)
		m.must(err)
		got := ""
		for _, e := range entries {
			got += e.Name() + " "
		}
		if got != want {
			t.Errorf("names %q, want %q", got, want)
		}
	}
	missing("a")
	list("")
	m.do("put a one")
	m.do("follow")
	m.wantFile("a", "one")
	list("a ")
	old, err := os.Open(m.dir + "/a")
	m.must(err)
	defer old.Close()
	m.do("put b two")
	m.do("follow")
	m.wantFile("b", "two")
	list("a b ")
	m.do("rename b a") // over the open file
	m.do("follow")
	m.wantFile("a", "two")
	missing("b")
	list("a ")
	// What was open is gone, also what the kernel had of it.
	if _, err := old.ReadAt(make([]byte, 3), 0); !errors.Is(err, unix.ESTALE) {
		t.Errorf("read of a file that is no more: %v", err)
	}
	if _, err := old.Stat(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("stat of a file that is no more: %v", err)
	}
	m.do("rename a c")
	m.do("put a three")
	m.do("follow")
	m.wantFile("a", "three")
	m.wantFile("c", "two")
	m.do("unlink a")
	m.do("unlink c")
	m.do("follow")
	missing("a")
	missing("c")
	list("")
	for name, err := range map[string]error{
		"create": os.WriteFile(m.dir+"/new", nil, 0o644), "mkdir": os.Mkdir(m.dir+"/d", 0o755),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// wholeRecords checks that a prefix of the file log ends with a whole record.
func wholeRecords(b []byte) (records int, err error) {
	for at := 0; at < len(b); records++ {
		if len(b)-at < 8 {
			return records, fmt.Errorf("half a head at %d of %d", at, len(b))
		}
		n, sum := int(binary.LittleEndian.Uint32(b[at:])), binary.LittleEndian.Uint32(b[at+4:])
		if n == 0 || at+8+n > len(b) {
			return records, fmt.Errorf("a record of %d bytes at %d of %d", n, at, len(b))
		}
		if crc32.ChecksumIEEE(b[at+8:at+8+n]) != sum {
			return records, fmt.Errorf("record %d at %d of %d is torn", records, at, len(b))
		}
		at += 8 + n
	}
	return records, nil
}

// While a writer appends, replaces and removes, every reader sees whole records
// up to the size that it was told, whole files, and names that exist.
func TestFollower_Mount_Churn(t *testing.T) {
	m := mountFollower(t)
	m.do("churn 1")
	var wg sync.WaitGroup
	var done atomic.Bool
	var seen, files, lists atomic.Int64
	loop := func(fn func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !done.Load() {
				if err := fn(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	log, err := os.Open(m.dir + "/log")
	m.must(err)
	defer log.Close()
	last := 0
	loop(func() error {
		st, err := log.Stat()
		if err != nil {
			return err
		}
		b := make([]byte, st.Size())
		if _, err := log.ReadAt(b, 0); err != nil {
			return fmt.Errorf("read %d bytes of the log: %w", len(b), err)
		}
		n, err := wholeRecords(b)
		if err == nil && n < last {
			err = fmt.Errorf("%d records after %d", n, last)
		}
		last = n
		seen.Store(int64(n))
		return err
	})
	loop(func() error {
		b, err := os.ReadFile(m.dir + "/now")
		if errors.Is(err, unix.ESTALE) {
			return nil // replaced since it was opened
		}
		if err == nil && (len(b) == 0 || strings.Count(string(b), string(b[:1])) != len(b)) {
			err = fmt.Errorf("a replaced file is torn: %d bytes, first %q", len(b), b[:1])
		}
		files.Add(1)
		return err
	})
	loop(func() error {
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, e := range entries {
			have[e.Name()] = true
		}
		// Several requests make a listing, so that it may span moves; each is of one
		// commit, in none of which there is the name tmp.
		if !have["log"] || !have["now"] || have["tmp"] || len(have) != len(entries) {
			return fmt.Errorf("a listing during the churn: %v", entries)
		}
		lists.Add(1)
		return nil
	})
	m.do("churn 150")
	done.Store(true)
	wg.Wait()
	if seen.Load() == 0 || files.Load() == 0 || lists.Load() == 0 {
		t.Errorf("the readers saw %d records, %d files, %d listings", seen.Load(), files.Load(), lists.Load())
	}
	b, err := os.ReadFile(m.dir + "/log")
	m.must(err)
	if n, err := wholeRecords(b); err != nil {
		t.Errorf("%d records: %v", n, err)
	}
}
