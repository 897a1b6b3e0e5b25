package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/testenv"
)

// mountPoint makes another mount point of the place, which is gone at the end.
func (p *place) mountPoint(name string) string {
	p.t.Helper()
	dir := p.path(name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if r, ok := (&app{lookup: os.LookupEnv}).findRecord(dir); ok {
			if p.t.Failed() {
				log, err := os.ReadFile(filepath.Join(string(r.StateDir), logName))
				p.t.Logf("log of the mount on %s (%v):\n%s", name, err, log)
			}
			p.kill(r.PID)
		}
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			p.t.Errorf("clean up: %v", err)
		}
	})
	return dir
}

// mountAt mounts a point in the background and returns its status.
func (p *place) mountAt(point, dir string, more ...string) mountStatus {
	p.t.Helper()
	args := append([]string{"mount", p.url() + "@" + point, dir}, more...)
	if out := p.mustBinary(args...); !strings.Contains(out, "@"+point+" is mounted on "+dir) {
		p.t.Errorf("mount says %q", out)
	}
	st := decode[mountStatus](p.t, p.must("status", "--json", dir))
	if st.Point == nil || st.Point.Point != point || !st.Healthy {
		p.t.Fatalf("status of a mount of %s: %+v", point, st)
	}
	return st
}

// pins are the names of the pins in the bucket.
func (p *place) pins() (names []string) {
	p.t.Helper()
	for name := range p.bucketFiles() {
		if strings.HasPrefix(name, "pins/") {
			names = append(names, name)
		}
	}
	return names
}

// commit writes a file through the mount and returns the commit that has it.
func (p *place) commit(name string, body []byte) string {
	p.t.Helper()
	if err := os.WriteFile(p.path("mnt", name), body, 0o644); err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(p.must("sync", p.path("mnt")))
}

// fixedPlace is a place whose volume keeps nothing beyond its present, with a
// writable mount and a file that has changed since a commit.
func fixedPlace(t *testing.T) (p *place, mnt, commit string, then []byte) {
	t.Helper()
	p, mnt = mountPlace(t)
	p.must("destroy", "--yes", p.url())
	p.must("format", p.url(), "--object-size", "1M", "--retention", "0s")
	p.mount()
	then = random(3<<20 + 99)
	commit = p.commit("file", then)
	p.commit("file", random(3<<20+100))
	return p, mnt, commit, then
}

func TestMount_FixedPoint_BesideTheWritableMount(t *testing.T) {
	p, mnt, commit, then := fixedPlace(t)
	writer := decode[mountStatus](t, p.must("status", "--json", mnt)).PID
	one, two := p.mountPoint("one"), p.mountPoint("two")
	st := p.mountAt(commit, one, "--read-only", "--cache-size", "32M")
	if st.Cache.Limit != 32<<20 || fmt.Sprint(st.Commit.N) != commit || st.PID == writer {
		t.Errorf("status: %+v", st)
	}
	now := p.mountAt("-0s", two, "--state", p.path("state2"), "-o", "ro")
	if now.StateDir != p.path("state2") || now.Commit.N <= st.Commit.N {
		t.Errorf("status: %+v", now)
	}
	if len(p.pins()) != 2 {
		t.Errorf("pins: %v", p.pins())
	}
	p.must("rm", mnt, "file")
	p.must("sync", mnt)
	p.must("collect", mnt)
	if got := readFile(t, filepath.Join(one, "file")); got != string(then) {
		t.Error("the mount of the commit shows other bytes")
	}
	if got := readFile(t, filepath.Join(two, "file")); got != string(random(3<<20+100)) {
		t.Error("the mount of what was the present shows other bytes")
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(one, "new"), nil, 0o644), os.Remove(filepath.Join(one, "file")), os.Mkdir(filepath.Join(one, "d"), 0o755),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("a change of the past: %v", err)
		}
	}
	// Commands find the mount that they are told, and no other.
	for _, vol := range []string{one, p.url() + "@" + commit, mnt + "@" + commit} {
		if got := p.must("cat", vol, "file"); got != string(then) {
			t.Errorf("cat of %s gives other bytes", vol)
		}
	}
	p.must("ls", "-lR", "--slots", one)
	p.must("check", "--data", one)
	p.must("log", p.url())
	p.fails(1, "/file: no such file", "cat", p.url(), "file")
	if got := decode[mountStatus](t, p.must("status", "--json", p.url())).PID; got != writer {
		t.Errorf("the volume's status comes from process %d, its writer is %d", got, writer)
	}
	if out := p.must("status", one); !strings.Contains(out, fmt.Sprintf("commit %d", st.Commit.N)) || !strings.Contains(out, st.Point.Pin.Key) {
		t.Errorf("status: %q", out)
	}
	if f := decode[topFrame](t, p.must("top", "--once", "--json", "--interval", "100ms", one)); f.Status.PID != st.PID {
		t.Errorf("top: %+v", f.Status)
	}
	if out := p.must("top", "--once", "--interval", "100ms", one); !strings.Contains(out, "read-only") {
		t.Errorf("top: %q", out)
	}
	p.fails(2, "a point in the past can't be changed", "rm", one, "file")
	p.fails(2, "a point in the past can't be changed", "collect", one)
	p.fails(2, "nothing to sync", "sync", one)
	p.fails(3, "is mounted on", "destroy", "--yes", one)

	if out := p.mustBinary("umount", one); !strings.Contains(out, fmt.Sprintf("it showed commit %d", st.Commit.N)) {
		t.Errorf("umount says %q", out)
	}
	if _, err := os.Stat(filepath.Join(st.StateDir, fixedName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cache is left: %v", err)
	}
	if len(p.pins()) != 1 {
		t.Errorf("after one of two was unmounted there are pins %v", p.pins())
	}
	p.mustBinary("umount", two)
	p.commit("goes on", []byte("writing"))
	p.mustBinary("umount", mnt)
	if len(p.pins()) != 0 {
		t.Errorf("pins are left: %v", p.pins())
	}
}

