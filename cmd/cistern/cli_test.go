package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/metadata"
)

// place is a place for a volume and what commands make beside it.
type place struct {
	t     *testing.T
	dir   string
	env   map[string]string
	stdin string
	built string // the program, once it was needed
	cwd   string // the working directory of binary; empty: the test's
}

// newPlace lets the test run beside others.
func newPlace(t *testing.T) *place {
	t.Parallel()
	return &place{t: t, dir: testenv.TempDir(t), env: map[string]string{}}
}

func (p *place) path(parts ...string) string {
	return filepath.Join(append([]string{p.dir}, parts...)...)
}

func (p *place) url() string { return "file://" + p.path("bucket") }

// run runs a command line in this process.
func (p *place) run(args ...string) (status int, out, errs string) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{
		stdin: strings.NewReader(p.stdin), stdout: &stdout, stderr: &stderr, base: p.path("base"),
		lookup: func(name string) (string, bool) { v, ok := p.env[name]; return v, ok },
	}
	p.stdin = ""
	status = a.run(context.Background(), args)
	return status, stdout.String(), stderr.String()
}

// must runs a command that has to succeed without a complaint.
func (p *place) must(args ...string) string {
	p.t.Helper()
	status, out, errs := p.run(args...)
	if status != 0 || errs != "" {
		p.t.Fatalf("cistern %s: status %d, %s", strings.Join(args, " "), status, errs)
	}
	return out
}

// fails runs a command that has to fail with a status and one sentence on
// standard error that contains want.
func (p *place) fails(status int, want string, args ...string) {
	p.t.Helper()
	got, _, errs := p.run(args...)
	checkFailure(p.t, args, status, want, got, errs)
}

func checkFailure(t *testing.T, args []string, status int, want string, got int, errs string) {
	t.Helper()
	if got != status || !strings.HasPrefix(errs, "cistern: ") || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) {
		t.Errorf("cistern %s:\n got %d %q\nwant %d with %q", strings.Join(args, " "), got, errs, status, want)
	}
}

