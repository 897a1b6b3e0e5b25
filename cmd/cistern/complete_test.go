package main

import (
	"strings"
	"testing"
)

func TestApp_Complete_ChoicesOfFlags(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"mount", "--limit-reached", ""}, "wait\nenospc\n"},
		{[]string{"mount", "--durability", ""}, "local\nbucket\n"},
		{[]string{"mount", "--on-lease-lost", ""}, "continue\nstop\n"},
	} {
		status, out, _ := p.run(append([]string{"__complete"}, c.args...)...)
		if status != 0 || !strings.HasPrefix(out, c.want) {
			t.Errorf("%v: %d %q, want %q", c.args, status, out, c.want)
		}
	}
}

func TestMountPoints_OnlyVolumes(t *testing.T) {
	const table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:40 / /a\\040b rw - fuse.cistern file:///x rw\nbad\n"
	if got := mountPoints(table); len(got) != 1 || got[0] != "/a b" {
		t.Errorf("%q", got)
	}
}
