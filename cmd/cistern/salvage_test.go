package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
)

// fencedPlace is a mount that was taken over while it had much that was not
// committed: its state directory is left unmounted.
func fencedPlace(t *testing.T) (p *place, big []byte) {
	t.Helper()
	p, mnt := mountPlace(t)
	pid := p.mount("--commit-interval", "1h")
	big = random(2<<20 + 99)
	write := func(name string, body []byte) {
		if err := os.WriteFile(filepath.Join(mnt, name), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("committed", big)
	write("doomed", []byte("d"))
	p.must("sync", mnt)
	f, err := os.OpenFile(filepath.Join(mnt, "committed"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("changed"), 1<<20); err != nil {
		t.Fatal(err)
	}
	copy(big[1<<20:], "changed")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(mnt, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("dir/born", big)
	if err := os.Remove(filepath.Join(mnt, "doomed")); err != nil {
		t.Fatal(err)
	}
	other := p.path("other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("mount", p.url(), other, "--state", p.path("other state"), "--takeover")
	p.mustBinary("umount", other)
	p.fails(3, "another writer owns", "sync", mnt)
	p.fails(3, "in use by a mount", "salvage", p.path("state"))
	status, _, errs := p.binary("umount", mnt)
	checkFailure(t, []string{"umount"}, 3, "kept for `cistern salvage "+p.path("state")+"`; it lies in "+p.path("state", "quarantine")+"/", status, errs)
	p.unmounted(pid)
	return p, big
}

func TestSalvage_TakenOverMount_BringsFilesBack(t *testing.T) {
	p, big := fencedPlace(t)
	state := p.path("state")
	out := p.must("salvage", state)
	for _, want := range []string{"after commit", "file committed: 1 write of 7 B in 1 range", "file dir/born: ", "unlink doomed", "mkdir dir", "set aside because"} {
		if !strings.Contains(out, want) {
			t.Errorf("salvage lacks %q:\n%s", want, out)
		}
	}
	r := decode[[]*gateway.SalvageReport](t, p.must("salvage", "--json", "--to", p.path("back"), state))
	if len(r) != 1 || !r[0].BaseRead || r[0].InPlace {
		t.Fatalf("%+v", r)
	}
	for _, name := range []string{"committed", "dir/born"} {
		if got := readFile(t, p.path("back", r[0].ID, "files", name)); got != string(big) {
			t.Errorf("%s comes back with other bytes", name)
		}
	}
	if _, err := os.Stat(p.path("back", r[0].ID, "report.json")); err != nil {
		t.Error(err)
	}
	p.fails(2, "is not empty", "salvage", "--to", p.path("back"), state)

	// Without the bucket: what was written, and what of it is real.
	if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
		t.Fatal(err)
	}
	status, _, errs := p.run("salvage", "--to", p.path("ranges"), state)
	if status != 0 || !strings.Contains(errs, "only the bytes that were written are known") {
		t.Errorf("without the bucket: %d %q", status, errs)
	}
	p.must("salvage", "--no-bucket", "--list", state)
	partial, whole := 0, 0
	err := filepath.WalkDir(p.path("ranges"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch body := readFile(t, path); {
		case strings.Contains(path, "/ranges/") && strings.HasSuffix(path, ".json") && strings.Contains(path, r[0].ID+"/ranges/"):
			partial++
			f := decode[gateway.SalvagedFile](t, body)
			if len(f.Ranges) != 1 || f.Ranges[0] != (gateway.Range{Off: 1 << 20, Len: 7}) || len(f.Missing) != 1 || f.Missing[0].Len != 1<<20 {
				t.Errorf("%+v", f)
			}
		case body == string(big):
			whole++
		}
		return nil
	})
	if err != nil || partial != 1 || whole != 1 {
		t.Errorf("%d files are partial, %d whole, %v", partial, whole, err)
	}
	if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
		t.Fatal(err)
	}

	p.mount("--wait", "0s") // the next mount goes on beside it
	p.fails(3, "in use by a mount", "salvage", state, "--journal", ownJournal(t, state))
	p.must("salvage", state)
	p.stdin = "no\n"
	if status, _, _ := p.run("salvage", "--discard", state); status != 2 {
		t.Errorf("discard without a yes: %d", status)
	}
	p.must("salvage", "--discard", "--yes", state)
	if _, err := os.Stat(r[0].Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was discarded is there: %v", err)
	}
	if out := p.must("salvage", "--discard", "--yes", state); !strings.Contains(out, "nothing was set aside") {
		t.Errorf("%q", out)
	}
	p.mustBinary("umount", p.path("mnt"))
}

func ownJournal(t *testing.T, state string) string {
	t.Helper()
	return decode[struct {
		Journal string `json:"journal"`
	}](t, readFile(t, filepath.Join(state, "owner.json"))).Journal
}

func TestSalvage_DamagedCache_SaysSoAndBringsTheRest(t *testing.T) {
	p, big := fencedPlace(t)
	n := 0
	err := filepath.WalkDir(p.path("state", "quarantine"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "/cache/") {
			return err
		}
		body := []byte(readFile(t, path))
		if len(body) < 1<<20 {
			return nil
		}
		n++
		body[500000] ^= 1
		return os.WriteFile(path, body, 0o600)
	})
	if err != nil || n == 0 {
		t.Fatalf("%d cache files, %v", n, err)
	}
	status, out, errs := p.run("salvage", "--to", p.path("back"), p.path("state"))
	if status != 4 || !strings.Contains(out, "problem: bytes") || !strings.Contains(errs, "not everything") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	list, err := os.ReadDir(p.path("back"))
	if err != nil || len(list) != 1 {
		t.Fatal(err)
	}
	if got := readFile(t, p.path("back", list[0].Name(), "files", "committed")); got != string(big) {
		t.Error("the file that is not damaged differs")
	}
	if got := readFile(t, p.path("back", list[0].Name(), "files", "dir", "born")); len(got) != len(big) || got[1<<20:] != string(big[1<<20:]) {
		t.Error("the damaged file lacks what is not damaged")
	}
}

func TestSalvage_BadInput_IsRefused(t *testing.T) {
	p := newPlace(t)
	p.fails(2, "no such state directory", "salvage", p.path("none"))
	dir := p.path("empty")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.fails(2, "is no mount's state directory", "salvage", dir)
	if err := os.WriteFile(filepath.Join(dir, "owner.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := p.must("salvage", dir); !strings.Contains(out, "nothing was set aside") {
		t.Errorf("%q", out)
	}
	p.fails(2, "choose one", "salvage", dir, "--list", "--discard")
	p.fails(2, "goes with --discard", "salvage", dir, "--yes")
	p.fails(2, "holds no journal", "salvage", dir, "--journal", "abc")
}
