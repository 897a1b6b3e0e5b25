package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

func TestErrnoOf_EverySentinel(t *testing.T) {
	for _, e := range errnos {
		errno, known := errnoOf(fmt.Errorf("write slot 3: %w", e.err))
		if errno != e.errno || !known {
			t.Errorf("%v is %v", e.err, errno)
		}
	}
	for _, err := range []error{gateway.ErrDamaged, gateway.ErrStore, gateway.ErrClosed, errors.New("other"), syscall.EIO} {
		if errno, known := errnoOf(err); errno != syscall.EIO || known {
			t.Errorf("%v is %v", err, errno)
		}
	}
}

func TestFileSystem_NodeStatus_MissingIsStale(t *testing.T) {
	fs := &fileSystem{}
	if got := fs.nodeStatus("read", 5, gateway.ErrNotExist); got != fuse.Status(syscall.ESTALE) {
		t.Error(got)
	}
	if got := fs.nameStatus("unlink", 5, gateway.ErrNotExist); got != fuse.ENOENT {
		t.Error(got)
	}
	if got := fs.nodeStatus("read", 5, nil); got != fuse.OK {
		t.Error(got)
	}
}

func TestComplaints_Report_IsLimited(t *testing.T) {
	var out bytes.Buffer
	c := complaints{log: slog.New(slog.NewTextHandler(&out, nil))}
	for range 100 {
		c.report("write", 7, gateway.ErrDamaged)
	}
	if got := strings.Count(out.String(), "\n"); got != 1 {
		t.Fatalf("%d lines:\n%s", got, out.String())
	}
	for _, want := range []string{"op=write", "inode=7", "damage found"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in %s", want, out.String())
		}
	}
	c.next = time.Time{}
	c.report("read", 8, gateway.ErrStore)
	if !strings.Contains(out.String(), "not_logged_before=99") {
		t.Errorf("what was left out is not told:\n%s", out.String())
	}
}

func TestOptions_Parse_Known(t *testing.T) {
	var o Options
	list := "ro,allow_other,noatime,nonempty,suid,dev,noexec,default,defaults,default_permissions,_netdev,x-systemd.automount,fsname=s3://b/p,max_read=65536,max_background=64,,debug"
	if err := o.Parse(list); err != nil {
		t.Fatal(err)
	}
	if !o.ReadOnly || !o.AllowOther || !o.NoAtime || !o.NonEmpty || !o.Suid || !o.Dev || !o.NoExec || !o.Debug ||
		o.FSName != "s3://b/p" || o.MaxRead != 65536 || o.MaxBackground != 64 {
		t.Errorf("%+v", o)
	}
	if err := o.Parse("rw,nosuid,nodev,exec"); err != nil || o.ReadOnly || o.Suid || o.Dev || o.NoExec {
		t.Errorf("later options don't win: %+v, %v", o, err)
	}
}

func TestOptions_Parse_RefusesByName(t *testing.T) {
	for _, item := range []string{"bogus", "writeback_cache", "ro=1", "fsname", "max_read", "max_read=", "max_read=x", "max_read=-1", "max_read=0",
		"max_read=4095", "max_read=1048577", "max_background=0", "max_background=70000", "max_background=99999999999999999999"} {
		var o Options
		err := o.Parse("noatime," + item + ",ro")
		name, _, _ := strings.Cut(item, "=")
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", item, err)
		}
	}
}

