package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// usualState makes the default state directory of the test's volume look like
// one that a mount of the given volume left.
func (p *place) usualState(a *app, volume string) string {
	p.t.Helper()
	t, err := a.resolve(p.url())
	if err != nil {
		p.t.Fatal(err)
	}
	dir, err := a.stateDir(t.url)
	if err != nil {
		p.t.Fatal(err)
	}
	p.leaveOwner(dir, volume)
	return dir
}

// leaveOwner makes a directory look like one that a mount of the given volume left.
func (p *place) leaveOwner(dir, volume string) {
	p.t.Helper()
	body := []byte(`{"format":1,"volume":"` + volume + `","journal":"","reigns":null,"crc32c":"00000000"}`)
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	body = append(body[:len(body)-10], fmt.Sprintf("%08x\"}\n", sum)...)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, ownerName), body, 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

// A bit of the volume's id flips in owner.json: a mount must not take the directory
// for another volume's and go on with an empty one.
func TestMount_Preflight_OwnerFileDamaged(t *testing.T) {
	p := newPlace(t)
	a := &app{base: p.path("base"), stderr: os.Stderr, lookup: os.LookupEnv}
	p.must("format", p.url())
	id := decode[volumeStatus](t, p.must("status", "--json", p.url())).Volume
	dir := p.usualState(a, id)
	name := filepath.Join(dir, ownerName)
	whole := readFile(t, name)
	for i := range len(whole) - 1 {
		b := []byte(whole)
		b[i] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if of, err := stateVolume(dir); err != nil || of != "" {
			t.Errorf("byte %d flipped: the directory is volume %q's, %v", i, of, err)
		}
		u, err := objstore.ParseURL(p.url())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := a.volumeState(u, id); err != nil || got != dir {
			t.Errorf("byte %d flipped: state directory %s, %v", i, got, err)
		}
	}
}

func TestApp_Destroy_TakesItsLocalStateAndNoOther(t *testing.T) {
	p := newPlace(t)
	a := &app{base: p.path("base"), lookup: os.LookupEnv}
	p.must("format", p.url())
	dir := p.usualState(a, "another")
	if out := p.must("destroy", "--yes", p.url()); strings.Contains(out, "local state") {
		t.Errorf("another volume's state: %s", out)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	p.must("format", p.url())
	id := decode[volumeStatus](t, p.must("status", "--json", p.url())).Volume
	p.usualState(a, id)
	if out := p.must("destroy", "--yes", p.url()); !strings.Contains(out, dir) {
		t.Errorf("its own: %s", out)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}

func TestMount_Preflight_StateOfAnEarlierVolumeAtTheURL(t *testing.T) {
	p := newPlace(t)
	a := &app{base: p.path("base"), stderr: os.Stderr, lookup: os.LookupEnv}
	p.must("format", p.url())
	id := decode[volumeStatus](t, p.must("status", "--json", p.url())).Volume
	dir := p.usualState(a, "another")
	if err := os.Mkdir(p.path("mnt"), 0o755); err != nil {
		t.Fatal(err)
	}
	to, err := a.resolve(p.url())
	if err != nil {
		t.Fatal(err)
	}
	o := &mountOptions{t: to, dir: p.path("mnt"), state: dir, usualState: true, foreground: true, readyFD: -1, logFile: filepath.Join(dir, logName)}
	if err := a.preflight(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if want := dir + "-" + id[:8]; o.state != want || o.logFile != filepath.Join(want, logName) {
		t.Errorf("%s and %s, want them in %s", o.state, o.logFile, want)
	}
	o.usualState, o.state = false, dir
	if err := a.preflight(t.Context(), o); err == nil || exitStatus(err) != exitUsage {
		t.Errorf("a directory that was named: %v", err)
	}
}

func TestApp_List_MissingNameAmongOthers(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	p.write("x", []byte("x"))
	p.must("put", p.url(), p.path("x"), "a")
	p.must("put", p.url(), p.path("x"), "b")
	status, out, errs := p.run("ls", p.url(), "a", "nosuch", "b")
	if status != exitFailed || out != "a\nb\n" || !strings.Contains(errs, "nosuch") {
		t.Errorf("%d %q %q", status, out, errs)
	}
}

func TestApp_Check_PastCommitCountsNoOrphans(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	p.write("x", []byte("x"))
	p.must("put", p.url(), p.path("x"), "a")
	if out := p.must("check", p.url()+"@1"); !strings.Contains(out, "0 orphans") || !strings.Contains(out, "no damage found") {
		t.Errorf("%s", out)
	}
}

func TestApp_CommandLine_SaysWhereTheHelpIs(t *testing.T) {
	p := newPlace(t)
	p.fails(2, "there is no command \"mout\": do you mean mount", "mout")
	p.fails(2, "see `cistern ls --help`", "ls", "--nosuch")
	p.fails(2, "see `cistern ls --help`", "ls")
	if out := p.must("--version"); !strings.Contains(out, version) {
		t.Errorf("%q", out)
	}
}

func TestCount_Plurals(t *testing.T) {
	for want, got := range map[string]string{
		"1 inode": count(1, "inode"), "0 inodes": count(0, "inode"), "2 patches": count(2, "patch"), "1 patch": count(1, "patch"),
		"1 directory": count(1, "directory"), "2 directories": count(2, "directory"), "0 entries": count(0, "entry"), "2 days": count(2, "day"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
