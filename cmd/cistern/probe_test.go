package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// keys returns what a directory bucket holds beside its locks.
func (p *place) inBucket() (found []string) {
	p.t.Helper()
	err := filepath.WalkDir(p.path("bucket"), func(path string, d os.DirEntry, err error) error {
		if err == nil && path != p.path("bucket") && !strings.Contains(path, "/.lock") && !strings.HasSuffix(path, "/.tmp") {
			found = append(found, strings.TrimPrefix(path, p.path("bucket")+"/"))
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

func TestProbe_Directory_IsFitAndLeftAsItWas(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.path("bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := p.must("probe", p.url(), "--seconds", "0.1")
	for _, want := range []string{"64 concurrent creators  ok", "may DELETE              ok", "5.0 MiB  16", "fit: a volume is safe at " + p.url()} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if left := p.inBucket(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	p.must("format", p.url())
	before := p.inBucket()
	if strings.Contains(strings.Join(before, " "), "probe") {
		t.Errorf("format left its probe behind: %v", before)
	}
	var doc probed
	if err := json.Unmarshal([]byte(p.must("probe", p.url(), "--short", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	if !doc.Fit || doc.URL != p.url() || len(doc.Checks) < 12 || len(doc.Speed) != 0 {
		t.Errorf("%+v", doc)
	}
	if after := p.inBucket(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("a volume's bucket was changed:\n%v\n%v", before, after)
	}
	p.must("destroy", p.url(), "--yes")
	if left, err := os.ReadDir(p.path("bucket")); err != nil || len(left) != 0 {
		t.Errorf("destroy left %v, %v", left, err)
	}
}

func TestProbe_BadInput_OneSentence(t *testing.T) {
	p := newPlace(t)
	p.fails(2, "directory "+p.path("no")+" does not exist: make it first", "probe", "file://"+p.path("no/bucket"))
	p.write("plain", nil)
	p.fails(2, "plain is not a directory", "probe", "file://"+p.path("plain"))
	p.fails(2, "a point in the past can't be meant", "probe", p.url()+"@7")
	p.fails(2, "--seconds", "probe", p.url(), "--seconds", "1000")
	p.env["CISTERN_S3_ENDPOINT"], p.env["CISTERN_S3_REGION"] = "http://127.0.0.1:1", "us-east-1"
	p.env["CISTERN_S3_AWS_ACCESS_KEY_ID"], p.env["CISTERN_S3_AWS_SECRET_ACCESS_KEY"] = "key", "secret"
	p.fails(5, "may PUT", "probe", "s3://bucket/prefix", "--short")
}

// What format would make is made for a probe, and is gone afterwards, also when the
// probe is interrupted.
func TestProbe_MissingDirectory_IsMadeAndRemoved(t *testing.T) {
	p := newPlace(t)
	gone := func() {
		t.Helper()
		if _, err := os.Lstat(p.path("bucket")); !os.IsNotExist(err) {
			t.Errorf("the directory is there: %v", err)
		}
	}
	if out := p.must("probe", "--short", p.url()); !strings.Contains(out, "fit: a volume is safe at "+p.url()) {
		t.Errorf("%q", out)
	}
	gone()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr, base: p.path("base"), lookup: func(string) (string, bool) { return "", false }}
	if status := a.run(ctx, []string{"probe", p.url(), "--seconds", "60"}); status != exitFailed {
		t.Errorf("status %d, %s", status, stderr.String())
	}
	gone()
	p.must("format", p.url())
}

func TestProbe_Interrupted_LeavesNothing(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.path("bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	time.AfterFunc(700*time.Millisecond, func() { signals <- syscall.SIGINT })
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr, base: p.path("base"), signals: signals, lookup: func(string) (string, bool) { return "", false }}
	if status := a.run(context.Background(), []string{"probe", p.url(), "--seconds", "60"}); status != exitFailed || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("status %d, %s", status, stderr.String())
	}
	if left := p.inBucket(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestShowProbe_Verdicts(t *testing.T) {
	for result, want := range map[string]struct {
		status int
		says   string
	}{
		objstore.ProbeOK:      {exitDone, "fit: a volume is safe at x, as far as a probe can tell\n"},
		objstore.ProbeNote:    {exitDone, "fit: "},
		objstore.ProbeFailed:  {exitFailed, "not fit: racing: two won\n"},
		objstore.ProbeDenied:  {exitFailed, "not fit: racing: two won\n"},
		objstore.ProbeUnknown: {exitStore, "no verdict: racing: two won\n"},
	} {
		var stdout, stderr bytes.Buffer
		a := &app{stdout: &stdout, stderr: &stderr}
		r := &objstore.ProbeReport{Checks: []objstore.ProbeCheck{{Name: "may PUT", Result: objstore.ProbeOK}, {Name: "racing", Result: result, Detail: "two won"}}}
		p := &probed{URL: "x", ProbeReport: r, Fit: r.Fit(), Reason: r.Reason(), Warnings: []string{"versioning is on"}}
		if status := exitStatus(a.showProbe(p, false)); status != want.status || !strings.Contains(stdout.String(), want.says) {
			t.Errorf("%s: status %d, %q", result, status, stdout.String())
		}
		if !strings.Contains(stderr.String(), "warning: versioning is on") {
			t.Errorf("%s: %q", result, stderr.String())
		}
	}
}
