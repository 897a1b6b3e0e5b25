package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// A snapshot is a pin of the kind PinSnapshot with a name that is its own in the
// volume. The key shows the name as it is, so that one is found by one listing:
//
//	pins/<name>~<random>.json
//
// Bounds of what a snapshot carries.
const (
	maxSnapshotName = 100 // bytes
	maxTags         = 32
	maxTagKey       = 64  // bytes
	maxTagValue     = 256 // bytes

	// Who has the lower key of two that took one name waits this often, and this
	// long each time, for the other to give way.
	nameTries = 10
	namePause = 200 * time.Millisecond
)

// SnapshotOptions say what to keep, and under which name.
type SnapshotOptions struct {
	Store    objstore.Store
	URL      string // of the volume, for messages
	Name     string
	Holder   string            // for people
	Tags     map[string]string // at most 32; keys of 64 bytes [A-Za-z0-9._-], values of 256 bytes
	Commit   uint64            // its number; 0: the last
	Lifetime time.Duration     // after which it expires, at least 4 h; 0: it does not
	Database DatabaseOf        // what it says of the database in it; nil: nothing
	Rand     io.Reader         // default: the system's
	Now      func() time.Time
}

// SnapshotInfo is a snapshot as its pin has it.
type SnapshotInfo struct {
	Name    string
	Commit  metadata.CommitID
	Time    time.Time // of the commit; zero when the pin does not tell
	Created time.Time // zero when the pin does not tell
	Expiry  time.Time // zero: it does not expire
	Expired bool      // no command finds it by its name any more
	Totals  metadata.Totals
	Tags    map[string]string
	Holder  string
	Key     string

	Database *metadata.PinDatabase // nil: it does not tell
}

// ErrNameTaken: the volume has a snapshot of that name.
var ErrNameTaken = errors.New("name is taken")

// reservedName is what the mount table shows in a point's place where the mount
// follows the writer.
const reservedName = "follow"

// CheckSnapshotName returns ErrInvalid with the reason when a name can't be a
// snapshot's: it must not be taken for a commit's number or a time. What an older
// release allowed is still found: see CheckNewName.
func CheckSnapshotName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > maxSnapshotName:
		why = fmt.Sprintf("it has %d bytes, %d are possible", len(name), maxSnapshotName)
	case strings.HasPrefix(name, "-") && looksLikePoint(name[1:]):
		why = "it would be a time back from now: let it begin with a letter"
	case !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`).MatchString(name):
		why = "it must be of letters, digits, dots, dashes and underscores, a letter or digit first"
	case regexp.MustCompile(`^[0-9]+$`).MatchString(name):
		why = "it would be a commit's number"
	case regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}`).MatchString(name):
		why = "it looks like a time: let it begin with a letter"
	case name == reservedName:
		why = "the name is taken for mounts that follow the writer"
	}
	return badName(name, why)
}

// CheckNewName is CheckSnapshotName for a snapshot or schedule that is made now,
// whose name must not even look like a point: 2026-x would be read as a time
// that is mistyped, and 15m as -15m without its dash.
func CheckNewName(name string) error {
	if err := CheckSnapshotName(name); err != nil {
		return err
	}
	if looksLikePoint(name) {
		return badName(name, "it looks like a time: let it begin with a letter")
	}
	return nil
}

// looksLikePoint says whether who reads a name takes it for the beginning of a date,
// or for a length of time.
func looksLikePoint(name string) bool {
	if regexp.MustCompile(`^[0-9]{4}[-T:.]`).MatchString(name) {
		return true
	}
	_, err := config.ParseLength(name)
	return err == nil
}

func badName(name, why string) error {
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w: %q is no name for a snapshot: %s", ErrInvalid, name, why)
}

// CheckTag returns ErrInvalid with the reason when somebody can't give a tag: also
// when it is one by which schedules and restores know their own.
func CheckTag(key, value string) error {
	if key == ScheduleTag || key == restoreTag {
		return fmt.Errorf("%w: the tag %s is set by schedules and restores alone", ErrInvalid, key)
	}
	return checkTag(key, value)
}

func checkTag(key, value string) error {
	switch {
	case len(key) > maxTagKey || !regexp.MustCompile(`^[A-Za-z0-9._-]+$`).MatchString(key):
		return fmt.Errorf("%w: tag %q: a key is 1 to %d letters, digits, dots, dashes and underscores", ErrInvalid, key, maxTagKey)
	case len(value) > maxTagValue || !utf8.ValidString(value):
		return fmt.Errorf("%w: tag %q: a value is UTF-8 of at most %d bytes", ErrInvalid, key, maxTagValue)
	}
	return nil
}

