package gateway

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Schedule says when snapshots are made, and which of them stay; see
// metadata.Schedule.
type Schedule = metadata.Schedule

const (
	// ScheduleTag is the tag of a snapshot that a schedule made, with its name: no
	// other one is ever deleted by a schedule, and nobody else can set it (CheckTag).
	ScheduleTag = "schedule"

	// LeastEvery is the least time between two snapshots of a schedule.
	LeastEvery = time.Minute

	maxSchedules    = 16
	maxKeep         = 10000 // snapshots of one rule
	maxScheduleName = 60    // bytes: a snapshot's name is this and a time

	scheduleReload = time.Hour   // between looks for other schedules
	scheduleRetry  = time.Minute // after a failure
)

// periods are those of keep rules: the period that a moment, in UTC, lies in.
func periods() map[string]func(time.Time) string {
	return map[string]func(time.Time) string{
		"last":    func(t time.Time) string { return t.Format(time.RFC3339Nano) },
		"hourly":  func(t time.Time) string { return t.Format("2006-01-02 15") },
		"daily":   func(t time.Time) string { return t.Format("2006-01-02") },
		"weekly":  func(t time.Time) string { y, w := t.ISOWeek(); return fmt.Sprint(y, w) },
		"monthly": func(t time.Time) string { return t.Format("2006-01") },
		"yearly":  func(t time.Time) string { return t.Format("2006") },
	}
}

// ParseKeep reads keep rules: a number and a period each, as in "24 hourly, 7
// daily, 4 weekly", or "all", which is none. ErrInvalid with the reason.
func ParseKeep(text string) (keep []metadata.KeepRule, err error) {
	if strings.TrimSpace(text) == "all" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		f := strings.Fields(part)
		n := 0
		if len(f) == 2 {
			n, _ = strconv.Atoi(f[0])
		}
		if len(f) != 2 || periods()[f[1]] == nil {
			return nil, fmt.Errorf("%w: %q: give a number and one of last, hourly, daily, weekly, monthly and yearly, with commas between, as in \"24 hourly, 7 daily, 4 weekly\"", ErrInvalid, strings.TrimSpace(part))
		}
		if n < 1 || n > maxKeep {
			return nil, fmt.Errorf("%w: %q: 1 to %d snapshots are possible", ErrInvalid, strings.TrimSpace(part), maxKeep)
		}
		if slices.ContainsFunc(keep, func(k metadata.KeepRule) bool { return k.Period == f[1] }) {
			return nil, fmt.Errorf("%w: %s is there twice", ErrInvalid, f[1])
		}
		keep = append(keep, metadata.KeepRule{Count: n, Period: f[1]})
	}
	return keep, nil
}

// KeepText writes keep rules as ParseKeep reads them; "all" for none.
func KeepText(keep []metadata.KeepRule) string {
	if len(keep) == 0 {
		return "all"
	}
	parts := make([]string, len(keep))
	for i, k := range keep {
		parts[i] = fmt.Sprintf("%d %s", k.Count, k.Period)
	}
	return strings.Join(parts, ", ")
}

// keepWhich says which snapshots keep rules keep: of each of a rule's last periods that
// have one, the last one. when are their times, newest first.
func keepWhich(keep []metadata.KeepRule, when []time.Time) []bool {
	out := make([]bool, len(when))
	for _, k := range keep {
		of, last, left := periods()[k.Period], "", k.Count
		if of == nil { // of a newer release: nothing is deleted that it may keep
			of = periods()["last"]
			left = len(when)
		}
		for i, t := range when {
			if p := of(t.UTC()); p != last && left > 0 {
				out[i], last = true, p
				left--
			}
		}
	}
	if len(keep) == 0 {
		for i := range out {
			out[i] = true
		}
	}
	return out
}

func checkSchedule(s *Schedule) error {
	if err := CheckNewName(s.Name); err != nil {
		return err
	}
	if len(s.Name) > maxScheduleName {
		return fmt.Errorf("%w: %q is no name for a schedule: %d bytes are possible", ErrInvalid, s.Name, maxScheduleName)
	}
	if s.Every < int64(LeastEvery) || s.Every > int64(366*24*time.Hour) {
		return fmt.Errorf("%w: snapshots every %v: 1 minute to 366 days are possible", ErrInvalid, time.Duration(s.Every))
	}
	if len(s.Tags) > maxTags-1 {
		return fmt.Errorf("%w: %d tags, %d are possible", ErrInvalid, len(s.Tags), maxTags-1)
	}
	for k, v := range s.Tags {
		if err := CheckTag(k, v); err != nil {
			return err
		}
	}
	return nil
}

