package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProcess_WaitLine_SeesOutputAndReportsAnEarlyEnd(t *testing.T) {
	p, err := Start([]string{"sh", "-c", "echo one; echo now ready; sleep 60"}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := p.WaitLine(t.Context(), "ready"); err != nil {
		t.Fatal(err)
	}
	early, err := Start([]string{"sh", "-c", "echo already broken >&2; exit 3"}, "")
	if err != nil {
		t.Fatal(err)
	}
	err = early.WaitLine(t.Context(), "ready")
	if err == nil || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("an early end must carry output and status, got %v", err)
	}
}

func TestProcess_Kill_EndsTheWholeGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	p, err := Start([]string{"sh", "-c", "sleep 300 & echo $! > " + pidFile + "; echo ready; wait"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitLine(t.Context(), "ready"); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatalf("a second Kill must be harmless: %v", err)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	// A killed grandchild may stay as a zombie until init reaps it.
	waitUntil(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestProcess_Wait_KillsWhenTheContextEnds(t *testing.T) {
	p, err := Start([]string{"sleep", "300"}, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx); err == nil {
		t.Fatal("Wait must report that its context ended")
	}
	if p.Alive() {
		t.Fatal("the program must be gone")
	}
}

func TestTail_Write_KeepsTheEnd(t *testing.T) {
	tl := newTail()
	for range 3 {
		tl.Write([]byte(strings.Repeat("a", tailBytes/2)))
	}
	tl.Write([]byte("end"))
	if s := tl.String(); len(s) != tailBytes || !strings.HasSuffix(s, "aend") {
		t.Fatalf("kept %d bytes, want the last %d", len(s), tailBytes)
	}
}

func TestCommitNumber_Cases(t *testing.T) {
	for in, want := range map[string]string{
		"17\n": "17", "commit 204\n": "204", "synced: commit 00000000000000000009": "00000000000000000009",
	} {
		if got, err := CommitNumber(in); err != nil || got != want {
			t.Errorf("CommitNumber(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	if _, err := CommitNumber("nothing"); err == nil {
		t.Error("output without a number must be an error")
	}
}

func TestIsMounted_ProcIsAndATemporaryDirectoryIsNot(t *testing.T) {
	if ok, err := IsMounted("/proc"); err != nil || !ok {
		t.Fatalf("/proc: %v, %v", ok, err)
	}
	if ok, err := IsMounted(t.TempDir()); err != nil || ok {
		t.Fatalf("a plain directory: %v, %v", ok, err)
	}
}

// waitUntil polls cond; the test's own deadline is the bound.
func waitUntil(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("the condition never came true")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
