package binlogfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrPolicy: a policy that can't be.
var ErrPolicy = errors.New("purge")

// Policy says which files may go: those that any of its fields names. The zero
// value names none. Purging never takes the last file, nor one that a replica or
// a mark needs, nor one behind such a file.
type Policy struct {
	To        string        // files before this one; `000001/name` for one of an earlier epoch
	Before    time.Time     // files whose last group is older; zero: none
	KeepAge   time.Duration // files whose last group is older than this; 0: none
	KeepFiles int           // all but so many of the last; 0: none
	KeepSize  int64         // the oldest, until the rest has at most so many bytes; 0: none
}

// KeptFor is somebody because of whom files stay that the policy names.
type KeptFor struct {
	Who   string `json:"who"`
	Epoch uint32 `json:"epoch"`
	File  string `json:"file"`
	Files int    `json:"files"` // that stay because of it, or of another
}

// Purged is what a purge did, or would do.
type Purged struct {
	Files   []*FileInfo // deleted, the oldest first
	Kept    []KeptFor
	Left    int // files
	Deleted int64
}

// named returns how many of the oldest files a policy names. The last is never.
func (p *Policy) named(files []*FileInfo, now time.Time) (int, error) {
	if p.KeepAge < 0 || p.KeepFiles < 0 || p.KeepSize < 0 {
		return 0, fmt.Errorf("%w: what is to be kept can't be negative", ErrPolicy)
	}
	before := p.Before
	if p.KeepAge > 0 {
		if t := now.Add(-p.KeepAge); t.After(before) {
			before = t
		}
	}
	n := 0
	if p.To != "" {
		epoch, name := splitEpoch(p.To)
		n = slices.IndexFunc(files, func(f *FileInfo) bool { return f.Name == name && (epoch == 0 || f.Epoch == epoch) })
		if n < 0 {
			return 0, fmt.Errorf("%w: no file is called %s", ErrNotFound, p.To)
		}
	}
	for n < len(files) && !before.IsZero() && files[n].LastTime.Before(before) {
		n++
	}
	if p.KeepFiles > 0 {
		n = max(n, len(files)-p.KeepFiles)
	}
	if p.KeepSize > 0 {
		var left int64
		for i := len(files) - 1; i >= 0; i-- {
			if left += files[i].Size; left > p.KeepSize {
				n = max(n, i+1)
				break
			}
		}
	}
	return max(min(n, len(files)-1), 0), nil
}

// Apply purges by a policy; a dry run says what it would do. Needs that come up
// meanwhile count, too.
func (l *Log) Apply(ctx context.Context, p Policy, dry bool) (*Purged, error) {
	files := l.Files()
	if len(files) == 0 {
		return nil, NoLog(l.opt.Dir)
	}
	out, err := p.plan(files, l.keepers(), l.opt.Now())
	if err != nil || dry || len(out.Files) == 0 {
		return out, err
	}
	to := files[len(out.Files)]
	out.Files, err = l.Purge(ctx, to.Epoch, to.Name)
	out.count(len(files))
	return out, err
}

// Plan says what purging by a policy would do, as far as the marks tell: a relay
// knows of its replicas, too.
func (l *FixedLog) Plan(p Policy, now time.Time) (*Purged, error) {
	return p.plan(l.Files(), sortKept(nil, l.marks), now)
}

// plan finds the files that may go.
func (p *Policy) plan(files []*FileInfo, keep []KeptFor, now time.Time) (*Purged, error) {
	n, err := p.named(files, now)
	if err != nil {
		return nil, err
	}
	out := &Purged{}
	free := n
	for _, k := range keep {
		first := slices.IndexFunc(files, func(f *FileInfo) bool {
			return cmp.Or(cmp.Compare(f.Epoch, k.Epoch), cmp.Compare(logNumber(f.Name), logNumber(k.File))) >= 0
		})
		if first < 0 || first >= n {
			continue
		}
		k.Files, free = n-first, min(free, first)
		out.Kept = append(out.Kept, k)
	}
	out.Files = files[:free]
	out.count(len(files))
	return out, nil
}

// count sums up what goes and what is left of all files.
func (p *Purged) count(all int) {
	p.Deleted, p.Left = 0, all-len(p.Files)
	for _, f := range p.Files {
		p.Deleted += f.Size
	}
}