// binary runs a command line with the built program.
func (p *place) binary(args ...string) (status int, out, errs string) {
	p.t.Helper()
	if p.built == "" {
		p.built = testenv.Cistern(p.t)
	}
	c := exec.Command(p.built, args...)
	c.Dir = p.cwd
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(p.stdin), &stdout, &stderr
	p.stdin = ""
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+p.dir)
	for k, v := range p.env {
		c.Env = append(c.Env, k+"="+v)
	}
	err := c.Run()
	if c.ProcessState == nil {
		p.t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func (p *place) mustBinary(args ...string) string {
	p.t.Helper()
	status, out, errs := p.binary(args...)
	if status != 0 || errs != "" {
		p.t.Fatalf("cistern %s: status %d, %s", strings.Join(args, " "), status, errs)
	}
	return out
}

func (p *place) write(name string, body []byte) string {
	p.t.Helper()
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, body, 0o644); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// bucketFiles are the files of the bucket that hold objects.
func (p *place) bucketFiles() map[string]string {
	p.t.Helper()
	files := map[string]string{}
	root := p.path("bucket")
	err := filepath.Walk(root, func(path string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if !strings.HasPrefix(rel, ".") {
			body, err := os.ReadFile(path)
			files[rel] = string(body)
			return err
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return files
}

// find returns the path of the one file of the bucket whose name begins so.
func (p *place) find(prefix string) string {
	p.t.Helper()
	var found []string
	for name := range p.bucketFiles() {
		if strings.HasPrefix(name, prefix) {
			found = append(found, p.path("bucket", name))
		}
	}
	if len(found) == 0 {
		p.t.Fatalf("the bucket has nothing under %s", prefix)
	}
	return found[0]
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q is no such document: %v", text, err)
	}
	return v
}

func TestApp_BadInput_OneSentenceRightStatusNothingChanged(t *testing.T) {
	p := newPlace(t)
	for _, d := range []string{"mnt", "full/x", "nonvolume"} {
		if err := os.MkdirAll(p.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write("file", []byte("x"))
	p.write("nonvolume/some", []byte("x"))
	p.write("bad.ini", []byte("[mount]\ncache_size = 64x\n"))
	p.write("unknown.ini", []byte("[mount]\ncash_size = 1M\n"))
	p.write("uploads.ini", []byte("[ObjectStorage]\nmax_concurrent_uploads = many\n"))
	p.write("section.ini", []byte("[ObjectStorage]\nnonsense = S3\n"))
	u, mnt := p.url(), p.path("mnt")
	p.must("format", u)
	before := p.bucketFiles()
	mount := func(more ...string) []string {
		return append([]string{"mount", u, mnt, "--state", p.path("state"), "--foreground"}, more...)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "no command \"frobnicate\"", []string{"frobnicate"}},
		{2, "unknown flag: --frob", []string{"ls", u, "--frob"}},
		{2, "say on which directory to mount it", []string{"mount", u}},
		{2, "say what to dump", []string{"dump"}},
		{2, "neither a URL", []string{"ls", "bucket"}},
		{2, "unknown scheme \"http\"", []string{"ls", "http://bucket/x"}},
		{2, "three slashes", []string{"format", "file://relative"}},
		{2, "root directory", []string{"format", "file:///"}},
		{2, "names no bucket", []string{"format", "s3:///x"}},
		{2, "its region is not known", []string{"format", "s3://bucket/x"}},
		{2, "names no bucket", []string{"mount", "gs:///x", mnt}},
		{2, "bucket does not exist", []string{"ls", "file://" + p.path("nowhere")}},
		{2, "bucket does not exist", []string{"mount", "file://" + p.path("nowhere"), mnt}},
		{2, "does not exist: make it first", []string{"format", "file://" + p.path("no", "where")}},
		{2, "is not a directory", []string{"format", "file://" + p.path("file")}},
		{2, "no volume here", []string{"status", "file://" + p.path("nonvolume")}},
		{2, "no volume here", []string{"put", "file://" + p.path("nonvolume"), p.path("file"), "x"}},
		{2, "no volume here", []string{"mount", "file://" + p.path("nonvolume"), mnt}},
		{2, "no volume here", []string{"destroy", "--yes", "file://" + p.path("nonvolume")}},
		{2, "is a volume already", []string{"format", u}},
		{2, "is not empty", []string{"format", "file://" + p.path("nonvolume")}},
		{2, "at least 1.0 MiB", []string{"format", u, "--object-size", "1000K"}},
		{2, "at most 64.0 MiB", []string{"format", u, "--object-size", "65M"}},
		{2, "multiple of 4096", []string{"format", u, "--object-size", "1048577"}},
		{2, "unknown unit", []string{"format", u, "--quota", "64x"}},
		{2, "can't be negative", []string{"format", u, "--retention", "-1h"}},
		{2, "a point in the past", []string{"format", u + "@3"}},
		{2, "unknown unit \"x\"", mount("--cache-size", "64x")},
		{2, "unknown unit \"q\"", mount("--journal-size", "8q")},
		{2, "can't be negative", mount("--cache-size=-1")},
		{2, "more than zero", mount("--cache-size", "0")},
		{2, "it is empty", mount("--cache-size", "")},
		{2, "larger than any disk", mount("--cache-size", "99999999999999999999")},
		{2, "at least 4.0 MiB", mount("--journal-size", "1M")},
		{2, "choose local, bucket or lag=<time>", mount("--durability", "maybe")},
		{2, "time after lag=", mount("--durability", "lag=soon")},
		{2, "no length of time", mount("--commit-interval", "often")},
		{2, "it must be 10ms to 1h", mount("--commit-interval", "0s")},
		{2, "choose wait or enospc", mount("--limit-reached", "panic")},
		{2, "choose continue or stop", mount("--on-lease-lost", "panic")},
		{2, "unknown mount option \"frob\"", mount("-o", "frob")},
		{2, "--takeover: a mount with --read-only follows", mount("--read-only", "--takeover")},
		{2, "--journal-size: a mount with --read-only follows", mount("-o", "ro", "--journal-size", "1G")},
		{2, "no such point", []string{"mount", u + "@yesterday", mnt}},
		{2, "has no snapshot nightly: it has none", []string{"mount", u + "@nightly", mnt}},
		{2, "has no commit 99", []string{"mount", u + "@99", mnt}},
		{2, "--durability: a mount of the point 1 is read-only", []string{"mount", u + "@1", mnt, "--durability", "local"}},
		{2, "--takeover", []string{"mount", u + "@-5m", mnt, "--takeover"}},
		{2, "--journal-size", []string{"mount", u + "@1", mnt, "--journal-size", "1G"}},
		{2, "--metrics-addr nonsense", mount("--metrics-addr", "nonsense")},
		{2, "bad.ini: [mount] cache_size = \"64x\": unknown unit", mount("--config", p.path("bad.ini"))},
		{2, "[mount] cash_size = \"1M\": there is no such setting", mount("--config", p.path("unknown.ini"))},
		{2, "[ObjectStorage] nonsense: there is no such setting", mount("--config", p.path("section.ini"))},
		{2, "[ObjectStorage] max_concurrent_uploads = \"many\": must be a number from 1 to 1024", mount("--config", p.path("uploads.ini"))},
		{2, "it must be at least 64.0 KiB", mount("--upload-limit", "1K")},
		{2, "no such file", mount("--config", p.path("none.ini"))},
		{2, "does not exist: make the directory first", []string{"mount", u, p.path("none"), "--state", p.path("state")}},
		{2, "is not empty, it holds \"x\"", []string{"mount", u, p.path("full"), "--state", p.path("state")}},
		{2, "not a directory", []string{"mount", u, p.path("file"), "--state", p.path("state")}},
		{2, "lies under the mount point", []string{"mount", u, mnt, "--state", p.path("mnt", "state")}},
		{2, "is not a directory", []string{"mount", u, mnt, "--state", p.path("file")}},
		{2, "no volume is mounted on", []string{"umount", mnt}},
		{2, "not mounted on this machine", []string{"top", u}},
		{2, "holds no journal", []string{"dump", "journal", p.path("mnt")}},
		{2, "has no snapshot yesterday", []string{"ls", u + "@yesterday"}},
		{2, "neither a commit's number, nor a time", []string{"ls", u + "@2026-01-31"}},
		{2, "not a commit's number", []string{"dump", "commit", u, "x"}},
		{2, "has no commit 99", []string{"ls", u + "@99"}},
		{1, "/none: no such file", []string{"cat", u, "none"}},
		{1, "/: is a directory", []string{"cat", u, "/"}},
		{1, "/none/x: no such file", []string{"put", u, p.path("file"), "none/x/y"}},
		{1, "no such file", []string{"put", u, p.path("missing"), "x"}},
		{2, ".. is not possible", []string{"ls", u, "a/../.."}},
		{2, "standard input has no name", []string{"put", u, "-", "dir/"}},
		{2, "standard input has no name", []string{"put", u, "dir/", "-"}},
		{2, "--concurrency 0: must be 1 to 64", []string{"get", u, "x", "--concurrency", "0"}},
		{2, "--concurrency 65: must be 1 to 64", []string{"get", u, "x", "--concurrency", "65"}},
		{2, "top directory can't be removed", []string{"rm", "-r", u, "/"}},
		{2, "must not be negative", []string{"log", u, "-n", "-1"}},
		{1, "has no pin", []string{"dump", "pin", u, "x"}},
		{1, "refers to no segment", []string{"dump", "segment", u, "segments/x"}},
		{2, "a point in the past can't be changed", []string{"rm", u + "@1", "x"}},
	} {
		p.fails(c.status, c.want, c.args...)
	}
	p.env["CISTERN_CACHE_SIZE"] = "8q"
	p.fails(2, "CISTERN_CACHE_SIZE=\"8q\" in the environment", mount()...)
	// The one that named a missing directory took an epoch and gave it back.
	for name, body := range p.bucketFiles() {
		if old, ok := before[name]; ok && old != body && name != metadata.LeaseKey {
			t.Errorf("%s was changed", name)
		}
	}
	if _, err := os.Stat(p.path("state")); err == nil {
		t.Error("a refused mount made its state directory")
	}
	if left, err := filepath.Glob(p.path("base", "*")); err != nil || len(left) > 0 {
		t.Errorf("commands left %v, %v", left, err)
	}
	p.env = map[string]string{}
	p.must("check", "--data", u)
}

func TestApp_ForeignDocuments_RightStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		want   string
		damage func(t *testing.T, p *place)
	}{
		{"newer format", 2, "newer version", func(t *testing.T, p *place) {
			doc := &metadata.VolumeDoc{ID: "x", Format: 99, ObjectSize: 5 << 20}
			p.write("bucket/volume.json", metadata.EncodeVolume(doc))
		}},
		{"unknown feature", 2, "features that this release does not know (time-travel)", func(t *testing.T, p *place) {
			doc := &metadata.VolumeDoc{ID: "x", Incompat: []string{"time-travel"}, ObjectSize: 5 << 20}
			p.write("bucket/volume.json", metadata.EncodeVolume(doc))
		}},
		{"damaged volume.json", 4, "volume.json", func(t *testing.T, p *place) { p.write("bucket/volume.json", []byte("{}")) }},
		{"damaged lease", 4, "lease.json", func(t *testing.T, p *place) { p.write("bucket/lease.json", []byte("{}")) }},
		{"damaged commit", 4, "00000000000000000001.json", func(t *testing.T, p *place) {
			path := p.find("commits/")
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			body[len(body)/2] ^= 1
			if err := os.WriteFile(path, body, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			p.must("format", p.url())
			if err := os.Mkdir(p.path("mnt"), 0o755); err != nil {
				t.Fatal(err)
			}
			c.damage(t, p)
			for _, args := range [][]string{
				{"ls", p.url()}, {"mount", p.url(), p.path("mnt"), "--state", p.path("state"), "--foreground"}, {"rm", p.url(), "x"},
			} {
				p.fails(c.status, c.want, args...)
			}
		})
	}
}

func TestExitStatus_EveryFlagHelpEnds(t *testing.T) {
	p := newPlace(t)
	a := &app{}
	for _, c := range a.root().Commands() {
		out := p.must(c.Name(), "--help")
		if strings.Contains(out, "ready-fd") {
			t.Errorf("%s --help offers what this build has not:\n%s", c.Name(), out)
		}
	}
	if out := p.must("version"); !strings.HasPrefix(out, "cistern "+version) {
		t.Errorf("version: %q", out)
	}
	if out := p.must("completion", "bash"); !strings.Contains(out, "cistern") {
		t.Error("no completion")
	}
}
