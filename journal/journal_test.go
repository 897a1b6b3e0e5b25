package journal

import (
	"context"
	"errors"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

func TestJournal_Replay_WhatWasAppended(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"mem": newDisk(t), "fault": vfs.NewFault(newDisk(t))} {
		t.Run(name, func(t *testing.T) {
			j := start(t, fs, bigOptions())
			for i := range 200 {
				appendNumbered(t, j, i*13)
			}
			syncAll(t, j)
			if got := j.Durable(); got != 200 {
				t.Fatalf("durable is %d after a sync of all 200", got)
			}
			must(t, j.Close())

			j, err := Open(fs, testDir, bigOptions())
			must(t, err)
			defer stop(t, j)
			records, info, err := replayAll(j, 0, 200)
			must(t, err)
			must(t, checkNumbered(records, 1))
			if info.First != 1 || info.Last != 200 || info.Torn || info.Durable != 200 || info.Epoch != 1 || info.GapFirst != 0 {
				t.Fatalf("replay says %+v", info)
			}
			must(t, j.Start(2, 201))
			for _, r := range records {
				p := make([]byte, len(r.entry.Data))
				must(t, j.ReadData(r.loc, p, 0))
				if string(p) != string(r.entry.Data) {
					t.Fatalf("data of lsn %d reads back differently", r.lsn)
				}
			}
		})
	}
}

func TestJournal_Append_GroupIsAtomicAndNumbered(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	entries := []Entry{testEntry(1, 100), testEntry(2, 0), testEntry(3, 777)}
	first, locs, err := j.Append(nil, entries...)
	must(t, err)
	if first != 1 || j.End() != 3 || len(locs) != 3 || locs[1] != (Loc{}) {
		t.Fatalf("first %d, end %d, locs %+v", first, j.End(), locs)
	}
	p := make([]byte, 10)
	must(t, j.ReadData(locs[2], p, 700))
	if string(p) != string(entries[2].Data[700:710]) {
		t.Fatal("part of the data reads back differently")
	}
	if err := j.ReadData(locs[2], p, 770); err == nil {
		t.Fatal("a read beyond the data succeeded")
	}
	must(t, j.Close())
}

func TestOpen_MissingAndForeign(t *testing.T) {
	fs := newDisk(t)
	o := bigOptions()
	o.Create = false
	if _, err := Open(fs, testDir, o); !errors.Is(err, ErrMissing) {
		t.Fatalf("open of no directory: %v", err)
	}
	must(t, fs.MkdirAll(testDir, 0o700))
	if _, err := Open(fs, testDir, o); !errors.Is(err, ErrMissing) {
		t.Fatalf("open of an empty directory: %v", err)
	}
	must(t, start(t, fs, bigOptions()).Close())
	o.Identity[3] = 9
	if _, err := Open(fs, testDir, o); !errors.Is(err, ErrIdentity) {
		t.Fatalf("open with another identity: %v", err)
	}
}

func TestOptions_Refused(t *testing.T) {
	for _, o := range []Options{
		{FileSize: 8 << 10}, {FileSize: 2 << 30}, {FileSize: 16<<10 + 1},
		{FileSize: 1 << 20, MaxBytes: 2<<20 - 1}, {MaxUnsyncedBytes: -1},
	} {
		o.Create = true
		if _, err := Open(newDisk(t), testDir, o); err == nil {
			t.Errorf("options %+v were taken", o)
		}
	}
}

