package main

import (
	"strings"
	"testing"
	"time"
)

func TestApp_WhatIsNotMeant_SaysSoInWordsAndFails(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.stdin = "x"
	p.must("put", u, "-", "a")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--offset x: is no number", []string{"cat", u, "a", "--offset", "x"}},
		{"--concurrency 99999999999999999999: is out of range", []string{"get", u, "a", "--concurrency", "99999999999999999999"}},
		{"there is no command \"foo\"", []string{"completion", "foo"}},
		{"is no mount's state directory", []string{"salvage", p.path()}},
		{"no such point", []string{"ls", u + "@99"}},
		{"no such point", []string{"restore", u + "@99"}},
		{"no such point", []string{"clone", u + "@99", p.at("c")}},
		{"no such point", []string{"ls", u + "@none"}},
		{"has nothing of 2020-01-01", []string{"ls", u + "@2020-01-01T00:00:00Z"}},
	} {
		p.fails(2, c.want, c.args...)
		if _, _, errs := p.run(c.args...); strings.Contains(errs, "strconv") {
			t.Errorf("%v: %s", c.args, errs)
		}
	}
	if out := p.must("completion"); !strings.Contains(out, "bash") {
		t.Errorf("completion: %q", out)
	}
}

// A time for people tells its zone.
func TestTimes_TellTheirZone(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.must("snapshot", "create", u, "s")
	zone, _ := time.Now().Zone()
	for _, args := range [][]string{{"log", u}, {"snapshot", "list", u}, {"snapshot", "show", u, "s"}, {"ls", "-l", u}} {
		if out := p.must(args...); !strings.Contains(out, time.Now().Format("2006-")) && args[0] != "ls" || strings.Count(out, " "+zone) == 0 && out != "" {
			t.Errorf("%v: %s", args, out)
		}
	}
}
