package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestGCS_FormatPutMountAndFromTheBucketAlone(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	srv := testenv.StoreServer(t, storeserver.FakeGCS)
	// The commands find the server by the variable, the mount by the file.
	p.env["STORAGE_EMULATOR_HOST"] = strings.TrimPrefix(srv.Endpoint, "http://")
	u := "gs://" + srv.Bucket + "/some/prefix"
	if out := p.must("format", u, "--object-size", "1M"); !strings.Contains(out, u+" is volume ") {
		t.Errorf("format says %q", out)
	}
	p.fails(2, "is a volume already", "format", u)
	p.fails(2, "is not empty (it holds some/prefix/", "format", "gs://"+srv.Bucket)
	p.fails(2, "bucket does not exist", "ls", "gs://nowhere/v")
	p.fails(2, "no volume here", "ls", "gs://"+srv.Bucket+"/other")

	big := random(3<<20 + 77)
	p.must("put", u, p.write("local", big), "big")
	if got := p.must("cat", u, "big"); got != string(big) {
		t.Error("cat gives other bytes than were put")
	}
	delete(p.env, "STORAGE_EMULATOR_HOST")
	p.env["CISTERN_CONFIG"] = p.write("gcs.ini", []byte("[GCS]\nendpoint = "+srv.Endpoint+"\nanonymous = yes\n"))
	mnt := p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	more := random(2<<20 + 5)
	for round := range 2 {
		// Each time without anything local.
		p.mustBinary("mount", u, mnt, "--state", p.path(fmt.Sprintf("state%d", round)))
		if got := readFile(t, filepath.Join(mnt, "big")); got != string(big) {
			t.Error("the mount shows other bytes than were put")
		}
		name := filepath.Join(mnt, "more")
		if round == 0 {
			if err := os.WriteFile(name, more, 0o644); err != nil {
				t.Fatal(err)
			}
			p.must("sync", mnt)
		}
		if got := readFile(t, name); got != string(more) {
			t.Errorf("round %d: the mount shows other bytes than were written", round)
		}
		p.endMount(mnt)
	}
	p.must("check", "--data", u)
	p.must("collect", u)
	p.must("destroy", "--yes", u)
	p.fails(2, "no volume here", "ls", u)
}

func TestGCS_BadSettings_NameKeyAndReason(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		lines, want string
	}{
		{"colour = red", "[GCS] colour: there is no such setting"},
		{"anonymous = perhaps", "[GCS] anonymous = \"perhaps\": choose"},
		{"bucket = other", "are for bucket other"},
		{"prefix = other", "are for the prefix other"},
		{"endpoint = localhost:4443", "endpoint \"localhost:4443\""},
		{"anonymous = yes\nkey_file = /k.json", "key file /k.json: anonymous"},
		{"key_file = /no/such/key.json", "/no/such/key.json"},
		{"key_file = " + p.write("key.json", []byte(`{"type": "password"}`)), "no usable credentials"},
		{"key_file = ${NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE is not set"},
	} {
		path := p.write("gcs.ini", []byte("[GCS]\n"+c.lines+"\n"))
		p.fails(2, c.want, "format", "gs://bucket/v", "--config", path)
	}
	p.env["CISTERN_GCS_ENDPOINT"] = "ftp://host"
	p.fails(2, "endpoint \"ftp://host\"", "format", "gs://bucket/v", "--config", p.write("gcs.ini", []byte("[GCS]\nendpoint = http://127.0.0.1:1\n")))
}
