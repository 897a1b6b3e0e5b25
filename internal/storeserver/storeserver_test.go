package storeserver_test

import (
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
)

// TestStart_EveryKind_AnswersAndEnds starts each server; without a signature the
// S3 ones answer with a refusal, and none answers after its end.
func TestStart_EveryKind_AnswersAndEnds(t *testing.T) {
	testenv.Long(t)
	for kind, status := range map[storeserver.Kind]int{
		storeserver.Versitygw: http.StatusForbidden,
		storeserver.Rclone:    http.StatusForbidden,
		storeserver.FakeGCS:   http.StatusOK,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			s := testenv.StoreServer(t, kind)
			url := s.Endpoint + "/" + s.Bucket + "?list-type=2"
			if kind == storeserver.FakeGCS {
				url = s.Endpoint + "/storage/v1/b/" + s.Bucket + "/o"
			}
			reply, err := http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(reply.Body)
			reply.Body.Close()
			if err != nil || reply.StatusCode != status {
				t.Errorf("it answers %s (%v)\n%s", reply.Status, err, text)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if reply, err := http.Get(url); err == nil {
				reply.Body.Close()
				t.Error("it still answers after its end")
			}
		})
	}
}

// TestTools_AreNoPartOfTheModule keeps the servers' modules out of the
// product's.
func TestTools_AreNoPartOfTheModule(t *testing.T) {
	root, err := harness.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	out, err := harness.Run(t.Context(), root, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}", "github.com/cisternfs/cistern")
	if err != nil || out != "github.com/cisternfs/cistern "+root+"\n" {
		t.Fatalf("the main module: %q, %v", out, err)
	}
	for _, server := range []string{"github.com/versity/versitygw", "github.com/rclone/rclone", "github.com/fsouza/fake-gcs-server"} {
		if out, err := harness.Run(t.Context(), root, "go", "list", "-m", server); err == nil {
			t.Errorf("the main module depends on a test server: %s", out)
		}
		if _, err := harness.Run(t.Context(), filepath.Join(root, "tools", "servers"), "go", "list", "-m", server); err != nil {
			t.Errorf("tools/servers lacks it: %v", err)
		}
	}
}
