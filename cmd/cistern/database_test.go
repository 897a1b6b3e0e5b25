package main

import (
	"strings"
	"testing"
)

// A snapshot tells where its database goes on: by the last binary log that has
// anything, and not at all where only the server can read it.
func TestApp_SnapshotShow_WhereTheDatabaseGoesOn(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	put := func(name string, body []byte) {
		t.Helper()
		p.stdin = string(body)
		p.must("put", "-p", u, "-", name)
	}
	n := 0
	shows := func(want string) {
		t.Helper()
		n++
		name := "s" + strings.Repeat("x", n)
		p.must("snapshot", "create", u, name)
		if got := p.must("snapshot", "show", u, name); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	shows("none was found")
	put("data/ibdata1", []byte("pages"))
	shows("in /data, without a binary log beside its data")
	first, second := p.logBytes("m118", "mysql-bin.000001"), p.logBytes("m118", "mysql-bin.000002")
	put("data/mysql-bin.index", []byte("./mysql-bin.000001\n/elsewhere/mysql-bin.000002\n"))
	put("data/mysql-bin.000001", first)
	put("data/mysql-bin.000002", second)
	shows("in /data, at mysql-bin.000002:")
	put("data/mysql-bin.000002", nil)
	shows("in /data, at mysql-bin.000001:")
	put("data/mysql-bin.000002", append([]byte("\xfdbin"), second[4:]...))
	shows("in /data, with an encrypted binary log")
}