// SetSchedule puts a schedule in place of the one of its name. It needs no lease;
// the mount that owns the volume hears of it within an hour, or when it is told
// (Volume.ReloadSchedules). Errors: ErrInvalid, ErrStore, ErrDamaged.
func SetSchedule(ctx context.Context, s objstore.Store, x Schedule, random io.Reader) error {
	if err := checkSchedule(&x); err != nil {
		return err
	}
	old, err := schedules(ctx, s)
	if err != nil && !unreadable(err) {
		return err
	}
	others := 0
	for _, o := range old {
		if o.Name != x.Name {
			others++
		}
	}
	if others >= maxSchedules {
		return fmt.Errorf("%w: there are %d schedules, as many as are possible: clear one first", ErrInvalid, others)
	}
	var b [8]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return fmt.Errorf("random numbers: %w", err)
	}
	key := metadata.ScheduleKey(x.Name, hex.EncodeToString(b[:]))
	if err := objstore.Create(ctx, s, key, metadata.EncodeSchedule(&x)); err != nil {
		return storeError("set schedule "+x.Name, err)
	}
	for _, o := range old {
		if o.Name == x.Name {
			if err := s.Delete(ctx, o.key); err != nil {
				return storeErrorAt("delete", o.key, err)
			}
		}
	}
	return nil
}

// ClearSchedule takes a schedule away; its snapshots stay. ErrNotExist when there
// is none of that name.
func ClearSchedule(ctx context.Context, s objstore.Store, name string) error {
	list, err := schedules(ctx, s)
	if err != nil && !unreadable(err) {
		return err
	}
	found := false
	for _, x := range list {
		if x.Name == name {
			found = true
			if err := s.Delete(ctx, x.key); err != nil {
				return storeErrorAt("delete", x.key, err)
			}
		}
	}
	if !found {
		return fmt.Errorf("%w: no schedule is called %s", ErrNotExist, name)
	}
	return nil
}

// Schedules returns a volume's schedules by name.
func Schedules(ctx context.Context, s objstore.Store) ([]Schedule, error) {
	list, err := schedules(ctx, s)
	var out []Schedule
	for i := range list {
		// Of two of one name, one of which is about to be deleted, the later counts.
		if n := len(out); n > 0 && out[n-1].Name == list[i].Name {
			out[n-1] = list[i].Schedule
		} else {
			out = append(out, list[i].Schedule)
		}
	}
	return out, err
}

type storedSchedule struct {
	Schedule
	key string
}

// schedules are sorted by name, and those of one name by age.
// With ErrDamaged or ErrNewerFormat they are those that can be read.
func schedules(ctx context.Context, s objstore.Store) (list []storedSchedule, err error) {
	var bad error // the first that can't be read
	err = objstore.ListAll(ctx, s, metadata.SchedulePrefix, "", func(i objstore.Info) error {
		err := readDocument(ctx, s, i.Key, maxPinBytes, func(body []byte, _ objstore.Info) error {
			x, err := metadata.DecodeSchedule(body)
			if err == nil {
				list = append(list, storedSchedule{*x, i.Key})
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		if unreadable(err) {
			bad = cmp.Or(bad, err)
			return nil
		}
		return err
	})
	if err != nil && !isDamage(err) && !errors.Is(err, ErrNewerFormat) && !errors.Is(err, ErrStore) {
		err = storeError("list schedules", err)
	}
	slices.SortFunc(list, func(a, b storedSchedule) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Created, b.Created), cmp.Compare(a.key, b.key))
	})
	return list, cmp.Or(err, bad)
}

// unreadable says whether an error is one document's, and not the store's: others can
// be read.
func unreadable(err error) bool { return isDamage(err) || errors.Is(err, ErrNewerFormat) }

// ofSchedule returns a schedule's snapshots that count, newest first. One that lies
// more than a period in the future, of a clock that was wrong, neither holds up the next
// one nor takes its place, and is not deleted until then; less is how clocks differ.
func ofSchedule(all []SnapshotInfo, x *Schedule, now time.Time) (list []SnapshotInfo) {
	for _, s := range all {
		if s.Tags[ScheduleTag] == x.Name && !s.Expired && s.Created.Sub(now) <= time.Duration(x.Every) {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b SnapshotInfo) int { return b.Created.Compare(a.Created) })
	return list
}

// NextSnapshot is when a schedule's next snapshot is due, given the volume's
// snapshots: at once when one was missed.
func NextSnapshot(s *Schedule, all []SnapshotInfo, now time.Time) time.Time {
	list := ofSchedule(all, s, now)
	if len(list) == 0 {
		return now
	}
	at := time.Unix(0, (list[0].Created.UnixNano()/s.Every+1)*s.Every)
	if at.Before(now) {
		return now
	}
	return at
}

// ReloadSchedules makes the volume look at once whether its schedules have changed.
func (v *Volume) ReloadSchedules() {
	select {
	case v.scheduleSoon <- struct{}{}:
	default: // asked for already
	}
}