func TestOptions_Validate_Ranges(t *testing.T) {
	for _, o := range []Options{{MaxRead: 1}, {MaxBackground: -1}, {ReadAheadKiB: -1}, {CacheTimeout: -1}, {FSName: "a\nb"}} {
		if o.Validate() == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if err := new(Options).Validate(); err != nil {
		t.Error(err)
	}
}

func TestParseMountTable_EscapesAndOptionalFields(t *testing.T) {
	table := parseMountTable("36 35 98:0 /mnt1 /mnt\\0402\\134x rw,noatime master:1 shared:2 - ext3 /dev/root rw\nnonsense\n" +
		"37 35 0:51 / /m rw - fuse.cistern vol rw\n")
	want := []mountEntry{{"98:0", `/mnt 2\x`, "ext3"}, {"0:51", "/m", "fuse.cistern"}}
	if len(table) != 2 || table[0] != want[0] || table[1] != want[1] {
		t.Errorf("%+v", table)
	}
}

func TestCheckMountPoint_SaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	full, file, loop := filepath.Join(dir, "full"), filepath.Join(dir, "file"), filepath.Join(dir, "loop")
	empty, link := filepath.Join(dir, "empty"), filepath.Join(dir, "link")
	for _, d := range []string{full + "/x", empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(file, nil, 0o644), os.Symlink("loop", loop), os.Symlink("empty", link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir      string
		nonEmpty bool
		err      error
		text     string
	}{
		{filepath.Join(dir, "no"), false, unix.ENOENT, "does not exist"},
		{filepath.Join(dir, "no", "no"), false, unix.ENOENT, "does not exist"},
		{file, false, unix.ENOTDIR, "not a directory"},
		{full, false, unix.ENOTEMPTY, "nonempty"},
		{"/proc", false, unix.EBUSY, "already"},
		{full, true, nil, ""},
		{"/proc", true, nil, ""},
		{empty, false, nil, ""},
	} {
		got, err := checkMountPoint(c.dir, c.nonEmpty)
		switch {
		case c.err == nil && err != nil, !errors.Is(err, c.err), err != nil && !strings.Contains(err.Error(), c.text):
			t.Errorf("%s: %v", c.dir, err)
		case err == nil && got != c.dir:
			t.Errorf("%s became %s", c.dir, got)
		}
	}
	if got, err := checkMountPoint(link, false); err != nil || got != empty {
		t.Errorf("a link: %s, %v", got, err)
	}
	if _, err := checkMountPoint(loop, false); err == nil {
		t.Error("a loop was taken")
	}
}

func TestMount_NoHelper_SaysWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := helperPath(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "fusermount3") {
		t.Error(err)
	}
}

func TestTimes_SplitAndJoin(t *testing.T) {
	for _, ns := range []int64{0, 1, -1, 1e9, -1e9, -1e9 - 1, 1700000000123456789, math.MaxInt64 - 2e9, math.MinInt64 + 3e9} {
		sec, nsec := splitTime(ns)
		if nsec >= 1e9 {
			t.Errorf("%d has %d nanoseconds", ns, nsec)
		}
		if got := joinTime(sec, nsec); got != ns {
			t.Errorf("%d became %d", ns, got)
		}
	}
	if got := joinTime(1<<40, 0); got != math.MaxInt64 {
		t.Errorf("far future: %d", got)
	}
	before := int64(-1 << 40)
	if got := joinTime(uint64(before), 5); got != math.MinInt64 {
		t.Errorf("far past: %d", got)
	}
}

func TestSetAttrOf_Translates(t *testing.T) {
	in := &fuse.SetAttrIn{}
	in.Valid = fuse.FATTR_SIZE | fuse.FATTR_KILL_SUIDGID | fuse.FATTR_ATIME | fuse.FATTR_ATIME_NOW
	in.Size = 77
	in.Atime = 5
	set, err := setAttrOf(in, 1234)
	if err != nil || *set.Size != 77 || !set.KillSetID || *set.Atime != 1234 || *set.Mtime != 1234 || set.Mode != nil || set.UID != nil || set.GID != nil {
		t.Errorf("%+v, %v", set, err)
	}
	in.Valid = fuse.FATTR_SIZE
	in.Size = gateway.MaxFileSize + 1
	if _, err := setAttrOf(in, 0); !errors.Is(err, gateway.ErrTooBig) {
		t.Error(err)
	}
	in.Valid = fuse.FATTR_MTIME | fuse.FATTR_MODE
	in.Mtime, in.Mtimensec, in.Mode = 3, 4, unix.S_IFREG|0o4755
	if set, _ = setAttrOf(in, 0); *set.Mtime != 3e9+4 || *set.Mode != 0o4755 || set.Atime != nil {
		t.Errorf("%+v", set)
	}
}