func (o *SnapshotOptions) check() error {
	check := CheckNewName
	if o.Tags[ScheduleTag] != "" {
		check = CheckSnapshotName // a schedule's name may be older than the rule
	}
	if err := check(o.Name); err != nil {
		return err
	}
	if len(o.Tags) > maxTags {
		return fmt.Errorf("%w: %d tags, %d are possible", ErrInvalid, len(o.Tags), maxTags)
	}
	for k, v := range o.Tags {
		if err := checkTag(k, v); err != nil {
			return err
		}
	}
	return nil
}

// CreateSnapshot keeps a commit under a name until it is deleted or expires. It
// needs no lease and holds nobody up. Of several that take one name at a time at
// most one succeeds. After an error nothing is left but perhaps a claim that ends
// by itself, or, when the store failed, the snapshot. Errors: ErrNameTaken when the
// name is taken, and PinCommit's.
func CreateSnapshot(ctx context.Context, o SnapshotOptions) (SnapshotInfo, error) {
	for k, v := range o.Tags {
		if err := CheckTag(k, v); err != nil {
			return SnapshotInfo{}, err
		}
	}
	return createSnapshot(ctx, o)
}

// createSnapshot takes the tags of schedules and restores, too.
func createSnapshot(ctx context.Context, o SnapshotOptions) (SnapshotInfo, error) {
	if err := o.check(); err != nil {
		return SnapshotInfo{}, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := SnapshotNameFree(ctx, o.Store, o.URL, o.Name); err != nil {
		return SnapshotInfo{}, err
	}
	p, err := PinCommit(ctx, PinOptions{
		Store: o.Store, URL: o.URL, Kind: PinSnapshot, Name: o.Name, Holder: o.Holder, Tags: o.Tags,
		Commit: o.Commit, Lifetime: o.Lifetime, Database: o.Database, Rand: o.Rand, Now: o.Now,
	})
	if err != nil {
		return SnapshotInfo{}, err
	}
	info, err := o.settleName(ctx, p.Status().Key)
	if err == nil {
		return info, nil
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
	defer cancel()
	if rerr := p.Release(back); rerr != nil {
		return SnapshotInfo{}, fmt.Errorf("%w; what was written stays and counts as a snapshot: %w", err, rerr)
	}
	return SnapshotInfo{}, err
}

// settleName decides, once a snapshot is written, whether the name is its own.
// Whoever sees another after writing gives way, so that two can't both succeed:
// the later of two listings shows both. So that one of them does, the one with
// the lower key waits first for the other to go.
func (o *SnapshotOptions) settleName(ctx context.Context, key string) (own SnapshotInfo, err error) {
	for try := 0; ; try++ {
		list, err := snapshotsNamed(ctx, o.Store, o.Name, o.Now())
		if err != nil {
			return own, err
		}
		lowest, others := true, 0
		own = SnapshotInfo{}
		for _, s := range list {
			switch {
			case s.Key == key:
				own = s
			case !s.Expired:
				others++
				lowest = lowest && key < s.Key
			}
		}
		switch {
		case own.Key == "":
			return own, fmt.Errorf("%w: snapshot %s of %s was deleted while it was made", ErrPoint, o.Name, o.URL)
		case others == 0:
			return own, nil
		case !lowest || try == nameTries:
			return own, fmt.Errorf("%w: %s got a snapshot %s from somebody else at this moment", ErrNameTaken, o.URL, o.Name)
		}
		t := time.NewTimer(namePause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return own, ErrInterrupted
		}
	}
}

// SnapshotNameFree returns ErrNameTaken when a volume has a snapshot of a name that
// has not expired.
func SnapshotNameFree(ctx context.Context, s objstore.Store, url, name string) error {
	list, err := snapshotsNamed(ctx, s, name, time.Now())
	if err != nil {
		return err
	}
	for _, x := range list {
		if !x.Expired {
			return fmt.Errorf("%w: %s has a snapshot %s already, of commit %d, made at %s: choose another name or delete that one first",
				ErrNameTaken, url, name, x.Commit.N, x.Created.Format(time.RFC3339))
		}
	}
	return nil
}

// Snapshots returns a volume's snapshots, expired ones too, by the time that they
// were made. With an error it returns those that can be read.
func Snapshots(ctx context.Context, s objstore.Store) ([]SnapshotInfo, error) {
	return listSnapshots(ctx, s, metadata.PinPrefix, time.Now(), &pinMemory{})
}

func snapshotsNamed(ctx context.Context, s objstore.Store, name string, now time.Time) ([]SnapshotInfo, error) {
	return listSnapshots(ctx, s, metadata.PinPrefix+name+"~", now, &pinMemory{})
}

// pinMemory remembers the documents of a listing for the next: a key is never used
// twice. It is bounded by what the last listing had. The zero value is ready.
type pinMemory struct {
	pins map[string]*metadata.Pin
}

func listSnapshots(ctx context.Context, s objstore.Store, prefix string, now time.Time, m *pinMemory) (list []SnapshotInfo, err error) {
	var bad error // the first that can't be read
	seen := map[string]*metadata.Pin{}
	err = objstore.ListAll(ctx, s, prefix, "", func(i objstore.Info) error {
		p, err := m.pins[i.Key], error(nil)
		if p == nil {
			err = readDocument(ctx, s, i.Key, maxPinBytes, func(body []byte, info objstore.Info) (err error) {
				p, err = decodePin(body, info)
				return err
			})
		}
		if err == nil {
			seen[i.Key] = p
			if p.Kind == PinSnapshot {
				list = append(list, snapshotInfo(p, i.Key, now))
			}
		}
		switch {
		case errors.Is(err, objstore.ErrNotExist):
			return nil // taken away meanwhile
		case errors.Is(err, ErrDamaged), errors.Is(err, ErrNewerFormat):
			bad = cmp.Or(bad, err)
			return nil
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrStore) && !errors.Is(err, ErrInterrupted) {
		err = storeError("list pins", err)
	}
	m.pins = seen
	slices.SortFunc(list, func(a, b SnapshotInfo) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key))
	})
	return list, cmp.Or(err, bad)
}

func snapshotInfo(p *metadata.Pin, key string, now time.Time) SnapshotInfo {
	at := func(ns int64) time.Time {
		if ns == 0 {
			return time.Time{}
		}
		return time.Unix(0, ns).UTC()
	}
	return SnapshotInfo{
		Name: p.Name, Commit: p.Commit, Time: at(p.Time), Created: at(p.Created), Expiry: at(p.Expiry),
		Expired: p.Expiry != 0 && p.Expiry <= now.UnixNano(), Totals: p.Totals, Tags: p.Tags, Holder: p.Holder, Key: key,
		Database: p.Database,
	}
}

// FindSnapshot finds a snapshot by its name. Errors: ErrPoint, with names that are
// like it, when there is none or it has expired; ErrDamaged, ErrStore.
func FindSnapshot(ctx context.Context, s objstore.Store, url, name string) (SnapshotInfo, error) {
	if err := CheckSnapshotName(name); err != nil {
		return SnapshotInfo{}, err
	}
	list, err := snapshotsNamed(ctx, s, name, time.Now())
	var gone *SnapshotInfo
	for i := range list {
		if !list[i].Expired {
			return list[i], nil
		}
		gone = &list[i]
	}
	if err != nil {
		return SnapshotInfo{}, err
	}
	if gone != nil {
		return SnapshotInfo{}, fmt.Errorf("%w: snapshot %s of %s expired at %s; commit %d can be read while collection has not passed it",
			ErrPoint, name, url, gone.Expiry.Format(time.RFC3339), gone.Commit.N)
	}
	list, err = Snapshots(ctx, s)
	if err != nil {
		return SnapshotInfo{}, err
	}
	return SnapshotInfo{}, fmt.Errorf("%w: %s has no snapshot %s%s", ErrPoint, url, name, nearNames(list, name))
}

// DeleteSnapshot takes a snapshot away, an expired one too; what other pins and
// the retention keep stays. It returns what was deleted. Errors: ErrPoint,
// ErrDamaged, ErrStore; after an error it can be called again.
func DeleteSnapshot(ctx context.Context, s objstore.Store, url, name string) (SnapshotInfo, error) {
	if err := CheckSnapshotName(name); err != nil {
		return SnapshotInfo{}, err
	}
	list, err := snapshotsNamed(ctx, s, name, time.Now())
	if err != nil {
		return SnapshotInfo{}, err
	}
	if len(list) == 0 {
		_, err := FindSnapshot(ctx, s, url, name)
		return SnapshotInfo{}, err
	}
	for _, x := range list {
		if err := s.Delete(ctx, x.Key); err != nil {
			return SnapshotInfo{}, storeError("delete snapshot "+name, err)
		}
	}
	return list[len(list)-1], nil
}

// nearNames says which snapshots there are that a wrong name may have meant.
func nearNames(list []SnapshotInfo, name string) string {
	const most = 3
	var names []string
	for _, s := range list {
		if !s.Expired && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return ": it has none"
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(distance(a, name), distance(b, name)) })
	more := ""
	if n := len(names); n > most {
		names, more = names[:most], fmt.Sprintf(" and %d others", n-most)
	}
	return ": the nearest are " + strings.Join(names, ", ") + more
}

// distance is how many bytes must be inserted, removed or replaced to make one
// name of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			up := row[j+1]
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(up+1, row[j]+1, corner+cost)
			corner = up
		}
	}
	return row[len(b)]
}
