package gateway

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

func (l *lab) setSchedule(t *testing.T, name string, every time.Duration, keep string) {
	t.Helper()
	s := Schedule{Name: name, Every: int64(every), Created: time.Now().UnixNano()}
	if keep != "" {
		var err error
		if s.Keep, err = ParseKeep(keep); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetSchedule(bg, l.bucket, s, l); err != nil {
		t.Fatal(err)
	}
}

// scheduledAt are the times of a schedule's snapshots, newest first.
func (l *lab) scheduledAt(t *testing.T, name string) (when []time.Time) {
	t.Helper()
	all, err := Snapshots(bg, l.bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ofSchedule(all, &Schedule{Name: name, Every: int64(time.Hour)}, time.Now()) {
		when = append(when, s.Created)
	}
	return when
}

func keeping(o *Options) { o.Manual, o.Schedules = false, true }

func TestParseKeep_Cases(t *testing.T) {
	got, err := ParseKeep(" 24 hourly, 7 daily,4 weekly ")
	if err != nil || fmt.Sprint(got) != "[{24 hourly} {7 daily} {4 weekly}]" || KeepText(got) != "24 hourly, 7 daily, 4 weekly" || KeepText(nil) != "all" {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "24", "hourly", "0 daily", "-1 daily", "10001 daily", "1 daily 2", "1 daily, 2 daily", "1 fortnightly", "x daily"} {
		if _, err := ParseKeep(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestKeepWhich_OfEachPeriodTheLast(t *testing.T) {
	now := time.Date(2026, 11, 30, 18, 20, 0, 0, time.UTC) // a Monday
	var when []time.Time
	for i := range 24 * 60 { // every hour of two months
		when = append(when, now.Add(-time.Duration(i)*time.Hour))
	}
	rules, err := ParseKeep("24 hourly, 7 daily, 4 weekly, 2 monthly")
	if err != nil {
		t.Fatal(err)
	}
	var days, hours []string
	for i, k := range keepWhich(rules, when) {
		if k && i >= 24 {
			days = append(days, when[i].Format("01-02T15"))
		} else if k {
			hours = append(hours, when[i].Format("02T15"))
		}
	}
	if len(hours) != 24 || hours[0] != "30T18" || hours[23] != "29T19" {
		t.Errorf("hours: %v", hours)
	}
	// The 29th is among the hours; daily and weekly share the 29th; October's last.
	want := "[11-28T23 11-27T23 11-26T23 11-25T23 11-24T23 11-22T23 11-15T23 10-31T23]"
	if fmt.Sprint(days) != want {
		t.Errorf("days: %v\nwant  %s", days, want)
	}
	if k := keepWhich(nil, when[:3]); !k[0] || !k[1] || !k[2] {
		t.Errorf("without rules: %v", k)
	}
	if k := keepWhich([]metadata.KeepRule{{Count: 1, Period: "of a newer release"}}, when[:3]); !k[0] || !k[1] || !k[2] {
		t.Errorf("with an unknown rule: %v", k)
	}
}

func TestVolume_Schedule_DaysGoBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		time.Sleep(20 * time.Minute) // between two snapshots, whenever it looks
		l.setSchedule(t, "auto", time.Hour, "24 hourly, 7 daily")
		l.mustSnapshot(t, "mine", 0)
		v := l.mustMount(keeping)
		f := files{}
		for day := range 10 {
			f.put(t, v, "a", l.noise(100), day*100)
			time.Sleep(24 * time.Hour)
		}
		when := l.scheduledAt(t, "auto")
		if len(when) != 24+5 {
			t.Fatalf("%d snapshots: %v", len(when), when)
		}
		for i, at := range when {
			if i < len(when)-1 && at.Sub(at.Truncate(time.Hour)) > time.Minute {
				t.Errorf("a snapshot at %v", at)
			}
		}
		if len(l.named(t, "mine")) != 1 {
			t.Error("a snapshot of somebody's own is gone")
		}
		if d := f.diff(bucketFiles(t, l.bucket, mustPoint(t, l, when[0]))); d != "" {
			t.Errorf("the last one: %s", d)
		}
		mustClose(t, v)

		// While nobody has it nothing is made; what was missed is made up once.
		time.Sleep(50 * time.Hour)
		v = l.mustMount(keeping)
		time.Sleep(time.Second)
		after := l.scheduledAt(t, "auto")
		if n := 0; true {
			for _, at := range after {
				if at.After(when[0]) {
					n++
				}
			}
			if n != 1 || time.Since(after[0]) > time.Minute {
				t.Errorf("%d were made up, the last at %v", n, after[0])
			}
		}

		// Another schedule is kept at once when it is told, and ends when cleared.
		l.setSchedule(t, "often", 10*time.Minute, "3 last")
		v.ReloadSchedules()
		time.Sleep(2*time.Hour + time.Minute)
		if got := l.scheduledAt(t, "often"); len(got) != 3 || time.Since(got[0]) > 11*time.Minute {
			t.Errorf("often: %v", got)
		}
		l.setSchedule(t, "often", time.Hour, "2 last")
		if list, err := Schedules(bg, l.bucket); err != nil || len(list) != 2 || list[1].Every != int64(time.Hour) {
			t.Errorf("%+v, %v", list, err)
		}
		if err := ClearSchedule(bg, l.bucket, "often"); err != nil {
			t.Fatal(err)
		}
		wantErr(t, ClearSchedule(bg, l.bucket, "often"), ErrNotExist)
		v.ReloadSchedules()
		last := l.scheduledAt(t, "often")
		time.Sleep(5 * time.Hour)
		if got := l.scheduledAt(t, "often"); len(got) != len(last) || !got[0].Equal(last[0]) {
			t.Errorf("a cleared schedule went on: %v", got)
		}
		mustClose(t, v)
	})
}

// mustPoint is the commit of the snapshot that was made at a time.
func mustPoint(t *testing.T, l *lab, at time.Time) uint64 {
	t.Helper()
	all, err := Snapshots(bg, l.bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Created.Equal(at) {
			return s.Commit.N
		}
	}
	t.Fatalf("no snapshot of %v", at)
	return 0
}

// A store that fails puts a snapshot off; it is made when the store is back.
func TestVolume_Schedule_StoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2, 8192)
		time.Sleep(20 * time.Minute)
		l.setSchedule(t, "auto", time.Hour, "5 last")
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, keeping)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		before := l.scheduledAt(t, "auto")
		away := errors.New("the store is away")
		s.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Kind: faultstore.Before, Err: away}
		})
		time.Sleep(4 * time.Hour)
		if got := l.scheduledAt(t, "auto"); len(got) != len(before) {
			t.Fatalf("%d snapshots while the store was away, %d before", len(got), len(before))
		}
		told := false
		for _, f := range v.Status().Failing {
			told = told || f.Work == workSchedule
		}
		if !told {
			t.Errorf("the status does not tell: %+v", v.Status().Failing)
		}
		s.SetHook(nil)
		time.Sleep(5 * time.Minute)
		if got := l.scheduledAt(t, "auto"); len(got) != min(5, len(before)+1) || time.Since(got[0]) > 5*time.Minute {
			t.Errorf("after the outage: %v", got)
		}
		mustClose(t, v)
		s.Close()
	})
}

