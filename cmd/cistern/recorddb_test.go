package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
)

// database puts a database directory of recorded binary logs into a directory.
func (p *place) database(dir string) {
	p.t.Helper()
	p.write(dir+"/ibdata1", []byte("data"))
	p.write(dir+"/mysql-bin.index", []byte("./mysql-bin.000001\n./mysql-bin.000002\n"))
	for _, name := range []string{"mysql-bin.000001", "mysql-bin.000002"} {
		p.write(dir+"/"+name, p.logBytes("m1011", name))
	}
}

// wantDatabase makes sure that a snapshot says in every place where its database is, as
// reading its files does.
func (p *place) wantDatabase(name string, made *snapshotLine) {
	p.t.Helper()
	a := &app{stderr: os.Stderr, lookup: func(string) (string, bool) { return "", false }}
	t, err := a.resolve(p.url() + "@" + name)
	if err != nil {
		p.t.Fatal(err)
	}
	read, err := a.databaseAt(p.t.Context(), t)
	if err != nil || read == nil || read.File != "mysql-bin.000002" || read.GTID == "" {
		p.t.Fatalf("the files of %s say %+v, %v", name, read, err)
	}
	want := &database{Dir: read.Dir, Server: read.Server, File: read.File, Offset: read.Offset, GTID: read.GTID}
	if !reflect.DeepEqual(made.Database, want) {
		p.t.Errorf("create of %s: %+v, want %+v", name, made.Database, want)
	}
	for _, l := range p.snapshots() {
		if l.Name == name && !reflect.DeepEqual(l.Database, want) {
			p.t.Errorf("list of %s: %+v, want %+v", name, l.Database, want)
		}
	}
	if got := decode[snapshotShown](p.t, p.must("snapshot", "show", "--json", p.url(), name)); !reflect.DeepEqual(got.Database, want) {
		p.t.Errorf("show of %s: %+v, want %+v", name, got.Database, want)
	}
	line := "database    " + want.String() + "\n"
	if got := p.must("snapshot", "show", p.url(), name); !strings.Contains(got, line) {
		p.t.Errorf("show of %s: %q, want %q", name, got, line)
	}
}

func TestApp_Snapshot_RecordsTheDatabase(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url(), "--object-size", "1M")
	create := func(name string) *snapshotLine { return p.snapshotNow(p.url(), name) }
	if l := create("empty"); l.Database != nil {
		t.Errorf("of an empty volume: %+v", l.Database)
	}
	if got := p.must("snapshot", "show", p.url(), "empty"); !strings.Contains(got, "none was found") {
		t.Errorf("show: %q", got)
	}
	p.database("data")
	p.must("put", p.url(), p.path("data", "ibdata1"), "db/", "-p")
	for _, name := range []string{"mysql-bin.index", "mysql-bin.000001", "mysql-bin.000002"} {
		p.must("put", p.url(), p.path("data", name), "db/")
	}
	p.wantDatabase("one", create("one"))
	p.must("rm", "-r", p.url(), "db")
	if l := create("gone"); l.Database != nil {
		t.Errorf("without the directory: %+v", l.Database)
	}
}

// snapshotNow makes a snapshot while the clock stands still, so that no look takes too
// long.
func (p *place) snapshotNow(url, name string, more ...string) *snapshotLine {
	p.t.Helper()
	var l snapshotLine
	synctest.Test(p.t, func(t *testing.T) {
		l = decode[snapshotLine](t, p.must(append([]string{"snapshot", "create", "--json", url, name}, more...)...))
	})
	return &l
}

func TestMount_Snapshot_RecordsTheDatabase(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount("--commit-interval", "1h")
	p.database("mnt")
	whole := p.logBytes("m1011", "mysql-bin.000002")
	log := p.write("mnt/mysql-bin.000002", whole[:len(whole)/2])
	var offsets []int64
	create := func(name string, more ...string) {
		t.Helper()
		var l snapshotLine
		for try := 0; l.Database == nil && try < 50; try++ { // a look may take too long
			if try > 0 {
				p.must("snapshot", "delete", mnt, name)
			}
			l = decode[snapshotLine](t, p.must(append([]string{"snapshot", "create", "--json", mnt, name}, more...)...))
		}
		if p.wantDatabase(name, &l); l.Database != nil {
			offsets = append(offsets, l.Database.Offset)
		}
	}
	create("one")
	// What the log has got since the last commit is not in it, and not in what it says.
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(whole[len(whole)/2:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	create("two", "--last-commit")
	create("three")
	if len(offsets) != 3 || offsets[0] != offsets[1] || offsets[1] >= offsets[2] {
		t.Errorf("logs end at %v", offsets)
	}
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
}

// The names and positions that an encrypted volume hides are not told by its pins.
func TestApp_Snapshot_EncryptedVolumeRecordsNoDatabase(t *testing.T) {
	p := newPlace(t)
	key := p.write("key", []byte(strings.Repeat("5a", 32)))
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	for url, names := range map[string]string{"file://" + p.path("hidden"): "true", "file://" + p.path("readable"): "false"} {
		p.must("format", url, "--encrypt-key-file", key, "--encrypt-names="+names)
		p.database("data")
		for _, name := range []string{"ibdata1", "mysql-bin.index", "mysql-bin.000001", "mysql-bin.000002"} {
			p.must("put", url, p.path("data", name), "/", "--encrypt-key-file", key)
		}
		l := p.snapshotNow(url, "s", "--encrypt-key-file", key)
		if (l.Database == nil) != (names == "true") {
			t.Errorf("--encrypt-names=%s: %+v", names, l.Database)
		}
		if got := p.must("snapshot", "show", url, "s", "--encrypt-key-file", key); !strings.Contains(got, "at mysql-bin.000002:") {
			t.Errorf("--encrypt-names=%s: show: %q", names, got)
		}
	}
}
