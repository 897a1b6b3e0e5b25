package binlogfs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

const (
	// IdentityName is the file in an archive's directory that says whose it is.
	IdentityName = "relay.json"
	indexName    = "binlog.index"
	maxIdentity  = 1 << 20
)

// Ack says when a group counts as received: when replicas may have it and the
// source gets its semi-synchronous acknowledgement.
type Ack string

// The choices.
const (
	AckJournal Ack = "journal" // durable on the relay's disk
	AckBucket  Ack = "bucket"  // durable in the bucket
	AckMemory  Ack = "memory"  // with the kernel: survives the relay, not its machine
)

// Source is a server whose log is in an epoch.
type Source struct {
	Epoch    uint32    `json:"epoch"`
	Flavor   Flavor    `json:"flavor"`
	ServerID uint32    `json:"server_id"`
	UUID     string    `json:"uuid,omitempty"` // MySQL's
	Began    time.Time `json:"began"`
}

// Same says whether o is the same server. One whose log was adopted may have no
// UUID.
func (s *Source) Same(o *Source) bool {
	if s.UUID != "" && o.UUID != "" {
		return s.UUID == o.UUID
	}
	return s.Flavor == o.Flavor && s.ServerID == o.ServerID
}

// identity is relay.json.
type identity struct {
	Format  int      `json:"format"`
	UUID    string   `json:"uuid,omitempty"` // of the relay, towards MySQL
	Sources []Source `json:"sources"`        // one per epoch, ascending
}

// Position is a place in the archive.
type Position struct {
	Epoch  uint32 `json:"epoch"`
	File   string `json:"file"`
	Offset int64  `json:"offset"`
}

// LogOptions say how a Log works.
type LogOptions struct {
	Dir string // in the volume, without slashes at its ends; empty: the top
	Ack Ack    // default AckJournal
	// Fragment says in which parts an open group goes to the volume; the zero
	// value means parts of 1 MiB.
	Fragment Fragment
	Now      func() time.Time
	Logger   *slog.Logger
}

// Log is an archive of binary logs in a volume that this process writes. All
// methods but the Appender's are safe for concurrent use.
type Log struct {
	t   VolumeTree
	opt LogOptions

	mu      sync.Mutex // guards the fields below
	ident   identity
	files   []*FileInfo // ascending; the last one is being written to; immutable once in here
	last    *GTIDState  // at end
	end     Position    // published, and as durable as Ack asks
	changed chan struct{}
	// naming holds a token of who changes which files there are: see takeNames.
	naming chan struct{}
	needs  map[any]Position // what readers still need, by reader
	marks  []KeepMark       // by name

	marking sync.Mutex // one change of marks at a time; taken before mu, and held over the volume's journal
}

// ErrNoLog: the archive holds no binary log yet.
var ErrNoLog = errors.New("the archive holds no binary log")