// runSchedules keeps the volume's schedules while this process owns it.
func (v *Volume) runSchedules() {
	defer v.group.Done()
	m := &scheduleMemory{told: map[string]bool{}}
	for {
		wait, err := v.scheduleRound(v.ctx, m)
		if v.ctx.Err() == nil {
			v.outages.schedule.note(v.log, workSchedule, err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-v.scheduleSoon:
			t.Stop()
		case <-v.quit:
			t.Stop()
			return
		}
		if v.Stopped() != nil {
			return
		}
	}
}

// scheduleMemory is what a round of the schedules leaves to the next.
type scheduleMemory struct {
	pins pinMemory
	told map[string]bool // keys of snapshots of the future of which the log tells
}

// scheduleRound makes the snapshots that are due, deletes those that no rule keeps,
// and says when to come again. What was missed is made up by one snapshot. A document
// that can't be read is told and holds up only the deleting.
func (v *Volume) scheduleRound(ctx context.Context, m *scheduleMemory) (wait time.Duration, err error) {
	list, err := Schedules(ctx, v.store)
	if err != nil && !unreadable(err) {
		return scheduleRetry, err
	}
	errs := []error{err}
	if len(list) == 0 {
		return scheduleReload, err
	}
	all, bad := listSnapshots(ctx, v.store, metadata.PinPrefix, v.opt.Now(), &m.pins)
	if bad != nil && !unreadable(bad) {
		return scheduleRetry, bad
	}
	errs = append(errs, bad)
	wait = scheduleReload
	for i := range list {
		v.tellFuture(&list[i], all, m)
		s := &list[i]
		now := v.opt.Now()
		at := NextSnapshot(s, all, now)
		if !at.After(now) {
			made, err := v.scheduled(ctx, s, now)
			if err != nil {
				errs = append(errs, fmt.Errorf("snapshot of schedule %s: %w", s.Name, err))
				wait = min(wait, scheduleRetry)
				continue
			}
			all = append(all, made)
			at = NextSnapshot(s, all, now)
		}
		if bad != nil {
			// What a pin that can't be read keeps is not known: nothing is deleted.
		} else if err := v.pruneScheduled(ctx, s, all, now); err != nil {
			errs = append(errs, err)
			wait = min(wait, scheduleRetry)
		}
		wait = min(wait, max(at.Sub(now), time.Second))
	}
	return wait, errors.Join(errs...)
}

// tellFuture logs, once each, the snapshots of a schedule that don't count yet.
func (v *Volume) tellFuture(x *Schedule, all []SnapshotInfo, m *scheduleMemory) {
	for _, s := range all {
		if s.Tags[ScheduleTag] == x.Name && s.Created.Sub(v.opt.Now()) > time.Duration(x.Every) && !m.told[s.Key] {
			m.told[s.Key] = true
			v.log.Warn("a scheduled snapshot lies in the future: a clock was wrong, and its schedule goes on without it", "volume", v.opt.URL, "snapshot", s.Name, "created", s.Created)
		}
	}
}

// scheduled commits, and keeps the commit for a schedule.
func (v *Volume) scheduled(ctx context.Context, s *Schedule, now time.Time) (SnapshotInfo, error) {
	id, err := v.Commit(ctx)
	if err != nil {
		return SnapshotInfo{}, err
	}
	tags := maps.Clone(s.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[ScheduleTag] = s.Name
	info, err := createSnapshot(ctx, SnapshotOptions{
		Store: v.store, URL: v.opt.URL, Name: s.Name + "-" + now.UTC().Format("20060102-150405"), Commit: id.N, Tags: tags,
		Holder: fmt.Sprintf("%s, process %d: schedule %s", v.opt.Owner.Host, v.opt.Owner.PID, s.Name), Rand: v.opt.Rand, Now: v.opt.Now,
		Database: v.databaseOf(),
	})
	if err == nil {
		v.log.Info("snapshot made by its schedule", "volume", v.opt.URL, "snapshot", info.Name, "commit", info.Commit)
	}
	return info, err
}

// databaseOf is how the volume's own snapshots learn of a database in them.
func (v *Volume) databaseOf() DatabaseOf {
	if v.opt.Database == nil {
		return nil
	}
	return v.opt.Database(v)
}

// pruneScheduled deletes a schedule's snapshots that none of its rules keeps.
func (v *Volume) pruneScheduled(ctx context.Context, s *Schedule, all []SnapshotInfo, now time.Time) error {
	mine := ofSchedule(all, s, now)
	when := make([]time.Time, len(mine))
	for i := range mine {
		when[i] = mine[i].Created
	}
	for i, keep := range keepWhich(s.Keep, when) {
		if keep {
			continue
		}
		if err := v.Stopped(); err != nil {
			return err
		}
		if err := v.store.Delete(ctx, mine[i].Key); err != nil {
			return storeError("delete snapshot "+mine[i].Name, err)
		}
		v.log.Info("snapshot deleted by its schedule", "volume", v.opt.URL, "snapshot", mine[i].Name, "keep", KeepText(s.Keep))
	}
	return nil
}
