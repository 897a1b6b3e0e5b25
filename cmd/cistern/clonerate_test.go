package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// --bandwidth holds every way of cloning to its rate, each way, and nothing else does.
// The clock stands still but where something waits for it: what passes is what the
// limit asked for.
func TestApp_Clone_Bandwidth_IsTheRate(t *testing.T) {
	const bytesPerSecond, total = 1 << 20, 8 << 20
	p := newPlace(t)
	p.must("format", p.url(), "--object-size", "1M")
	p.must("put", p.url(), p.write("local", random(total)), "file")
	p.must("clone", p.url(), p.at("shares"))
	p.must("clone", p.url(), p.at("shares2"))
	took := func(args ...string) (d time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			status, _, errs := p.run(args...)
			if d = time.Since(start); status != 0 {
				t.Errorf("%v: %d, %s", args, status, errs)
			}
		})
		return d
	}
	whole := time.Duration(total/bytesPerSecond) * time.Second
	for name, args := range map[string][]string{
		"copy":   {"clone", p.url(), p.at("copy"), "--copy"},
		"to":     {"clone", p.url(), "--to", p.path("to")},
		"detach": {"clone", "--detach", p.at("shares")},
	} {
		// Down and up at the same time or one after the other, with what the documents
		// take; a tenth of a second's bytes may go at once.
		d := took(append(args, "--bandwidth", "1M")...)
		if d < whole-100*time.Millisecond || d > 2*whole+time.Second {
			t.Errorf("%s: %d bytes at %d a second took %v", name, total, bytesPerSecond, d)
		}
		t.Logf("%s: %v", name, d)
	}
	for name, args := range map[string][]string{
		"copy":   {"clone", p.url(), p.at("copy2"), "--copy"},
		"to":     {"clone", p.url(), "--to", p.path("to2")},
		"detach": {"clone", "--detach", p.at("shares2")},
	} {
		if d := took(args...); d > time.Second {
			t.Errorf("%s without a limit took %v", name, d)
		}
	}
	if !bytes.Equal([]byte(readFile(t, p.path("to", "file"))), random(total)) {
		t.Error("other bytes")
	}
}
