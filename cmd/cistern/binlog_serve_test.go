package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/binlogfs"
)

func TestParseUsers_Cases(t *testing.T) {
	users, err := parseUsers("# who\n\nrepl:native:read:a:b \r\nadmin:caching_sha2:manage:\n")
	if err != nil || len(users) != 2 || users[0] != (binlogfs.User{Name: "repl", Password: "a:b ", Auth: binlogfs.AuthNative}) ||
		users[1] != (binlogfs.User{Name: "admin", Auth: binlogfs.AuthCachingSHA2, Manage: true}) {
		t.Errorf("%+v, %v", users, err)
	}
	for _, text := range []string{"", "# nobody", "repl:secret", ":native:read:secret", "repl:md5:read:secret", "repl:native:all:secret"} {
		if _, err := parseUsers(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadSecret_OthersCanGetAtIt_Refused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "users")
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o644: false, 0o620: false} {
		if err := os.WriteFile(name, []byte("a:native:read:b\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		o := serveOptions{users: name, most: 1}
		_, err := o.options()
		_, perr := (&app{}).sourcePassword(name)()
		if (err == nil) != want || (perr == nil) != want {
			t.Errorf("mode %04o: %v; %v", mode, err, perr)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}
