package testenv

import (
	"runtime"
	"testing"
)

// recorder stands in for a test and notes how it was ended.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Skip(...any)           { r.skipped = true; runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; runtime.Goexit() }

func TestSkipUnless_SkipsOnlyOutsideCI(t *testing.T) {
	for _, c := range []struct {
		ci              string
		ok              bool
		skipped, failed bool
	}{
		{"", true, false, false}, {"true", true, false, false},
		{"", false, true, false}, {"true", false, false, true},
	} {
		t.Setenv("CI", c.ci)
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() { // Goexit ends the goroutine, as the real Skip and Fatal do
			defer close(done)
			SkipUnless(r, c.ok, "a reason")
		}()
		<-done
		if r.skipped != c.skipped || r.failed != c.failed {
			t.Errorf("CI=%q ok=%v: skipped %v, failed %v", c.ci, c.ok, r.skipped, r.failed)
		}
	}
}

func TestFreePort_IsAPort(t *testing.T) {
	if p := FreePort(t); p < 1024 || p > 65535 {
		t.Errorf("port %d", p)
	}
}
