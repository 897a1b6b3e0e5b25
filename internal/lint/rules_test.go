package lint

import (
	"strings"
	"testing"
)

func TestCheckImport_Cases(t *testing.T) {
	for _, c := range []struct {
		from, to string
		inTest   bool
		ok       bool
	}{
		{"cmd/cistern", "gateway", false, true},
		{"cmd/cistern", "objstore/local", false, true},
		{"bench", "fuse", false, true},
		{"fuse", "gateway", false, true},
		{"gateway", "journal", false, true},
		{"gateway/commit", "gateway/cut", false, true},
		{"journal", "internal/vfs", false, true},
		{"objstore/local", "objstore", false, true},
		{"gateway", "fuse", false, false},
		{"journal", "cache", false, false},
		{"metadata", "objstore", false, false},
		{"internal/vfs", "journal", false, false},
		{"gateway", "objstore/local", false, false},
		{"objstore", "objstore/mem", false, false},
		{"cmd/cistern", "bench", false, false},
		{"gateway", "internal/testenv", false, false},
		{"gateway", "objstore/mem", true, true},
		{"objstore/objstoretest", "objstore/mem", false, true},
		{"somewhere", "journal", false, false},
	} {
		if err := CheckImport(c.from, c.to, c.inTest); (err == nil) != c.ok {
			t.Errorf("%s → %s (test %v): %v", c.from, c.to, c.inTest, err)
		}
	}
}

func TestCheckSource_FindsEachOffence(t *testing.T) {
	for _, c := range []struct{ folder, name, src, want string }{
		{"journal", "a.go", "package journal\nfunc init() {}", "init function"},
		{"journal", "a.go", "package journal\nfunc f() { os.Exit(1) }", "os.Exit in a library"},
		{"cmd/cistern", "main.go", "package main\nfunc main() { log.Fatalf(\"x\") }", "log.Fatalf"},
		{"journal", "a_test.go", "package journal\nfunc TestA(t *testing.T) { t.Skip() }", "t.Skip"},
		{"cmd/cistern", "main.go", "package main\nfunc main() { os.Exit(1) }", ""},
		{"journal", "a.go", "package journal\nfunc (x *t) init() {}", ""},
		{"internal/testenv", "skip.go", "package testenv\nfunc f(t testing.TB) { t.Skip() }", ""},
	} {
		found, err := CheckSource(c.folder, c.name, []byte(c.src))
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(found, "\n"); (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
			t.Errorf("%s %q: found %q, want %q", c.folder, c.src, all, c.want)
		}
	}
}

func TestCheckText_FindsWords(t *testing.T) {
	text := "fine\n// TO" + "DO: mend this\nTO" + "DOS are a word\n"
	found := CheckText("a.go", text)
	if len(found) != 1 || !strings.HasPrefix(found[0], "a.go:2:") {
		t.Errorf("found %q", found)
	}
}
