package journal

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// benchJournal is a journal of default size on the real disk.
func benchJournal(b *testing.B) *Journal {
	b.Helper()
	j, err := Open(vfs.OS(), filepath.Join(b.TempDir(), "journal"), Options{Create: true})
	must(b, err)
	_, err = j.Replay(0, 0, nil)
	must(b, err)
	must(b, j.Start(1, 1))
	b.Cleanup(func() { must(b, j.Close()) })
	return j
}

func BenchmarkJournal_Append_16KiB(b *testing.B) {
	j := benchJournal(b)
	e := Entry{Op: 1, Body: make([]byte, 32), Data: make([]byte, 16<<10)}
	b.SetBytes(16 << 10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		lsn, _, err := j.Append(nil, e)
		must(b, err)
		if i%1000 == 999 {
			must(b, j.Sync(context.Background(), lsn))
			must(b, j.Free(lsn))
		}
	}
}

// BenchmarkWriteAt_16KiB is what the kernel alone takes for the same writes.
func BenchmarkWriteAt_16KiB(b *testing.B) {
	f, err := vfs.OS().OpenFile(filepath.Join(b.TempDir(), "f"), os.O_RDWR|os.O_CREATE, 0o600)
	must(b, err)
	defer f.Close()
	p := make([]byte, 16<<10)
	b.SetBytes(16 << 10)
	for i := 0; b.Loop(); i++ {
		_, err := f.WriteAt(p, int64(i%2000)<<14)
		must(b, err)
		if i%1000 == 999 {
			must(b, f.Sync())
		}
	}
}

func BenchmarkJournal_AppendAndSync_Parallel(b *testing.B) {
	j := benchJournal(b)
	e := Entry{Op: 1, Body: make([]byte, 32), Data: make([]byte, 4<<10)}
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lsn, _, err := j.Append(nil, e)
			if err == nil {
				err = j.Sync(context.Background(), lsn)
			}
			if err != nil {
				b.Error(err)
				return
			}
			if lsn%1000 == 0 {
				if err := j.Free(lsn - 1); err != nil {
					b.Error(err)
				}
			}
		}
	})
	s := j.Stats()
	b.ReportMetric(float64(s.SyncedGroups)/float64(max(1, s.Syncs)), "groups/sync")
}

func BenchmarkJournal_Sync_NothingToDo(b *testing.B) {
	j := benchJournal(b)
	lsn, _, err := j.Append(nil, Entry{Op: 1})
	must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		must(b, j.Sync(context.Background(), lsn))
	}
}
