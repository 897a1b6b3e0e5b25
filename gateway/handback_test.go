package gateway

import (
	"testing"
	"testing/synctest"
)

// wantNothingAside fails where a machine has set a journal aside.
func wantNothingAside(t *testing.T, l *lab, when string) {
	t.Helper()
	if _, err := l.disk.ReadDir(l.dir + "/quarantine"); err == nil {
		t.Errorf("%s: something was set aside", when)
	}
}

// A volume that two machines give each other in turn: each finds what the other wrote,
// and its own journal, which the bucket has all of, is not kept for a salvage.
func TestVolume_Open_HandedOverAndBack_NothingIsSetAside(t *testing.T) {
	for _, killed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			one := newLab(t, 1, 8192)
			two := one.machine(2)
			f := files{}
			for round := range 6 {
				l, name := one, "one"
				if round%2 == 1 {
					l, name = two, "two"
				}
				v := l.mustMount(func(o *Options) { o.Takeover = killed })
				wantFiles(t, v, f, name)
				wantNothingAside(t, l, name)
				f.put(t, v, name, l.noise(20000), 1000*round)
				f.put(t, v, "both", l.noise(700), 100*round)
				mustCommit(t, v)
				if killed {
					l.kill(v)
				} else {
					mustClose(t, v)
				}
			}
			v := two.mustMount(func(o *Options) { o.Takeover = killed })
			wantFiles(t, v, f, "at the end")
			wantCheckClean(t, v)
			mustClose(t, v)
		})
	}
}

// The mount that finds its journal needless dies at every step of that, and the next
// one has everything and keeps nothing aside.
func TestVolume_Open_HandedBack_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newLab(t, 1, 8192)
		f := files{}
		v := one.mustMount(nil)
		f.put(t, v, "one", one.noise(20000), 0)
		mustClose(t, v)
		two := one.machine(2)
		v = two.mustMount(nil)
		f.put(t, v, "two", two.noise(9000), 0)
		mustClose(t, v)
		one.walk(t, true, nil, func(l *lab, when string) {
			v, err := l.mount(l.bucket, nil)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			wantFiles(t, v, f, when)
			wantNothingAside(t, l, when)
			mustClose(t, v)
		})
	})
}