func TestMount_FixedPoint_Times(t *testing.T) {
	p, mnt, commit, then := fixedPlace(t)
	dir := p.mountPoint("one")
	log := decode[[]logLine](t, p.must("log", "--json", "-n", "0", mnt))
	var at time.Time
	for _, l := range log {
		if fmt.Sprint(l.Commit) == commit {
			at = l.Time
		}
	}
	for _, point := range []string{commit, at.Format(time.RFC3339Nano), at.In(time.FixedZone("", 5400)).Format(time.RFC3339Nano)} {
		st := p.mountAt(point, dir)
		if fmt.Sprint(st.Commit.N) != commit {
			t.Errorf("point %s is commit %d, want %s", point, st.Commit.N, commit)
		}
		if got := readFile(t, filepath.Join(dir, "file")); got != string(then) {
			t.Errorf("point %s: other bytes", point)
		}
		p.mustBinary("umount", dir)
	}
	status, _, errs := p.binary("mount", p.url()+"@2001-01-01T00:00:00Z", dir)
	checkFailure(t, nil, 2, "has nothing of 2001-01-01", status, errs)
	p.mustBinary("umount", mnt)
}

func TestMount_FixedPoint_Collected_IsRefused(t *testing.T) {
	p, mnt, commit, _ := fixedPlace(t)
	dir := p.mountPoint("one")
	p.must("collect", mnt)
	args := []string{"mount", p.url() + "@" + commit, dir, "--state", p.path("state2")}
	status, _, errs := p.binary(args...)
	checkFailure(t, args, 2, "may be deleted", status, errs)
	if len(p.pins()) != 0 {
		t.Errorf("pins are left: %v", p.pins())
	}
	p.mustBinary("umount", mnt)
}

