package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
)

func TestApp_Restore_AnUnmountedVolume(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	put := func(name string, body []byte) {
		t.Helper()
		p.stdin = string(body)
		p.must("put", "-p", u, "-", name)
	}
	put("dir/a", random(2<<20+5))
	put("dir/b", random(10))
	p.must("snapshot", "create", u, "good")
	put("dir/a", random(2<<20+6))
	put("dir/c", random(11))
	p.must("rm", u, "dir/b")

	p.fails(2, "say what to go back to", "restore", u)
	p.fails(2, "has no snapshot bad", "restore", u+"@bad")
	p.fails(2, "is no name for a snapshot", "restore", u+"@good", "--keep", "a@b")
	p.fails(2, "is taken", "restore", u+"@good", "--keep", "good")
	p.fails(1, "no such file", "restore", u+"@good", "dir/c")
	p.fails(2, "as a whole", "restore", u+"@good", "/")
	p.fails(1, "no such file", "restore", u+"@good", "none/a")
	p.fails(2, "need --binlog", "restore", u+"@good", "--to-time", "-1h")
	p.fails(2, "one of --to-time and --to-gtid", "restore", u+"@good", "--to-time", "-1h", "--to-gtid", "0-1-2", "--binlog", u)
	p.fails(2, "needs --to-time or --to-gtid", "restore", u+"@good", "--binlog", u)
	p.fails(2, "give no paths", "restore", u+"@good", "dir/a", "--to-time", "-1h", "--binlog", u)
	p.fails(2, "--server none", "restore", u+"@good", "--to-time", "-1h", "--binlog", u, "--server", "none")
	p.fails(1, "name it with --datadir", "restore", u+"@good", "--to-time", "-1h", "--binlog", u)
	if n := len(p.snapshots()); n != 1 {
		t.Errorf("what was refused left %d snapshots", n)
	}

	got := p.must("restore", u+"@good", "dir/a", "/dir/b")
	if !strings.Contains(got, "/dir/a is back as of commit ") || !strings.Contains(got, "2.0 MiB shared, 5 B copied") || !strings.Contains(got, "is snapshot before-restore-") {
		t.Errorf("restore of paths: %q", got)
	}
	if got := p.must("cat", u, "dir/a"); got != string(random(2<<20+5)) {
		t.Error("dir/a has other bytes")
	}
	if got := p.must("ls", u, "dir"); got != "dir/a\ndir/b\ndir/c\n" {
		t.Errorf("after restoring paths: %q", got)
	}

	l := decode[restoreLine](t, p.must("restore", "--json", "--keep", "mixed", u+"@good"))
	if l.Snapshot.Name != "mixed" || l.Commit <= l.Snapshot.Commit || l.Restored >= l.Snapshot.Commit || l.Time.IsZero() {
		t.Errorf("%+v", l)
	}
	if got := p.must("ls", u, "dir"); got != "dir/a\ndir/b\n" {
		t.Errorf("after restoring all: %q", got)
	}
	if got := p.must("ls", u+"@mixed", "dir"); got != "dir/a\ndir/b\ndir/c\n" {
		t.Errorf("what was replaced: %q", got)
	}
	if got := p.must("snapshot", "diff", u, "mixed"); got != "- /dir/c\n" && !strings.Contains(got, "- /dir/c\n") {
		t.Errorf("diff: %q", got)
	}
	p.fails(2, "nothing to go back to", "restore", u+"@"+fmt.Sprint(l.Commit))
	put("dir/d", random(12))
	p.must("restore", u+"@mixed")
	if got := p.must("cat", u, "dir/c"); got != string(random(11)) {
		t.Error("dir/c is not back")
	}
	p.must("check", "--data", u)
	if left, err := filepath.Glob(p.path("base", "*")); err != nil || len(left) > 0 {
		t.Errorf("commands left %v, %v", left, err)
	}
	if names := p.pins(); strings.Contains(strings.Join(names, " "), "restore~") {
		t.Errorf("pins: %v", names)
	}
}

