package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/testenv"
)

// advice is what a message tells to type, which names things anew.
var advice = regexp.MustCompile("`[^`]*`")

// saidTwice returns a path, URL or object's key that a message names more than once.
func saidTwice(message string) string {
	seen := map[string]bool{}
	for _, word := range strings.Fields(advice.ReplaceAllString(message, "")) {
		word = strings.Trim(word, `:;,."'()`)
		if len(word) < 6 || !strings.ContainsAny(word, "/_") || strings.HasPrefix(word, "mariadb") {
			continue
		}
		for other := range seen {
			// A key at the end of an object's URL or path is the same object.
			if strings.HasSuffix(word, other) || strings.HasSuffix(other, word) {
				return word
			}
		}
		seen[word] = true
	}
	return ""
}

func TestSaidTwice_Words(t *testing.T) {
	for message, want := range map[string]string{
		"read objects/a_0: get /b/objects/a_0: denied":           "/b/objects/a_0",
		"file:///b is gone: `cistern destroy file:///b` deletes": "",
		"/a: object does not exist: get /b/objects/x_1":          "",
	} {
		if got := saidTwice(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

// wantOnce runs a command that has to fail, and in whose sentence everything has to be
// named once.
func (p *place) wantOnce(args ...string) {
	p.t.Helper()
	status, _, errs := p.run(args...)
	if status == exitDone || errs == "" {
		p.t.Errorf("%v: status %d, %q", args, status, errs)
	}
	for line := range strings.Lines(errs) {
		if word := saidTwice(line); word != "" {
			p.t.Errorf("%v names %s more than once: %s", args, word, line)
		}
	}
}

// readers are commands that read all kinds of objects of a volume, and change none.
func (p *place) readers(u string) [][]string {
	return [][]string{
		{"status", u}, {"ls", u}, {"cat", u, "big"}, {"get", u, "/", p.path("all")}, {"log", u}, {"check", "--data", u}, {"snapshot", "list", u}, {"snapshot", "show", u, "kept"},
		{"clone", u, "--to", p.path("dir")}, {"dump", "commit", u}, {"dump", "segment", u}, {"dump", "lease", u}, {"dump", "pin", u}, {"cat", u + "@1", "big"}, {"format", u},
	}
}

// TestErrors_S3_NameEachThingOnce lets every request for one kind of object fail, in
// every way, and looks at what each command says.
func TestErrors_S3_NameEachThingOnce(t *testing.T) {
	p, _, proxy := faulty(t)
	p.must("format", awayURL, "--object-size", "1M")
	p.write("local", random(2<<20+9))
	p.must("put", awayURL, p.path("local"), "big")
	p.must("snapshot", "create", awayURL, "kept")
	for _, fault := range []faultproxy.Fault{
		{Kind: faultproxy.Status, Status: 403, Code: "AccessDenied"}, {Kind: faultproxy.Status, Status: 404, Code: "NoSuchKey"}, {Kind: faultproxy.Status, Status: 404, Code: "NoSuchBucket"},
	} {
		for _, kind := range []string{"volume.json", "lease.json", "commits/", "objects/", "segments/", "pins/", ""} {
			if fault.Code == "NoSuchKey" && kind == "" {
				continue // nothing is there: no volume
			}
			proxy.Choose(func(r *http.Request) faultproxy.Fault {
				if strings.Contains(r.URL.Path+r.URL.Query().Get("prefix"), kind) {
					return fault
				}
				return faultproxy.Fault{}
			})
			for _, args := range p.readers(awayURL) {
				// What needs nothing of that kind comes to its end.
				_, _, errs := p.run(args...)
				for line := range strings.Lines(errs) {
					if word := saidTwice(line); word != "" {
						t.Errorf("%s %s: %v names %s more than once: %s", fault.Code, kind, args, word, line)
					}
				}
			}
			proxy.Choose(nil)
		}
	}
}

// TestErrors_Directory_NameEachThingOnce is the same for a directory, by what its
// owner's hand can do to it.
func TestErrors_Directory_NameEachThingOnce(t *testing.T) {
	testenv.Long(t)
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	p.write("local", random(2<<20+9))
	p.must("put", u, p.path("local"), "big")
	p.must("snapshot", "create", u, "kept")
	if err := os.Mkdir(p.path("mnt"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"volume.json", "lease.json", "commits/*/*", "manifests/*/*", "objects/*", "segments/*/*", "pins/*"} {
		names, err := filepath.Glob(p.path("bucket", pattern))
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			continue // there is no manifest yet
		}
		last := names[len(names)-1]
		whole := readFile(t, last)
		for what, hurt := range map[string]func() error{
			"cut":     func() error { return os.WriteFile(last, []byte(whole[:len(whole)/2]), 0o600) },
			"missing": func() error { return os.Remove(last) },
			"a loop":  func() error { return errors.Join(os.Remove(last), os.Symlink(last, last)) },
		} {
			if err := hurt(); err != nil {
				t.Fatal(err)
			}
			for _, args := range p.readers(u) {
				_, _, errs := p.run(args...)
				for line := range strings.Lines(errs) {
					if word := saidTwice(line); word != "" {
						t.Errorf("%s %s: %v names %s more than once: %s", pattern, what, args, word, line)
					}
				}
			}
			// With its last key a folder goes, too.
			if err := errors.Join(os.RemoveAll(last), os.MkdirAll(filepath.Dir(last), 0o755)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(last, []byte(whole), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, args := range [][]string{
		{"get", u, "none", p.path("x")}, {"put", u, p.path("none"), "x"}, {"put", u, p.path("local"), "no/x"}, {"ls", u, "none"}, {"ls", u + "@99"}, {"ls", u + "@none"}, {"stat", u, "none"},
		{"ls", "file://" + p.path("gone")}, {"status", "file://" + p.path("gone")}, {"mount", "file://" + p.path("gone"), p.path("mnt")}, {"mount", u, p.path("no/mnt")},
		{"snapshot", "show", u, "none"}, {"snapshot", "create", u, "kept"}, {"clone", u, u}, {"clone", u, "--to", p.dir}, {"restore", u + "@none"},
		{"format", u}, {"salvage", p.path("none")}, {"salvage", p.dir}, {"export", u, p.dir}, {"umount", p.path("mnt")}, {"handover", p.path("mnt")}, {"dump", "journal", p.dir},
		{"config", "check", p.path("none")}, {"ls", "--config", p.path("none"), u}, {"ls", "--encrypt-key-file", p.path("none"), u}, {"binlog", "list", u}, {"binlog", "fetch", u, p.path("none")},
		{"probe", "file://" + p.path("no/bucket")}, {"format", "file://" + p.path("no/bucket")}, {"import", "columnstore", "--config", p.path("none")}, {"mount", u, p.path("mnt"), "--state", p.path("local")},
	} {
		p.wantOnce(args...)
	}
}