// The state directory of a mount that is written to is nobody else's.
func TestMount_FixedPoint_ForeignStateDirectory(t *testing.T) {
	p, mnt, commit, _ := fixedPlace(t)
	dir := p.mountPoint("one")
	for _, mounted := range []bool{true, false} {
		if !mounted {
			p.kill(decode[mountStatus](t, p.must("status", "--json", mnt)).PID)
			if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{"mount", p.url() + "@" + commit, dir, "--state", p.path("state")}
		status, _, errs := p.binary(args...)
		checkFailure(t, args, 2, "that of a mount that is written to", status, errs)
	}
	p.mountAt(commit, dir, "--state", p.path("state2"))
	other := p.mountPoint("two")
	args := []string{"mount", p.url() + "@" + commit, other, "--state", p.path("state2")}
	status, _, errs := p.binary(args...)
	checkFailure(t, args, 3, "in use by another mount", status, errs)
	p.mustBinary("umount", dir)
	p.mount()
	if got := readFile(t, filepath.Join(mnt, "file")); got != string(random(3<<20+100)) {
		t.Error("the writable mount lost something")
	}
	p.mustBinary("umount", mnt)
}

func TestMount_FixedPoint_Killed(t *testing.T) {
	p, mnt, commit, then := fixedPlace(t)
	dir := p.mountPoint("one")
	state := p.path("state2")
	st := p.mountAt(commit, dir, "--state", state)
	readFile(t, filepath.Join(dir, "file"))
	p.kill(st.PID)
	p.fails(1, "takes the mount away", "status", dir)
	if got := p.must("cat", dir, "file"); got != string(then) { // its pin counts for a day
		t.Error("cat of a dead mount gives other bytes")
	}
	if out := p.mustBinary("umount", dir); !strings.Contains(out, "is taken away") {
		t.Errorf("umount says %q", out)
	}
	if _, err := os.Stat(filepath.Join(state, fixedName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its cache is left: %v", err)
	}
	if st := decode[mountStatus](t, p.must("status", "--json", mnt)); !st.Healthy {
		t.Errorf("the writable mount: %+v", st)
	}
	p.mountAt(commit, dir, "--state", state)
	if got := readFile(t, filepath.Join(dir, "file")); got != string(then) {
		t.Error("mounted again it shows other bytes")
	}
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}

func TestMount_FixedPoint_DamageIsAnErrorThatNamesTheObject(t *testing.T) {
	p, mnt, _, _ := fixedPlace(t)
	commit := p.commit("sound", []byte("sound"))
	dir := p.mountPoint("one")
	object := ""
	for name, body := range p.bucketFiles() {
		if strings.HasPrefix(name, "objects/") && strings.Contains(string(random(3<<20+100)), body) && len(body) == 1<<20 {
			object = name
		}
	}
	body := []byte(p.bucketFiles()[object])
	body[len(body)/2] ^= 1
	if err := os.WriteFile(p.path("bucket", object), body, 0o644); err != nil {
		t.Fatal(err)
	}
	p.mountAt(commit, dir, "--state", p.path("state2"))
	if _, err := os.ReadFile(filepath.Join(dir, "file")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of what is damaged: %v", err)
	}
	if got := readFile(t, filepath.Join(dir, "sound")); got != "sound" {
		t.Errorf("another file: %q", got)
	}
	if log := readFile(t, p.path("state2", logName)); !strings.Contains(log, strings.TrimSuffix(object, "%")) { // the mark of a file that is an object
		t.Errorf("the log does not name %s:\n%s", object, log)
	}
	if st := decode[mountStatus](t, p.must("status", "--json", dir)); st.Damage == 0 {
		t.Errorf("status: %+v", st)
	}
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}

// A file that was opened once is read by the kernel alone afterwards, also
// while the bucket is away; then the unmount says that the pin stays.
func TestMount_FixedPoint_KernelReadsWholeFiles(t *testing.T) {
	p, mnt, commit, then := fixedPlace(t)
	p.mustBinary("umount", mnt)
	dir := p.mountPoint("one")
	p.mountAt(commit, dir, "--state", p.path("state2"))
	name := filepath.Join(dir, "file")
	if got := readFile(t, name); got != string(then) {
		t.Error("the first reader gets other bytes")
	}
	status := func() mountStatus { return decode[mountStatus](t, p.must("status", "--json", dir)) }
	for try := 0; status().Cache.Pinned < int64(len(then)); try++ {
		if try == 300 {
			t.Fatalf("the file is not in the cache whole: %+v", status().Cache)
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.fails(3, "is mounted on "+dir, "destroy", "--yes", p.url())
	if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := status().Cache
	got, err := io.ReadAll(io.NewSectionReader(aligned{f}, 0, int64(len(then))))
	if err != nil || !bytes.Equal(got, then) {
		t.Errorf("the kernel reads other bytes: %v", err)
	}
	if after := status().Cache; after.Hits+after.Misses != before.Hits+before.Misses {
		t.Errorf("%d reads came to the process", after.Hits+after.Misses-before.Hits-before.Misses)
	}
	f.Close()
	out, err := exec.Command(testenv.Cistern(t), "umount", dir).CombinedOutput()
	if err != nil {
		t.Errorf("umount: %v, %s", err, out)
	}
	if log := readFile(t, p.path("state2", logName)); !strings.Contains(log, "the pin stays and counts until it ends") {
		t.Errorf("the log does not tell of the pin:\n%s", log)
	}
	if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
		t.Fatal(err)
	}
}

// aligned reads as O_DIRECT wants it.
type aligned struct{ f *os.File }

func (a aligned) ReadAt(p []byte, off int64) (int, error) {
	const page = 4096
	buf, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return 0, err
	}
	defer syscall.Munmap(buf)
	from := off / page * page
	n, err := a.f.ReadAt(buf, from)
	if int64(n) <= off-from {
		return 0, err
	}
	return copy(p, buf[off-from:n]), nil
}