func TestHandleTable_NumbersAreReusedAndBounded(t *testing.T) {
	var table handleTable
	if table.get(0) != nil || table.get(1) != nil || table.get(math.MaxUint64) != nil || table.remove(5) != nil {
		t.Error("an empty table has files")
	}
	a, b := &openFile{ino: 1}, &openFile{ino: 2}
	first, second := table.add(a), table.add(b)
	if first == 0 || first == second || table.get(first) != a || table.get(second) != b {
		t.Fatal(first, second)
	}
	if table.remove(first) != a || table.get(first) != nil || table.remove(first) != nil {
		t.Error("removed file is still there")
	}
	if again := table.add(a); again != first {
		t.Errorf("number %d, want %d again", again, first)
	}
	for n := 2; n < handlesPerPage*maxHandlePages; n++ {
		if table.add(a) == 0 {
			t.Fatalf("full after %d", n)
		}
	}
	if got := table.add(a); got != 0 {
		t.Errorf("number %d beyond the bound", got)
	}
	if got := len(table.drain()); got != handlesPerPage*maxHandlePages {
		t.Errorf("%d files were open", got)
	}
}

func TestHandleTable_Concurrent(t *testing.T) {
	var table handleTable
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range 5000 {
				f := &openFile{ino: gateway.InodeID(i)}
				fh := table.add(f)
				if table.get(fh) != f || table.remove(fh) != f {
					t.Error("another's file")
					return
				}
			}
		})
	}
	group.Wait()
	if got := len(table.drain()); got != 0 {
		t.Errorf("%d are left", got)
	}
}