// keepers returns who needs what, in the order of their files.
func (l *Log) keepers() []KeptFor {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []KeptFor
	for who, p := range l.needs {
		name := "a replica"
		switch w := who.(type) {
		case string:
			name = w
		case fmt.Stringer:
			name = w.String()
		}
		all = append(all, KeptFor{Who: name, Epoch: p.Epoch, File: p.File})
	}
	return sortKept(all, l.marks)
}

// sortKept adds marks to the replicas, and orders all by their files.
func sortKept(all []KeptFor, marks []KeepMark) []KeptFor {
	for _, m := range marks {
		all = append(all, KeptFor{Who: "the mark " + m.Name, Epoch: m.Epoch, File: m.File})
	}
	slices.SortFunc(all, func(a, b KeptFor) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(logNumber(a.File), logNumber(b.File)), strings.Compare(a.Who, b.Who))
	})
	return all
}

// neededLocked says whether a reader or a mark needs a file. Caller holds l.mu.
func (l *Log) neededLocked(f *FileInfo) bool {
	needs := func(p Position) bool {
		return p.Epoch < f.Epoch || p.Epoch == f.Epoch && logNumber(p.File) <= logNumber(f.Name)
	}
	for _, p := range l.needs {
		if needs(p) {
			return true
		}
	}
	return slices.ContainsFunc(l.marks, func(m KeepMark) bool { return needs(m.Position()) })
}

// ParsePlace reads <file>:<offset>. A GTID of MySQL's is none.
func ParsePlace(text string) (file string, offset int64, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(text[i+1:], 10, 64)
	_, name := splitEpoch(text[:i])
	if err != nil || n < 0 || !isLogName(name) {
		return "", 0, false
	}
	return text[:i], n, true
}

// splitEpoch takes the epoch's folder off a file's path; 0 when it has none.
func splitEpoch(file string) (uint32, string) {
	folder, name, ok := strings.Cut(file, "/")
	if !ok {
		return 0, file
	}
	n, err := strconv.ParseUint(folder, 10, 32)
	if err != nil {
		return 0, file
	}
	return uint32(n), name
}

// Purge deletes the files before the one that is named, the oldest first, but
// none that a reader or a mark needs, and never the last. It returns what was deleted.
func (l *Log) Purge(ctx context.Context, epoch uint32, name string) ([]*FileInfo, error) {
	var gone []*FileInfo
	for {
		f, err := l.purgeOne(ctx, epoch, name)
		if f == nil || err != nil {
			return gone, err
		}
		gone = append(gone, f)
	}
}

// purgeOne deletes the oldest file, if it may go; nil when it may not. After an
// error the file counts as there, and the next purge tries again.
func (l *Log) purgeOne(ctx context.Context, epoch uint32, name string) (*FileInfo, error) {
	give, err := l.takeNames(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	f, left := l.purgeable(epoch, name)
	if f == nil {
		return nil, nil
	}
	file := path.Join(l.opt.Dir, f.Path())
	// The index first: it must not name what is not there.
	err = l.saveIndex(ctx, f.Epoch, left)
	for _, n := range []string{file, file + catalogueSuffix} {
		if err == nil {
			err = l.t.remove(ctx, n)
		}
	}
	if err != nil {
		l.mu.Lock()
		l.files = append([]*FileInfo{f}, l.files...)
		l.mu.Unlock()
	}
	return f, err
}

// takeNames waits until nobody else changes which files there are: the list and
// binlog.index change together. The function it returns gives that up.
func (l *Log) takeNames(ctx context.Context) (give func(), err error) {
	select {
	case l.naming <- struct{}{}:
		return func() { <-l.naming }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// purgeable takes the oldest file out of the list when it may go, and returns it
// with the names that its epoch has left.
func (l *Log) purgeable(epoch uint32, name string) (*FileInfo, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.files) < 2 {
		return nil, nil
	}
	f := l.files[0]
	if f.Epoch > epoch || f.Epoch == epoch && logNumber(f.Name) >= logNumber(name) {
		return nil, nil
	}
	if l.neededLocked(f) {
		return nil, nil
	}
	l.files = l.files[1:]
	return f, l.namesLocked(f.Epoch)
}

// namesLocked are the files of an epoch. Caller holds l.mu.
func (l *Log) namesLocked(epoch uint32) (names []string) {
	for _, f := range l.files {
		if f.Epoch == epoch {
			names = append(names, f.Name)
		}
	}
	return names
}
