package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// lengthUnits are the units that time.ParseDuration does not know, of 24 hours and
// of 7 times that.
var lengthUnits = []struct {
	unit string
	of   time.Duration
}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}}

// mostLength bounds a length of time: more is a mistake.
const mostLength = 100 * 365 * 24 * time.Hour

// ParseLength reads a length of time that is not negative: what time.ParseDuration
// reads, with whole weeks and days before it or alone, as in 2w, 7d, 1d12h, 90s.
func ParseLength(s string) (time.Duration, error) {
	var d time.Duration
	rest := s
	for _, u := range lengthUnits {
		digits, after, found := strings.Cut(rest, u.unit)
		if !found || !regexp.MustCompile(`^[0-9]+$`).MatchString(digits) {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > uint64(mostLength/u.of) {
			return 0, tooLong(s)
		}
		d += time.Duration(n) * u.of
		rest = after
	}
	if rest == "" && s != "" {
		return d, within(s, d)
	}
	more, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("%q is no length of time like 90s, 15m, 36h, 7d or 2w", s)
	}
	if more < 0 {
		return 0, errors.New("a length of time can't be negative")
	}
	if more > mostLength { // the sum might not fit
		return 0, tooLong(s)
	}
	return d + more, within(s, d+more)
}

func within(s string, d time.Duration) error {
	if d > mostLength {
		return tooLong(s)
	}
	return nil
}

func tooLong(s string) error { return fmt.Errorf("%q is more than a hundred years", s) }

// FormatLength writes a length as ParseLength reads it, in the largest units.
func FormatLength(d time.Duration) string {
	var b strings.Builder
	for _, u := range lengthUnits {
		if n := d / u.of; n > 0 && (u.unit != "w" || d%u.of == 0) {
			fmt.Fprintf(&b, "%d%s", n, u.unit)
			d %= u.of
		}
	}
	if d == 0 && b.Len() > 0 {
		return b.String()
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = rest[:len(rest)-2]
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = rest[:len(rest)-2]
	}
	return b.String() + rest
}

// Length is a flag's value: a length of time from Min to Max. The zero value of
// Max is no upper bound.
type Length struct {
	D, Min, Max time.Duration
}

// Set reads the value.
func (l *Length) Set(s string) error {
	d, err := ParseLength(s)
	switch {
	case err != nil:
		return err
	case d < l.Min, l.Max > 0 && d > l.Max:
		return fmt.Errorf("it must be %s to %s", FormatLength(l.Min), FormatLength(max(l.Max, l.Min)))
	}
	l.D = d
	return nil
}

// String is empty for zero, so that the help shows no default that is none.
func (l *Length) String() string {
	if l.D == 0 {
		return ""
	}
	return FormatLength(l.D)
}

// Type is what the help calls the value.
func (*Length) Type() string { return "time" }