func TestMount_Restore_PathsMountedAndAllAfterwards(t *testing.T) {
	p, mnt := mountPlace(t)
	u := p.url()
	pid := p.mount()
	write := func(name string, body []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(mnt, name), body, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name string, body []byte) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(mnt, name)); err != nil || string(got) != string(body) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(body))
		}
	}
	if err := os.Mkdir(filepath.Join(mnt, "db"), 0o750); err != nil {
		t.Fatal(err)
	}
	write("db/t.ibd", random(2<<20))
	write("db/small", random(100))
	p.must("snapshot", "create", mnt, "good")
	write("db/t.ibd", random(1<<20+1))
	write("db/late", random(7))
	held, err := os.Open(filepath.Join(mnt, "db/t.ibd"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() // only read
	want("db/late", random(7))

	p.fails(3, "is restored as a whole only when it is not: stop what uses it, `cistern umount "+mnt, "restore", u+"@good")
	got := p.must("restore", mnt+"@good", "db/t.ibd")
	if !strings.Contains(got, "2.0 MiB shared, 0 B copied") {
		t.Errorf("restore: %q", got)
	}
	want("db/t.ibd", random(2<<20))
	want("db/late", random(7))
	old := make([]byte, 2<<20)
	if n, err := held.ReadAt(old, 0); n != 1<<20+1 || string(old[:n]) != string(random(1<<20+1)) {
		t.Errorf("who had the file open reads %d bytes, %v", n, err)
	}
	write("db/t.ibd", random(500))
	p.must("restore", u+"@good", "db")
	want("db/t.ibd", random(2<<20))
	want("db/small", random(100))
	if _, err := os.Stat(filepath.Join(mnt, "db/late")); !os.IsNotExist(err) {
		t.Errorf("db/late: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	p.must("snapshot", "create", mnt, "end")
	write("db/t.ibd", random(9))
	p.must("umount", mnt)
	p.unmounted(pid)

	// The state directory's index is that of the state that is replaced.
	p.must("restore", u+"@end")
	pid = p.mount()
	want("db/t.ibd", random(2<<20))
	write("db/new", random(5))
	p.must("check", "--data", mnt)
	p.must("umount", mnt)
	p.unmounted(pid)
	p.must("check", "--data", u)
}

// Damage in what only a snapshot keeps is found, and what is shared is read once.
func TestApp_Check_DataOfEveryPin(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	put := func(name string, n int) {
		t.Helper()
		p.stdin = string(random(n))
		p.must("put", u, "-", name)
	}
	put("shared", 3<<20)
	put("old", 1<<20)
	p.must("snapshot", "create", u, "first")
	put("more", 10)
	p.must("snapshot", "create", u, "second")
	p.must("rm", u, "old")
	r := decode[checkReport](t, p.must("check", "--data", "--json", u))
	if len(r.Pins) != 2 || r.Pins[0].Names[0] != "first" || r.Pins[0].Bytes < 1<<20 || r.Pins[0].Bytes > 1<<20+1<<18 || r.Pins[1].Bytes > 1<<18 || r.Problems != 0 {
		t.Errorf("%+v", r.Pins)
	}
	holds := p.bucketFilesHolding(random(1 << 20))
	if len(holds) == 0 {
		t.Fatal(holds)
	}
	name := p.path("bucket", holds[0])
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	body[len(body)/2] ^= 1
	if err := os.WriteFile(name, body, 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, errs := p.run("check", "--data", u)
	if status != 4 || strings.Count(out, "damage: /") != 1 || !strings.Contains(out, ": bytes ") || !strings.Contains(errs, "1 problem") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

// A pin that goes while its commit is verified takes what it kept along: no damage.
func TestApp_Check_APinThatGoesMeanwhile(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M", "--retention", "0s")
	put := func(name string, n int) {
		t.Helper()
		p.stdin = string(random(n))
		p.must("put", u, "-", name)
	}
	put("old", 1<<20)
	p.must("snapshot", "create", u, "first")
	put("more", 10)
	p.must("snapshot", "create", u, "second")
	p.must("rm", u, "old")
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, base: p.path("base"), lookup: func(name string) (string, bool) { v, ok := p.env[name]; return v, ok }}
	where, err := a.resolve(u)
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.openVolume(t.Context(), where.url)
	if err != nil {
		t.Fatal(err)
	}
	list, err := gateway.PinnedCommits(t.Context(), s)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	p.must("snapshot", "delete", u, "first")
	p.must("snapshot", "delete", u, "second")
	for range 3 {
		p.must("collect", u)
	}
	if len(p.bucketFilesHolding(random(1<<20))) != 0 {
		t.Fatal("what the snapshot kept was not collected")
	}
	var r checkReport
	r.Commit.N = list[1].N
	if err := a.checkPinned(t.Context(), where, s, list, &r, progress.Start(&errs, false, "", 0), false); err != nil || r.Problems != 0 || len(r.Pins) != 0 || out.Len() > 0 {
		t.Errorf("%v\n%+v\n%s", err, r, out.String())
	}
}

// bucketFilesHolding names the objects with exactly these bytes.
func (p *place) bucketFilesHolding(body []byte) (names []string) {
	for n, content := range p.bucketFiles() {
		if content == string(body) {
			names = append(names, n)
		}
	}
	return names
}

// Paths that can't come back, since another owns the volume, leave a snapshot that is
// named.
func TestMount_Restore_OwnedPaths_NameTheSnapshot(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	if err := os.WriteFile(filepath.Join(mnt, "f"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.must("snapshot", "create", mnt, "good")
	p.kill(pid)
	status, _, errs := p.run("restore", p.url()+"@good", "f", "--keep", "mine")
	if status != 3 || !strings.Contains(errs, "nothing was restored, and snapshot mine of what is there was made") {
		t.Errorf("status %d: %s", status, errs)
	}
	if n := len(p.snapshots()); n != 2 {
		t.Errorf("%d snapshots", n)
	}
}