// OpenLog opens the archive in a volume's directory, or makes an empty one. What
// a relay that was killed left behind a file's last published group is dropped.
func OpenLog(ctx context.Context, v *gateway.Volume, o LogOptions) (*Log, error) {
	if o.Ack == "" {
		o.Ack = AckJournal
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.Fragment.Validate(); err != nil {
		return nil, err
	}
	l := &Log{t: VolumeTree{v}, opt: o, changed: make(chan struct{}), naming: make(chan struct{}, 1), needs: map[any]Position{}}
	if err := l.t.mkdirAll(ctx, o.Dir); err != nil {
		return nil, err
	}
	ident, files, err := readArchive(ctx, l.t, o.Dir)
	if err != nil {
		return nil, err
	}
	l.ident, l.files = *ident, files
	if l.marks, err = readMarks(ctx, l.t, o.Dir); err != nil {
		return nil, err
	}
	if err := l.recover(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// readIdentity reads relay.json; an empty one where there is none.
func readIdentity(ctx context.Context, t Tree, dir string) (*identity, error) {
	ident := identity{Format: catalogueFormat}
	body, err := readFile(ctx, t, path.Join(dir, IdentityName), maxIdentity)
	if errors.Is(err, gateway.ErrNotExist) {
		return &ident, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &ident); err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrCorrupt, IdentityName, err)
	}
	if ident.Format != catalogueFormat {
		return nil, fmt.Errorf("the archive has format %d, which this release does not know: use a newer one", ident.Format)
	}
	return &ident, nil
}

// readArchive reads an archive's identity and the catalogues of its files. A file
// without a catalogue has one with its name only.
func readArchive(ctx context.Context, t Tree, dir string) (*identity, []*FileInfo, error) {
	ident, names, err := readNames(ctx, t, dir)
	if err != nil {
		return nil, nil, err
	}
	var files []*FileInfo
	for _, n := range names {
		info, err := readCatalogue(ctx, t, dir, n.epoch, n.name)
		if errors.Is(err, gateway.ErrNotExist) {
			info, err = &FileInfo{Format: catalogueFormat, Epoch: n.epoch, Name: n.name}, nil
		}
		if err != nil {
			return nil, nil, err
		}
		files = append(files, info)
	}
	return ident, files, nil
}

// logNames lists the binary logs of an epoch by their numbers.
func logNames(ctx context.Context, t Tree, dir string) ([]string, error) {
	all, err := t.Names(ctx, dir)
	if errors.Is(err, gateway.ErrNotExist) {
		return nil, nil // its first file was not made yet
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	names := slices.DeleteFunc(all, func(n string) bool { return !isLogName(n) })
	slices.SortStableFunc(names, func(a, b string) int {
		switch x, y := logNumber(a), logNumber(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return strings.Compare(a, b)
	})
	return names, nil
}

// recover brings the catalogues up to what the files hold, and takes the end of
// the last file as published and durable: what is visible in the volume now is
// in its journal, and made as durable as Ack asks before anybody is told.
func (l *Log) recover(ctx context.Context) error {
	for i, info := range l.files {
		name := path.Join(l.opt.Dir, info.Path())
		size, err := l.t.size(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if info.Size == size && size > 0 {
			continue
		}
		t, err := l.rescan(ctx, info, name)
		if err != nil {
			return err
		}
		if err := l.saveCatalogue(ctx, t.catalogue()); err != nil {
			return err
		}
		l.files[i] = t.catalogue()
	}
	if len(l.files) == 0 {
		return nil
	}
	if err := l.harden(ctx); err != nil {
		return err
	}
	f := l.files[len(l.files)-1]
	state, err := l.stateAt(f)
	if err != nil {
		return err
	}
	l.last, l.end = state, Position{f.Epoch, f.Name, f.Size}
	return nil
}

// rescan reads what a file has beyond its catalogue. A file whose published end
// is no boundary is damaged.
func (l *Log) rescan(ctx context.Context, info *FileInfo, name string) (*tracker, error) {
	h, err := l.t.handle(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer h.Close()
	t := newTracker(info.Epoch, info.Name)
	if info.Size > 0 {
		f, err := formatOf(ctx, h, info.Name)
		if err != nil {
			return nil, err
		}
		if t, err = resume(info, f); err != nil {
			return nil, err
		}
	}
	size, err := l.t.size(ctx, name)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return t, nil // made, and nothing published yet
	}
	if err := scan(ctx, &reader{ctx: ctx, f: h, off: t.end}, t, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if t.info.Size != size {
		return nil, fmt.Errorf("%w: %s is published up to %d, which is within a group", ErrCorrupt, name, size)
	}
	return t, nil
}

// formatOf reads the format description at the beginning of a file.
func formatOf(ctx context.Context, f File, name string) (Format, error) {
	head := make([]byte, 4096)
	n, err := f.Read(ctx, head, int64(len(magic)))
	if err != nil {
		return Format{}, fmt.Errorf("%s: %w", name, err)
	}
	h, err := DecodeHeader(head[:n])
	if err != nil {
		return Format{}, fmt.Errorf("%s: %w", name, err)
	}
	if int64(h.Size) > int64(n) {
		return Format{}, fmt.Errorf("%w: %s ends within its format description", ErrCorrupt, name)
	}
	return DecodeFormat(head[:h.Size])
}

// stateAfter is the state of GTIDs at the end of a file.
func stateAfter(f *FileInfo) (*GTIDState, error) {
	s, err := ParseGTIDState(f.Flavor, f.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	added, err := ParseGTIDState(f.Flavor, f.Added)
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	s.Merge(added)
	return s, nil
}

// stateAt is the state of GTIDs at the end of the last file f. An epoch's first
// files may begin with groups that earlier epochs have.
func (l *Log) stateAt(f *FileInfo) (*GTIDState, error) {
	state, err := stateAfter(f)
	for i := len(l.files) - 1; i >= 0 && err == nil; i-- {
		g := l.files[i]
		if g.Epoch == f.Epoch || g.Flavor != f.Flavor {
			continue
		}
		before, berr := l.stateAt(g)
		if berr != nil {
			return nil, berr
		}
		before.MergeNew(state)
		return before, nil
	}
	return state, err
}

// UUID returns the relay's own UUID, which it keeps for ever: a MySQL source
// knows its replicas by theirs.
func (l *Log) UUID(ctx context.Context) (string, error) {
	l.mu.Lock()
	ident := l.ident
	l.mu.Unlock()
	if ident.UUID != "" {
		return ident.UUID, nil
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("make a UUID for the relay: %w", err)
	}
	ident.UUID = id.String()
	if err := l.saveIdentity(ctx, &ident); err != nil {
		return "", err
	}
	l.mu.Lock()
	l.ident.UUID = ident.UUID
	l.mu.Unlock()
	return ident.UUID, nil
}

// resumeAt returns the last epoch's source, nil in an empty archive, and where
// it should go on: a file and the offset of its published end, or an empty name
// while the epoch has no file.
func (l *Log) resumeAt() (s *Source, file string, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.ident.Sources)
	if n == 0 {
		return nil, "", 0
	}
	last := l.ident.Sources[n-1]
	if n := len(l.files); n > 0 && l.files[n-1].Epoch == last.Epoch {
		f := l.files[n-1]
		return &last, f.Name, max(f.Size, int64(len(magic)))
	}
	return &last, "", 0
}

// harden makes everything published so far as durable as Ack asks.
func (l *Log) harden(ctx context.Context) error {
	switch l.opt.Ack {
	case AckMemory:
		return nil
	case AckBucket:
		if _, err := l.t.V.Sync(ctx); err != nil {
			return fmt.Errorf("bring groups to the bucket: %w", err)
		}
		return nil
	}
	// An fsync of any inode makes everything before it durable.
	if err := l.t.V.Fsync(ctx, metadata.RootInode); err != nil {
		return fmt.Errorf("make groups durable: %w", err)
	}
	return nil
}

// saveCatalogue writes a file's catalogue.
func (l *Log) saveCatalogue(ctx context.Context, info *FileInfo) error {
	body, err := info.encode()
	if err != nil {
		return err
	}
	return l.t.writeFile(ctx, path.Join(l.opt.Dir, info.Path())+catalogueSuffix, body)
}

// saveIdentity writes relay.json.
func (l *Log) saveIdentity(ctx context.Context, ident *identity) error {
	body, err := json.MarshalIndent(ident, "", " ")
	if err != nil {
		return fmt.Errorf("%s: %w", IdentityName, err)
	}
	return l.t.writeFile(ctx, path.Join(l.opt.Dir, IdentityName), append(body, '\n'))
}

// saveIndex writes an epoch's binlog.index.
func (l *Log) saveIndex(ctx context.Context, epoch uint32, names []string) error {
	var b bytes.Buffer
	for _, n := range names {
		fmt.Fprintf(&b, "./%s\n", n)
	}
	return l.t.writeFile(ctx, path.Join(l.opt.Dir, epochDir(epoch), indexName), b.Bytes())
}

// End returns the place up to which groups may be told of, and a channel that
// is closed when it moves. It is zero while the archive is empty.
func (l *Log) End() (Position, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end, l.changed
}

// State returns the GTIDs at the end; nil while the archive is empty.
func (l *Log) State() *GTIDState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil
	}
	return l.last.Clone()
}

// Files returns the catalogues, the oldest file first. They must not be changed.
func (l *Log) Files() []*FileInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.files)
}

// Sources returns the server of each epoch.
func (l *Log) Sources() []Source {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ident.Sources)
}

// Open opens a file for reading up to its published end.
func (l *Log) Open(ctx context.Context, epoch uint32, name string) (File, error) {
	return l.t.Open(ctx, path.Join(l.opt.Dir, epochDir(epoch), name))
}

// Need says that the reader needs everything from pos on: Purge keeps it. The
// reader takes it back with Done. A reader that is a string or a Stringer is named
// so to who purges.
func (l *Log) Need(reader any, pos Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.needs[reader] = pos
}

// Done says that a reader needs nothing any more.
func (l *Log) Done(reader any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.needs, reader)
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