func TestJournal_CallsOutOfOrder(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	appendNumbered(t, j, 10)
	if err := j.Start(2, 5); !errors.Is(err, ErrState) {
		t.Errorf("second start: %v", err)
	}
	if _, err := j.Replay(0, 0, nil); !errors.Is(err, ErrState) {
		t.Errorf("replay after start: %v", err)
	}
	if err := j.Sync(context.Background(), 2); !errors.Is(err, ErrState) {
		t.Errorf("sync beyond the end: %v", err)
	}
	if _, _, err := j.Append(nil); err == nil {
		t.Error("append of nothing succeeded")
	}
	must(t, j.Close())
	if _, _, err := j.Append(nil, testEntry(2, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if err := j.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	j, err := Open(fs, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	if _, _, err := j.Append(nil, testEntry(2, 1)); !errors.Is(err, ErrState) {
		t.Errorf("append before start: %v", err)
	}
	if err := j.Start(2, 2); !errors.Is(err, ErrState) {
		t.Errorf("start without replay: %v", err)
	}
	_, _, err = replayAll(j, 0, 0)
	must(t, err)
	if err := j.Start(2, 1); !errors.Is(err, ErrState) {
		t.Errorf("start with a used lsn: %v", err)
	}
	if err := j.Start(0, 2); !errors.Is(err, ErrState) {
		t.Errorf("start with an older epoch: %v", err)
	}
	must(t, j.Start(1, 2))
}

func TestJournal_Start_JumpIsNoGap(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	appendNumbered(t, j, 10)
	must(t, j.Close())
	j, err := Open(fs, testDir, bigOptions())
	must(t, err)
	_, _, err = replayAll(j, 0, 0)
	must(t, err)
	must(t, j.Start(2, 100))
	appendNumbered(t, j, 10)
	must(t, j.Close())

	for _, after := range []LSN{0, 1, 50, 99} {
		j, err = Open(fs, testDir, bigOptions())
		must(t, err)
		records, info, err := replayAll(j, after, 100)
		must(t, err)
		if last := records[len(records)-1]; last.lsn != 100 || info.GapFirst != 0 || info.Torn {
			t.Fatalf("after %d: last lsn %d, %+v", after, last.lsn, info)
		}
		must(t, j.Close())
	}
}

func TestJournal_Replay_ReportsGap(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	for range 100 {
		appendNumbered(t, j, 1000)
	}
	syncAll(t, j)
	must(t, j.Free(50))
	must(t, j.Close())
	j, err := Open(fs, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 3, 100)
	must(t, err)
	must(t, checkNumbered(records, info.First))
	if info.GapFirst != 4 || info.GapLast != info.First-1 || info.GapLast < 4 || info.GapLast > 50 || info.Last != 100 {
		t.Fatalf("replay says %+v", info)
	}
}

func TestJournal_Replay_MissingFileIsDamage(t *testing.T) {
	for drop := range 5 {
		fs := newDisk(t)
		j := start(t, fs, bigOptions())
		for range 60 {
			appendNumbered(t, j, 1000)
		}
		must(t, j.Close())
		list := names(t, fs, inUse)
		if len(list) < 5 {
			t.Fatalf("only %d files", len(list))
		}
		must(t, fs.Remove(testDir+"/"+list[drop]))
		j, err := Open(fs, testDir, bigOptions())
		must(t, err)
		_, info, err := replayAll(j, 0, 60)
		if drop == 0 {
			if err != nil || info.GapFirst != 1 {
				t.Errorf("without the first file: %+v, %v", info, err)
			}
		} else if !errors.Is(err, ErrDamaged) {
			t.Errorf("without file %s: %v", list[drop], err)
		}
		must(t, j.Close())
	}
}

func TestJournal_Replay_EmptyFile(t *testing.T) {
	fs := newDisk(t)
	must(t, fs.MkdirAll(testDir, 0o700))
	writeAll(t, fs, fileName(1, inUse), nil)
	o := bigOptions()
	o.Create = true
	j, err := Open(fs, testDir, o)
	must(t, err)
	records, info, err := replayAll(j, 0, 0)
	must(t, err)
	if len(records) != 0 || !info.Torn {
		t.Fatalf("an empty file gave %d records, %+v", len(records), info)
	}
	must(t, j.Start(1, 1))
	appendNumbered(t, j, 10)
	must(t, j.Close())
	if have := len(names(t, fs, inUse)) + len(names(t, fs, spareFile)); j.total != have {
		t.Errorf("the journal counts %d files, the directory has %d", j.total, have)
	}

	writeAll(t, fs, fileName(1, inUse), nil)
	j, err = Open(fs, testDir, o)
	must(t, err)
	defer stop(t, j)
	if _, _, err := replayAll(j, 0, 1); !errors.Is(err, ErrDamaged) {
		t.Fatalf("an emptied file with a durable record: %v", err)
	}
}

func TestJournal_Epoch_IsKeptByRecord(t *testing.T) {
	fs := newDisk(t)
	for range 3 {
		j := start(t, fs, bigOptions())
		appendNumbered(t, j, 10)
		must(t, j.Close())
	}
	j, err := Open(fs, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, 0)
	must(t, err)
	must(t, checkNumbered(records, 1))
	for i, r := range records {
		if r.epoch != uint64(i+1) {
			t.Errorf("lsn %d has epoch %d", r.lsn, r.epoch)
		}
	}
	if len(records) != 3 || info.Epoch != 3 || j.Epoch() != 3 {
		t.Fatalf("%d records, %+v", len(records), info)
	}
}
