package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize reads a size in bytes: a positive whole number, and K, M, G or T in
// either case, with B or iB after it or not. All are powers of two.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	shift, ok := map[string]uint{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20,
		"g": 30, "gb": 30, "gib": 30, "t": 40, "tb": 40, "tib": 40,
	}[strings.ToLower(s[len(digits):])]
	switch {
	case s == "":
		return 0, errors.New("it is empty: give a size like 500M, 2G or 1T")
	case strings.HasPrefix(s, "-"):
		return 0, errors.New("a size can't be negative")
	case !ok:
		return 0, fmt.Errorf("unknown unit %q: use K, M, G or T", s[len(digits):])
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxInt64>>shift:
		return 0, errors.New("it is larger than any disk")
	case err != nil:
		return 0, errors.New("it is not a whole number with a unit, like 500M, 2G or 1T")
	case n == 0:
		return 0, errors.New("a size must be more than zero")
	}
	return int64(n) << shift, nil
}

// FormatSize writes a size for people, with at most one digit after the point.
func FormatSize(n int64) string {
	const units = "KMGTPE"
	if n < 1024 && n > -1024 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n)
	unit := -1
	for math.Abs(f) >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[unit])
}

// Size is a flag's value: bytes from Min to Max. The zero value of Max is no
// upper bound.
type Size struct {
	Bytes, Min, Max int64
}

// Set reads the value.
func (s *Size) Set(text string) error {
	n, err := ParseSize(text)
	switch {
	case err != nil:
		return err
	case n < s.Min:
		return fmt.Errorf("it must be at least %s", FormatSize(s.Min))
	case s.Max > 0 && n > s.Max:
		return fmt.Errorf("it must be at most %s", FormatSize(s.Max))
	}
	s.Bytes = n
	return nil
}

// String is the size in the largest unit in which it is whole.
func (s *Size) String() string {
	n, unit := s.Bytes, ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(n, 10) + unit
}

// Type names the value in a help text.
func (s *Size) Type() string { return "size" }
