package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// tortureURL is the variable that names a place for the volumes of the test of two
// owners, like s3://bucket/prefix; without it they are in a directory.
const tortureURL = "CISTERN_TORTURE_URL"

// appender writes lines to a file of a mount until it is refused: what it has
// in acked was acknowledged.
type appender struct {
	f     *os.File
	acked bytes.Buffer
	fate  error
	done  chan struct{}
}

func startAppender(t *testing.T, path string) *appender {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &appender{f: f, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for i := 0; w.fate == nil; i++ {
			line := []byte(fmt.Sprintf("%s line %d\n", path, i))
			if _, err := f.Write(line); err != nil {
				w.fate = err
				break
			}
			w.acked.Write(line)
			if i%50 == 49 {
				w.fate = f.Sync()
			}
			time.Sleep(200 * time.Microsecond)
		}
		f.Close() // what it says is known already
	}()
	return w
}

// TestOwners_StoppedAndReplaced stops the process of a mount at random moments,
// lets another take over, write and collect, and lets the first go on: it
// changes nothing of what the other wrote, turns read-only, and what it still
// acknowledged is in its salvage. Then it mounts again and sees the other's work.
func TestOwners_StoppedAndReplaced(t *testing.T) {
	testenv.Long(t)
	random := rand.New(rand.NewPCG(seed(t), 3))
	url := os.Getenv(tortureURL)
	if url == "" {
		url = "file://" + filepath.Join(testenv.TempDir(t), "bucket")
	} else {
		url += fmt.Sprintf("/owners-%d", random.Uint32())
	}
	testenv.Format(t, url, "--object-size", "1M", "--retention", "1h")
	dir := testenv.TempDir(t)
	a := testenv.MountOptions{Dir: filepath.Join(dir, "a"), StateDir: filepath.Join(dir, "state-a")}
	b := testenv.MountOptions{Dir: filepath.Join(dir, "b"), StateDir: filepath.Join(dir, "state-b"), Args: []string{"--takeover"}}
	want := map[string]string{}           // what the volume must hold
	for round := range 3 * rounds(t, 1) { // once in each mode
		mode := []string{"local", "lag=2s", "bucket"}[round%3]
		a.Args = []string{"--durability", mode, "--wait", "0s"}
		ma := testenv.Mount(t, url, a)
		wantContent(t, ma.Dir, want)
		name := fmt.Sprintf("round-%d", round)
		w := startAppender(t, filepath.Join(ma.Dir, name))
		time.Sleep(time.Duration(300+random.IntN(1500)) * time.Millisecond)
		if err := syscall.Kill(ma.PID(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		mb := testenv.Mount(t, url, b)
		inherited, err := os.ReadFile(filepath.Join(mb.Dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err == nil {
			want[name] = string(inherited)
		}
		want["by b"] = strings.Repeat(fmt.Sprintf("round %d ", round), 50000)
		if err := os.WriteFile(filepath.Join(mb.Dir, "by b"), []byte(want["by b"]), 0o644); err != nil {
			t.Fatal(err)
		}
		cistern(t, 0, "sync", mb.Dir)
		cistern(t, 0, "collect", mb.Dir)
		if err := syscall.Kill(ma.PID(), syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-w.done
		if !errors.Is(w.fate, syscall.EROFS) {
			t.Errorf("round %d: the replaced mount's writer ended with %v", round, w.fate)
		}
		cistern(t, 3, "umount", ma.Dir)
		if !strings.HasPrefix(w.acked.String(), want[name]) && !strings.HasPrefix(want[name], w.acked.String()) {
			t.Errorf("round %d: the next owner has other bytes than were written", round)
		}
		wantSalvage(t, a.StateDir, name, want[name], w.acked.String())
		wantContent(t, mb.Dir, want)
		testenv.Umount(t, mb)
		cistern(t, 0, "check", "--data", url)
		t.Logf("round %d, %s: %d bytes acknowledged, %d of them with the next owner", round, mode, w.acked.Len(), len(want[name]))
	}
}

// wantSalvage: what the next owner has not is in the replaced one's salvage, as
// that saw it.
func wantSalvage(t *testing.T, state, name, inherited, acked string) {
	t.Helper()
	var reports []struct {
		ID     string   `json:"id"`
		Damage []string `json:"damage"`
	}
	to := filepath.Join(testenv.TempDir(t), "back")
	out := cistern(t, 0, "salvage", "--json", "--to", to, state)
	if err := json.Unmarshal([]byte(out), &reports); err != nil {
		t.Fatal(err)
	}
	if len(reports) == 0 {
		if len(inherited) < len(acked) {
			t.Errorf("%d bytes of %s were acknowledged, the next owner has %d, and nothing is to be salvaged", len(acked), name, len(inherited))
		}
		return
	}
	for _, r := range reports {
		got, err := os.ReadFile(filepath.Join(to, r.ID, "files", name))
		// An answer may have been lost with the mount: one line more.
		if err != nil || len(r.Damage) > 0 || !strings.HasPrefix(string(got), acked) {
			t.Errorf("salvage of %s brings %d bytes back, %d were acknowledged; %v, %v", name, len(got), len(acked), r.Damage, err)
		}
	}
	cistern(t, 0, "salvage", "--discard", "--yes", state)
}

func wantContent(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	for name, body := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != body {
			t.Errorf("%s has %d bytes, want %d, %v", name, len(got), len(body), err)
		}
	}
}

// cistern runs a command that has to end with a status.
func cistern(t *testing.T, status int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := harness.Run(ctx, "", append([]string{testenv.Cistern(t)}, args...)...)
	got := 0
	if err != nil {
		got = -1
		var exit interface{ ExitCode() int }
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		}
	}
	if got != status {
		t.Fatalf("cistern %s: exit %d, want %d: %v", strings.Join(args, " "), got, status, err)
	}
	return out
}