// A volume that is read-only makes none and deletes none.
func TestVolume_Schedule_OnlyTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		l.setSchedule(t, "auto", time.Hour, "2 last")
		v := l.mustMount(keeping)
		time.Sleep(5*time.Hour + time.Minute) // no snapshot is being made now
		if _, err := v.Handover(bg); err != nil {
			t.Fatal(err)
		}
		before := l.scheduledAt(t, "auto")
		time.Sleep(5 * time.Hour)
		if got := l.scheduledAt(t, "auto"); len(got) != 2 || !got[0].Equal(before[0]) {
			t.Errorf("after the hand-over: %v", got)
		}
		if err := v.Close(bg); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSetSchedule_BadOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 4, 8192)
		for _, s := range []Schedule{
			{Name: "a@b", Every: int64(time.Hour)}, {Name: "a", Every: 0}, {Name: "a", Every: int64(time.Second)}, {Name: "a", Every: int64(10000 * time.Hour)},
			{Name: fmt.Sprintf("%061d", 1)[:61] + "a", Every: int64(time.Hour)}, {Name: "a", Every: int64(time.Hour), Tags: map[string]string{ScheduleTag: "x"}},
		} {
			wantErr(t, SetSchedule(bg, l.bucket, s, l), ErrInvalid)
		}
		for i := range maxSchedules {
			l.setSchedule(t, fmt.Sprint("s", i), time.Hour, "")
		}
		wantErr(t, SetSchedule(bg, l.bucket, Schedule{Name: "more", Every: int64(time.Hour)}, l), ErrInvalid)
		l.setSchedule(t, "s0", 2*time.Hour, "1 daily")
	})
}

// A pin and a schedule that can't be read, and a snapshot of a clock that was wrong,
// hold no snapshot up; while there are the first two nothing is deleted.
func TestVolume_Schedule_OthersAreDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		l.setSchedule(t, "auto", time.Hour, "2 last")
		bad := Schedule{Name: "bad", Every: int64(time.Hour)}
		key := metadata.ScheduleKey(bad.Name, "00")
		if err := objstore.Create(bg, l.bucket, key, metadata.EncodeSchedule(&bad)); err != nil {
			t.Fatal(err)
		}
		harm(t, l.bucket, key, "flipped")
		pin := l.mustSnapshot(t, "mine", 0)
		harm(t, l.bucket, pin.Key, "flipped")
		v := l.mustMount(keeping)
		time.Sleep(5 * time.Hour)
		got, err := Snapshots(bg, l.bucket)
		wantErr(t, err, ErrDamaged)
		if len(got) < 5 || len(v.Status().Failing) == 0 {
			t.Errorf("%d snapshots, failing %+v", len(got), v.Status().Failing)
		}
		for _, k := range []string{key, pin.Key} {
			if err := l.bucket.Delete(bg, k); err != nil {
				t.Fatal(err)
			}
		}
		o := l.snapshot(l.bucket, "auto-future", 0)
		o.Tags = map[string]string{ScheduleTag: "auto"}
		o.Now = func() time.Time { return time.Now().Add(1000 * time.Hour) }
		if _, err := createSnapshot(bg, o); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		if when := l.scheduledAt(t, "auto"); len(when) != 2 || time.Since(when[0]) > 61*time.Minute {
			t.Errorf("after a snapshot of the future: %v", when)
		}
		if len(l.named(t, "auto-future")) != 1 {
			t.Error("the snapshot of the future is deleted")
		}
		mustClose(t, v)
	})
}

// A schedule reads each pin once.
func TestVolume_Schedule_ReadsAPinOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 6, 8192)
		l.setSchedule(t, "auto", time.Hour, "")
		pin := l.mustSnapshot(t, "mine", 0)
		s := faultstore.New(l.bucket, nil)
		var reads atomic.Int64
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Get && key == pin.Key {
				reads.Add(1)
			}
			return faultstore.Fault{}
		})
		v, err := l.mount(s, keeping)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Hour)
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads in ten rounds", n)
		}
		mustClose(t, v)
		s.Close()
	})
}
