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
		{"there is no command \"csh\"", []string{"completion", "csh"}},
		{"cistern has no command \"nosuch\"", []string{"help", "nosuch"}},
		{"cistern snapshot has no command \"nosuch\"", []string{"help", "snapshot", "nosuch"}},
		{"cistern ls has no command \"more\"", []string{"help", "ls", "more"}},
		{"--depth -1: must not be negative", []string{"du", "-d", "-1", u}},
		{"--length -2: must not be negative", []string{"cat", "--length", "-2", u, "a"}},
		{"--offset -1 ", []string{"cat", "--offset", "-1", u, "a"}},
		{"is no mount's state directory", []string{"salvage", p.path()}},
		{"no such point", []string{"ls", u + "@99"}},
		{"no such point", []string{"restore", u + "@99"}},
		{"no such point", []string{"clone", u + "@99", p.at("c")}},
		{"no such point", []string{"ls", u + "@none"}},
		{"no such point", []string{"dump", "commit", u, "99"}},
		{"no such point", []string{"dump", "manifest", u, "99"}},
		{"has nothing of 2020-01-01", []string{"ls", u + "@2020-01-01T00:00:00Z"}},
	} {
		p.fails(2, c.want, c.args...)
		if _, _, errs := p.run(c.args...); strings.Contains(errs, "strconv") {
			t.Errorf("%v: %s", c.args, errs)
		}
	}
	// No group of commands takes a word for granted that is none of its commands.
	for _, c := range (&app{}).root().Commands() {
		if c.HasSubCommands() && c.Name() != "export" && c.Name() != "clone" {
			p.fails(2, "nosuch", c.Name(), "nosuch")
		}
		if out := p.must("help", c.Name()); !strings.Contains(out, c.Name()) {
			t.Errorf("help %s: %q", c.Name(), out)
		}
	}
	if out := p.must("help"); !strings.Contains(out, "snapshot") {
		t.Errorf("help: %q", out)
	}
	if long, short := p.must("ls", "-l", "--slots", u), p.must("ls", "--slots", u); long != short || !strings.Contains(short, "[1 slot") {
		t.Errorf("ls --slots: %q and %q", long, short)
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
