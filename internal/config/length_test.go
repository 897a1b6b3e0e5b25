package config

import (
	"testing"
	"time"
)

func TestParseLength_Cases(t *testing.T) {
	const day = 24 * time.Hour
	for s, want := range map[string]time.Duration{
		"0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * day, "2w": 14 * day, "1w1d1h": 8*day + time.Hour, "1d12h": 36 * time.Hour, "500ms": 500 * time.Millisecond,
	} {
		got, err := ParseLength(s)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", s, got, err)
		}
		if back, err := ParseLength(FormatLength(want)); err != nil || back != want {
			t.Errorf("%v is written as %q, which is %v, %v", want, FormatLength(want), back, err)
		}
	}
	for _, s := range []string{"", "7", "d", "-1d", "-5m", "1d-5m", "1.5d", "1d1w", "9999999w", "99999999999999999999d", "1000000h", "7 d", "1y", "5200w36400d2000000h"} {
		if got, err := ParseLength(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Hour: "1h", 90 * time.Minute: "1h30m", 14 * day: "2w", 8 * day: "8d", 36 * time.Hour: "1d12h", 0: "0s"} {
		if got := FormatLength(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestLength_Set_Bounds(t *testing.T) {
	l := Length{Min: time.Hour, Max: 48 * time.Hour}
	if err := l.Set("1d"); err != nil || l.D != 24*time.Hour || l.String() != "1d" {
		t.Errorf("%v, %v", l, err)
	}
	for _, s := range []string{"1m", "3d"} {
		if err := l.Set(s); err == nil || l.D != 24*time.Hour {
			t.Errorf("%s: %v, %v", s, l.D, err)
		}
	}
}
