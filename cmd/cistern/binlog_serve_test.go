package main

import (
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
