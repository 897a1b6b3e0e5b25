package binlogfs

import (
	"errors"
	"fmt"
	"testing"
)

// TestCut_AtEveryPlace serves an archive that ends at each event of a file.
func TestCut_AtEveryPlace_OnlyBetweenGroups(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		l := recordedLog(t, kind)
		f := l.Files()[0]
		end, _ := l.End()
		served := 0
		err := walk(t.Context(), l, f, 4, f.Size, func(w *walker) error {
			at := Position{f.Epoch, f.Name, w.off + int64(w.head.Size)}
			a, err := Cut(t.Context(), l, at)
			if w.groups.Open() {
				if err == nil {
					t.Errorf("%s: cut within a group at %d", kind, at.Offset)
				}
				return nil
			}
			if err != nil {
				return err
			}
			if w.step == StepEnd && w.groups.GTID().Number%3 == 0 {
				served++
				_, addr := serveLog(t, ServerOptions{Archive: a})
				c := dial(t, addr, "repl", "other")
				query(t, c, "SET @master_binlog_checksum='CRC32', @slave_connect_state=''")
				if kind == "my97" {
					dumpGTID(t, c, dumpNonBlock, 5, "")
				} else {
					dumpFile(t, c, dumpNonBlock|dumpAnnotate, 5, "", 4)
				}
				r := receive(t, c, false)
				groups := r.groupsOf(t)
				if r.err != nil || groups[len(groups)-1] != w.groups.GTID().String() {
					t.Errorf("%s: cut behind %v: groups %v, %v", kind, w.groups.GTID(), groups, r.err)
				}
				found, err := FindGTID(t.Context(), l, w.groups.GTID())
				if err != nil {
					return err
				}
				if got, err := GroupEnd(t.Context(), l, found.Position); err != nil || got != at {
					t.Errorf("%s: %v ends at %v, want %v (%v)", kind, w.groups.GTID(), got, at, err)
				}
			}
			return nil
		})
		if err != nil || served == 0 {
			t.Fatalf("%s: %d served, %v", kind, served, err)
		}
		whole, err := Cut(t.Context(), l, end)
		if err != nil || fmt.Sprint(whole.State()) != fmt.Sprint(l.State()) {
			t.Errorf("%s: cut at the end: %v, want %v (%v)", kind, whole, l.State(), err)
		}
		for _, p := range []Position{{1, f.Name, 1}, {1, f.Name, 5}, {1, f.Name, f.Size + 1}, {1, "mysql-bin.000009", 4}, {9, f.Name, 4}} {
			if _, err := Cut(t.Context(), l, p); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: cut at %v: %v", kind, p, err)
			}
		}
	}
}