func TestFatalPending_Signals(t *testing.T) {
	status := func(pending, blocked, ignored, caught string) []byte {
		return []byte("Name:\tx\nState:\tS (sleeping)\nSigPnd:\t" + pending + "\nShdPnd:\t0000000000000000\nSigBlk:\t" + blocked +
			"\nSigIgn:\t" + ignored + "\nSigCgt:\t" + caught + "\n")
	}
	const none, kill, interrupt, child, urgent = "0000000000000000", "0000000000000100", "0000000000000002", "0000000000010000", "0000000000400000"
	for _, c := range []struct {
		what string
		text []byte
		want bool
	}{
		{"nothing", status(none, none, none, none), false},
		{"SIGKILL", status(kill, none, none, none), true},
		{"SIGINT by default", status(interrupt, none, none, none), true},
		{"SIGINT caught", status(interrupt, none, none, interrupt), false},
		{"SIGINT ignored", status(interrupt, none, interrupt, none), false},
		{"SIGINT blocked", status(interrupt, interrupt, none, none), false},
		{"SIGCHLD", status(child, none, none, none), false},
		{"SIGURG", status(urgent, none, none, none), false},
		{"zombie", []byte("State:\tZ (zombie)\n"), true},
		{"shared SIGKILL", []byte("ShdPnd:\t" + kill + "\n"), true},
	} {
		if got := fatalPending(c.text); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// waiting is a call that lasts until its context ends or free is closed.
func waiting(calls *int, free <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		*calls++
		select {
		case <-ctx.Done():
			return gateway.ErrInterrupted
		case <-free:
			return nil
		}
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestFileSystem_Attend_GoesOnAfterAHarmlessSignal(t *testing.T) {
	fs := &fileSystem{ctx: context.Background(), dead: func() bool { return false }}
	free := make(chan struct{})
	time.AfterFunc(3*dyingPoll, func() { close(free) })
	h := &fuse.InHeader{}
	h.Pid = uint32(os.Getpid())
	calls := 0
	if err := fs.attend(closed(), h, waiting(&calls, free)); err != nil || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestFileSystem_Attend_StopsWithItsCaller(t *testing.T) {
	fs := &fileSystem{ctx: context.Background(), dead: func() bool { return false }}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &fuse.InHeader{}
	h.Pid = uint32(cmd.Process.Pid)
	time.AfterFunc(3*dyingPoll, func() { cmd.Process.Kill(); cmd.Wait() })
	calls := 0
	if err := fs.attend(closed(), h, waiting(&calls, nil)); !interrupted(err) || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestFileSystem_Attend_StopsWithTheMount(t *testing.T) {
	h := &fuse.InHeader{}
	h.Pid = uint32(os.Getpid())
	calls := 0
	dead := &fileSystem{ctx: context.Background(), dead: func() bool { return true }}
	if err := dead.attend(closed(), h, waiting(&calls, nil)); !interrupted(err) || calls != 1 {
		t.Errorf("a dead mount: %v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ending := &fileSystem{ctx: ctx, dead: func() bool { return false }}
	time.AfterFunc(2*dyingPoll, cancel)
	calls = 0
	if err := ending.attend(closed(), h, waiting(&calls, nil)); !interrupted(err) || calls != 2 {
		t.Errorf("a context that ended: %v after %d calls", err, calls)
	}
	h.Pid = 0
	calls = 0
	if err := ending.attend(closed(), h, waiting(&calls, nil)); !interrupted(err) || calls != 1 {
		t.Errorf("an unknown caller: %v after %d calls", err, calls)
	}
}

func TestRequest_IsAContext(t *testing.T) {
	c := make(chan struct{})
	var ctx context.Context = request(c)
	if _, has := ctx.Deadline(); has || ctx.Err() != nil || ctx.Value(1) != nil {
		t.Error("a new request is over")
	}
	close(c)
	<-ctx.Done()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error(ctx.Err())
	}
	if n := testing.AllocsPerRun(100, func() { ctx = request(c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBackings_EveryOpenAlike(t *testing.T) {
	var ids, closes int32
	errno := syscall.Errno(0)
	b := &backings{
		find:       func(ino gateway.InodeID) (int, bool) { return 3, ino != 9 },
		register:   func(int) (int32, syscall.Errno) { ids++; return ids, errno },
		unregister: func(int32) syscall.Errno { closes++; return 0 },
		log:        func(string, ...any) {},
		inodes:     map[gateway.InodeID]*backing{},
	}
	first, ok := b.open(5)
	again, ok2 := b.open(5)
	if !ok || !ok2 || first != again || ids != 1 {
		t.Fatalf("ids %d and %d, %d registered", first, again, ids)
	}
	if _, ok := b.open(9); ok {
		t.Error("a file that is not there is in passthrough")
	}
	b.close(5)
	if closes != 0 {
		t.Error("given back while open")
	}
	b.close(5)
	if closes != 1 {
		t.Error("not given back")
	}
	errno = syscall.EIO
	if _, ok := b.open(6); ok {
		t.Error("a refused one is in passthrough")
	}
	errno = 0
	if _, ok := b.open(6); ok {
		t.Error("the second open of a refused one differs from the first")
	}
	b.close(6)
	b.close(6)
	errno = syscall.EPERM
	b.open(7)
	errno = 0
	if _, ok := b.open(8); ok {
		t.Error("tried again although the kernel can't")
	}
}

func TestCheckXattrName_NameSpaces(t *testing.T) {
	for name, want := range map[string]fuse.Status{
		"user.a": fuse.OK, "trusted.a": fuse.OK, "security.capability": fuse.OK,
		"user.": fuse.EINVAL, "system.posix_acl_access": fuse.Status(syscall.EOPNOTSUPP), "foo.a": fuse.Status(syscall.EOPNOTSUPP), "": fuse.Status(syscall.EOPNOTSUPP),
	} {
		if got := checkXattrName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
