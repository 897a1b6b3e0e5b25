package gateway

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// A snapshot says where the database in it is when that is found out meanwhile, and
// waits no longer for it than its bound.
func TestCreateSnapshot_Database_BoundedAndNeverAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		defer mustClose(t, v)
		want := &metadata.PinDatabase{Dir: "db", Server: "11.8.8", File: "mysql-bin.000002", Offset: 625, GTID: "3-11-8"}
		returned := false
		for name, c := range map[string]struct {
			look DatabaseOf
			want *metadata.PinDatabase
			took time.Duration
		}{
			"at-once": {func(context.Context, metadata.CommitID) *metadata.PinDatabase { return want }, want, 0},
			"late": {func(ctx context.Context, _ metadata.CommitID) *metadata.PinDatabase {
				<-ctx.Done()
				returned = true
				return nil
			}, nil, databaseWait},
			"none":    {func(context.Context, metadata.CommitID) *metadata.PinDatabase { return nil }, nil, 0},
			"nothing": {nil, nil, 0},
		} {
			start := time.Now()
			info, err := CreateSnapshot(bg, SnapshotOptions{Store: l.bucket, URL: "mem://lab", Name: name, Database: c.look, Rand: l})
			if took := time.Since(start); err != nil || took != c.took {
				t.Errorf("%s: %v, after %v", name, err, took)
			}
			again, err := FindSnapshot(bg, l.bucket, "mem://lab", name)
			if err != nil || !reflect.DeepEqual(again.Database, c.want) || !reflect.DeepEqual(info.Database, c.want) {
				t.Errorf("%s: %+v, %+v, %v", name, info.Database, again.Database, err)
			}
		}
		if !returned {
			t.Error("the look goes on after the snapshot was made")
		}
	})
}

// Whatever request of a snapshot fails, the look at its database has ended with it.
func TestCreateSnapshot_Database_EveryFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		defer mustClose(t, v)
		for n := 0; ; n++ {
			s := faultstore.New(l.bucket, func(_ faultstore.Op, _ string, i int) faultstore.Fault {
				if i != n {
					return faultstore.Fault{}
				}
				return faultstore.Fault{Kind: faultstore.Before}
			})
			looking := 0
			_, err := CreateSnapshot(bg, SnapshotOptions{
				Store: s, URL: "mem://lab", Name: "s", Rand: l,
				Database: func(ctx context.Context, _ metadata.CommitID) *metadata.PinDatabase {
					looking++
					defer func() { looking-- }()
					<-ctx.Done()
					return nil
				},
			})
			if looking != 0 {
				t.Errorf("call %d fails: the look goes on", n)
			}
			if err == nil {
				if n < 5 {
					t.Errorf("only %d calls could fail", n)
				}
				return
			}
		}
	})
}

// A schedule's snapshots say it, too.
func TestVolume_Schedule_SnapshotsSayWhereTheDatabaseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		l.setSchedule(t, "auto", time.Hour, "")
		asked, calls := map[metadata.CommitID]bool{}, int64(0)
		v := l.mustMount(func(o *Options) {
			keeping(o)
			o.Database = func(v *Volume) DatabaseOf {
				return func(_ context.Context, id metadata.CommitID) *metadata.PinDatabase {
					asked[id] = v.Committed().Head().CommitID == id
					calls++
					return &metadata.PinDatabase{File: "mysql-bin.000001", Offset: calls}
				}
			}
		})
		time.Sleep(90 * time.Minute)
		mustClose(t, v)
		list, err := Snapshots(bg, l.bucket)
		if err != nil || len(list) != 2 {
			t.Fatalf("%d snapshots, %v", len(list), err)
		}
		for i, s := range list {
			if s.Database == nil || s.Database.Offset != int64(i+1) || !asked[s.Commit] {
				t.Errorf("%s of %v: %+v; asked for %v", s.Name, s.Commit, s.Database, asked)
			}
		}
	})
}
