package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore/local"
)

func TestApp_Put_BucketGoes_StateIsKeptAndNamed(t *testing.T) {
	testenv.Long(t)
	p := newPlace(t)
	p.must("format", p.url())
	in, feed := io.Pipe()
	go func() {
		feed.Write(random(1 << 20))
		if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
			t.Error(err)
		}
		feed.Write([]byte("and more"))
		feed.Close()
	}()
	var out, errs bytes.Buffer
	a := &app{stdin: in, stdout: &out, stderr: &errs, base: p.path("base"), lookup: func(string) (string, bool) { return "", false }}
	status := a.run(context.Background(), []string{"put", p.url(), "-", "a"})
	checkFailure(t, []string{"put"}, 5, "they are kept in the state directory "+p.path("base", "command-"), status, errs.String())
	if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(p.path("base", "command-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v, %v", kept, err)
	}
	s, err := local.Open(p.path("bucket"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := gateway.Open(t.Context(), gateway.Options{
		Store: s, URL: p.url(), FS: vfs.OS(), StateDir: kept[0], OpenKV: openKV(quietLogger()), Owner: gateway.HostOwner(kept[0]),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := p.must("cat", p.url(), "a"); got != string(random(1<<20))+"and more" {
		t.Error("what was kept is not what was put")
	}
}

// brokenInput breaks off in the middle of a file.
type brokenInput struct{ r io.Reader }

func (b *brokenInput) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestApp_Put_InputBreaksOff_NothingAppears(t *testing.T) {
	p, mnt := mountPlace(t)
	try := func(vol string) {
		t.Helper()
		var out, errs bytes.Buffer
		a := &app{
			stdin: &brokenInput{strings.NewReader(strings.Repeat("x", 1500000))}, stdout: &out, stderr: &errs,
			base: p.path("base"), lookup: func(string) (string, bool) { return "", false },
		}
		if status := a.run(context.Background(), []string{"put", vol, "-", "a"}); status != 1 || errs.Len() == 0 {
			t.Errorf("put through %s: %d %q", vol, status, errs.String())
		}
		if got := p.must("ls", vol); got != "" {
			t.Errorf("a file that broke off is there: %q", got)
		}
	}
	try(p.url())
	pid := p.mount()
	try(mnt)
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
	p.must("check", "--data", p.url())
}
