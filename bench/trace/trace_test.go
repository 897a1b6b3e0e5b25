package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func load(t *testing.T) *Trace {
	t.Helper()
	tr, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestReplay_Run_TheWholeRecording(t *testing.T) {
	tr := load(t)
	r := New(tr, t.TempDir(), 7)
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	total := Result{}
	for _, p := range tr.Phases {
		res, err := r.Run(t.Context(), p.Name, false)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name == "cpimport" || p.Name == "stop" {
			if err := r.Verify(); err != nil {
				t.Fatalf("after %s: %v", p.Name, err)
			}
		}
		t.Logf("%s: %+v", p.Name, res)
		total.Ops, total.Fsyncs = total.Ops+res.Ops, total.Fsyncs+res.Fsyncs
	}
	if total.Ops != 15166 || total.Fsyncs != 1487 {
		t.Errorf("%d operations and %d fsyncs, the recording has 15166 and 1487", total.Ops, total.Fsyncs)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestReplay_Run_NoticesWhatDiffers(t *testing.T) {
	tr := load(t)
	for name, spoil := range map[string]func(root string) error{
		"a byte of a column": func(root string) error {
			return filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
				if err != nil || !strings.HasSuffix(name, ".cdf") || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				for i := range text {
					text[i] ^= 1
				}
				return os.WriteFile(name, text, 0o666)
			})
		},
		"a folder too many": func(root string) error { return os.MkdirAll(filepath.Join(root, "data1/bulkRollback"), 0o755) },
		"a folder missing":  func(root string) error { return os.RemoveAll(filepath.Join(root, "data1/systemFiles")) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			r := New(tr, root, 1)
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := r.Prepare(); err != nil {
				t.Fatal(err)
			}
			for _, phase := range []string{"start", "dbbuilder", "create_table"} {
				if _, err := r.Run(t.Context(), phase, false); err != nil {
					t.Fatal(err)
				}
			}
			if err := spoil(root); err != nil {
				t.Fatal(err)
			}
			_, err := r.Run(t.Context(), "cpimport", false)
			verr := r.Verify()
			if err == nil && verr == nil {
				t.Error("neither the replay nor the comparison noticed it")
			}
			t.Log(err, verr)
		})
	}
}

func TestReplay_Run_Interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := New(load(t), t.TempDir(), 1)
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(ctx, "start", true); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := r.Run(t.Context(), "lunch", false); err == nil {
		t.Error("a phase that was not recorded must be an error")
	}
}

func TestReplay_Resume_RepeatsAQuery(t *testing.T) {
	tr := load(t)
	r := New(tr, t.TempDir(), 1)
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []string{"start", "dbbuilder", "create_table", "cpimport"} {
		if _, err := r.Run(t.Context(), phase, false); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := r.Park(); err != nil {
			t.Fatal(err)
		}
		if len(r.handles) != 0 {
			t.Fatal("files are open after Park")
		}
		if err := r.Resume(); err != nil {
			t.Fatal(err)
		}
		res, err := r.Run(t.Context(), "q1_cold", false)
		if err != nil || res.Read != 18903049 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if err := r.Verify(); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestTrace_Ranges_AreQuery1s(t *testing.T) {
	ranges, width := load(t).Ranges("q1_cold")
	total := int64(0)
	for _, x := range ranges {
		total += x.Length
	}
	if len(ranges) != 24 || width != 2 || total < 18<<20 {
		t.Errorf("%d ranges of %d bytes, %d at a time", len(ranges), total, width)
	}
	if none, _ := load(t).Ranges("lunch"); none != nil {
		t.Error("ranges of nothing")
	}
}

// TestPhase_Order_KeepsWhatWasRecorded checks the rule itself on the recording:
// what an operation does not wait for, directly or through others, overlapped it
// or belongs to its own process.
func TestPhase_Order_OtherProcessesWereDone(t *testing.T) {
	for _, p := range load(t).Phases {
		for _, o := range p.Ops {
			for _, n := range o.waits {
				if n.proc == o.Proc || n.count < 1 || n.count > len(p.procs[n.proc].ops) {
					t.Fatalf("%s %s waits for %+v", o.Kind, o.Path, n)
				}
				if last := p.procs[n.proc].ops[n.count-1]; last.End > o.Begin {
					t.Errorf("%s %s at %v waits for %s until %v", o.Kind, o.Path, o.Begin, last.Kind, last.End)
				}
			}
		}
	}
}

func TestLinker_Link_Cases(t *testing.T) {
	ops := []*Op{
		{Kind: "mkdir", Path: "a"},                                      // 0
		{Kind: "open", Path: "a/f", Flags: "O_RDWR|O_CREAT", Result: 5}, // 1
		{Kind: "open", Path: "a/g", Flags: "O_RDWR|O_CREAT", Result: 6}, // 2
		{Kind: "write", Path: "a/f", FD: 5},                             // 3
		{Kind: "close", Path: "a/g", FD: 6},                             // 4
		{Kind: "open", Path: "b", Flags: "O_RDONLY", Result: 6},         // 5: descriptor 6 again
		{Kind: "rename", Path: "a/g", Path2: "a/h"},                     // 6
		{Kind: "rmdir", Path: "a"},                                      // 7
		{Kind: "open", Path: "x", Errno: "ENOENT", Result: 0, FD: 0},    // 8
		{Kind: "statx", Path: "a/h"},                                    // 9
	}
	want := [][]int{nil, {0}, {0}, {1, 0}, {2, 0}, {4}, {4, 0}, {0, 1, 2, 3, 4, 6}, nil, {6, 7}}
	l := newLinker()
	for i, o := range ops {
		got := l.link(i, o)
		if len(got) != len(want[i]) {
			t.Errorf("%d: waits for %v, want %v", i, got, want[i])
			continue
		}
		for j := range got {
			if got[j] != want[i][j] {
				t.Errorf("%d: waits for %v, want %v", i, got, want[i])
			}
		}
	}
}

func TestRead_BadInput(t *testing.T) {
	for _, text := range []string{"no json", `{"op":"read","proc":"a:1"}`, "{\"phase\":\"p\"}\n{\"op\":\"read\"}"} {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(&packed); err == nil {
			t.Errorf("%q must be an error", text)
		}
	}
	if _, err := Read(strings.NewReader("no gzip")); err == nil {
		t.Error("no gzip must be an error")
	}
}

func TestFile_Compare_SaysWhere(t *testing.T) {
	f := &file{}
	f.write([]byte("abc"), 2)
	f.write([]byte("d"), -1)
	if err := f.compare([]byte("\x00\x00abcd"), 0); err != nil || f.size() != 6 {
		t.Errorf("%v, %d bytes", err, f.size())
	}
	if err := f.compare([]byte("xb"), 2); err == nil || !strings.Contains(err.Error(), "the byte at 2") {
		t.Errorf("a wrong byte: %v", err)
	}
	if err := f.compare([]byte("cde"), 4); err == nil {
		t.Error("bytes beyond the end must be an error")
	}
}

func TestCut_Cases(t *testing.T) {
	for in, want := range map[string]string{
		"O_RDWR|O_CREAT|O_TRUNC": "O_RDWR|O_CREAT", "O_RDWR|O_TRUNC|O_APPEND": "O_RDWR|O_APPEND", "O_RDWR": "O_RDWR", "O_TRUNCX": "O_TRUNCX",
	} {
		if got := cut(in, "|O_TRUNC"); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
