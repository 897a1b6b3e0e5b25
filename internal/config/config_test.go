package config

import (
	"maps"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestParseSize_Cases(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // 0: refused
		why  string
	}{
		{"5M", 5 << 20, ""}, {"2G", 2 << 30, ""}, {"1T", 1 << 40, ""}, {"2GiB", 2 << 30, ""}, {"500m", 500 << 20, ""},
		{"4096", 4096, ""}, {"16kb", 16 << 10, ""}, {"7b", 7, ""}, {"8388607T", 8388607 << 40, ""},
		{"64x", 0, "unknown unit"}, {"8q", 0, "unknown unit"}, {"-1", 0, "negative"}, {"0", 0, "more than zero"}, {"0G", 0, "more than zero"},
		{"", 0, "empty"}, {"99999999999999999999", 0, "larger"}, {"8388608T", 0, "larger"}, {"1.5G", 0, "whole number"},
		{"G", 0, "whole number"}, {"+5M", 0, "whole number"}, {" 5M", 0, "whole number"}, {"5 M", 0, "whole number"}, {"0x10", 0, "unit"},
	} {
		got, err := ParseSize(c.text)
		if got != c.want || (err == nil) != (c.want > 0) || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q: %d, %v; want %d, %q", c.text, got, err, c.want, c.why)
		}
	}
}

func TestFormatSize_Cases(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 1<<63 - 1: "8.0 EiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestSize_Set_Bounds(t *testing.T) {
	s := Size{Min: 1 << 20, Max: 64 << 20}
	for text, ok := range map[string]bool{"1M": true, "64M": true, "65M": false, "1023K": false} {
		if err := s.Set(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := s.Set("2048K"); err != nil || s.String() != "2M" {
		t.Errorf("%s, %v", s.String(), err)
	}
}

func flags() (*pflag.FlagSet, *Size) {
	f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	size := &Size{Bytes: 1}
	f.Var(size, "cache-size", "")
	f.String("config", "", "")
	f.Bool("takeover", false, "")
	return f, size
}

func none(string) (string, bool) { return "", false }

func TestApply_FlagBeatsEnvironmentBeatsFile(t *testing.T) {
	file := []byte("[mount]\ncache-size = 3M\n")
	env := func(name string) (string, bool) { return "2M", name == "CISTERN_CACHE_SIZE" }
	for _, c := range []struct {
		args []string
		env  func(string) (string, bool)
		want int64
	}{{nil, none, 3 << 20}, {nil, env, 2 << 20}, {[]string{"--cache-size", "1M"}, env, 1 << 20}} {
		f, size := flags()
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := Apply(f, c.env, "c.ini", file, "mount", "config"); err != nil || size.Bytes != c.want {
			t.Errorf("%v: %d, %v", c.args, size.Bytes, err)
		}
	}
}

// One file serves all commands: each takes its own section and leaves the others.
func TestApply_EachCommandTakesItsSection(t *testing.T) {
	file := []byte("[mount]\ncache-size = 3M\n[relay]\ncache-size = 5M\n[ObjectStorage]\na = 1\n[S3]\nb = 1\n[GCS]\nc = 1\n[Encryption]\nd = 1\n")
	for section, want := range map[string]int64{"mount": 3 << 20, "relay": 5 << 20} {
		f, size := flags()
		if err := Apply(f, none, "c.ini", file, section, "config"); err != nil || size.Bytes != want {
			t.Errorf("[%s]: %d, %v; want %d", section, size.Bytes, err, want)
		}
	}
}

func TestApply_BadInput_NamesKeyValueReason(t *testing.T) {
	for text, want := range map[string]string{
		"[mount]\ncache_size = 64x\n":               `c.ini: [mount] cache_size = "64x": unknown unit`,
		"[mount]\ncash_size = 1M\n":                 `c.ini: [mount] cash_size = "1M": there is no such setting`,
		"[mount]\nconfig = other\n":                 `there is no such setting`,
		"[mount]\ntakeover = perhaps\n":             `takeover = "perhaps"`,
		"[Cash]\ncache_size = 1G\n":                 `section [Cash] is not known`,
		"cache_size = 1M\n":                         `section [DEFAULT] is not known`,
		"[mount]\nnonsense\n":                       `is not an INI file`,
		"[mount]\ncache_size=1M\ncache-size = 2M\n": `it is set twice`,
	} {
		f, _ := flags()
		err := Apply(f, none, "c.ini", []byte(text), "mount", "config")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	_, err := Section("c.ini", []byte("[S3]\nsecret hush\n"), "S3", nil, none)
	if err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), `begins with "secret"`) {
		t.Errorf("a line without =: %v", err)
	}
	f, _ := flags()
	err = Apply(f, func(string) (string, bool) { return "8q", true }, "", nil, "mount")
	if err == nil || !strings.Contains(err.Error(), `CISTERN_CACHE_SIZE="8q" in the environment: unknown unit`) {
		t.Error(err)
	}
}

func TestSection_ValuesOfOneSection(t *testing.T) {
	text := []byte("[mount]\ncache-size = 3M\n[S3]\nregion = eu\nca-file = ${HOME}/x${EMPTY}\nsecret = a+b/c==\n")
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"HOME": "/root", "EMPTY": ""}[name]
		return v, ok
	}
	got, err := Section("c.ini", text, "S3", []string{"region", "ca_file", "secret", "unused"}, env)
	want := map[string]string{"region": "eu", "ca_file": "/root/x", "secret": "a+b/c=="}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if got, err := Section("", nil, "S3", nil, env); err != nil || len(got) != 0 {
		t.Errorf("without a file: %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"[S3]\nregion = hush\n":       "c.ini: [S3] region: there is no such setting",
		"[S3]\nsecret = ${NOTHING}\n": "c.ini: [S3] secret: the environment variable NOTHING is not set",
		"[S3]\nsecret = ${HOME\n":     "c.ini: [S3] secret: a ${ without its }",
		"[Other]\na = b\n":            "section [Other] is not known",
	} {
		if _, err := Section("c.ini", []byte(text), "S3", []string{"secret"}, env); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
