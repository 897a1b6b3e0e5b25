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
	Own     string   `json:"own_name,omitempty"` // of own mode's files; empty in mirror mode
	UUID    string   `json:"uuid,omitempty"`     // of the relay, towards MySQL
	Sources []Source `json:"sources"`            // one per epoch, ascending; in own mode all in one
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
	// value means parts of up to 1 MiB.
	Fragment Fragment
	// Own makes the archive keep files of its own sequence instead of its source's;
	// nil: mirror mode. It counts for who appends.
	Own    *OwnFiles
	Now    func() time.Time
	Logger *slog.Logger
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
	// ownFrom is the source's file from which the last group is, in own mode; empty
	// until one was stored.
	ownFrom string

	// identifying is held by who changes relay.json; taken before mu, and held over the volume's journal.
	identifying sync.Mutex

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
	if o.Own != nil {
		own := *o.Own
		if err := own.Validate(); err != nil {
			return nil, err
		}
		o.Own = &own
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

// UUID returns the relay's own UUID, which it keeps for ever: a MySQL source
// knows its replicas by theirs.
func (l *Log) UUID(ctx context.Context) (string, error) {
	l.identifying.Lock()
	defer l.identifying.Unlock()
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
		return l.t.V.Stopped() // a successor never sees the group
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
	return l.t.writeFile(ctx, l.path(info)+catalogueSuffix, body)
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

// Sources returns the server of each epoch, in own mode those of the only one.
func (l *Log) Sources() []Source {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ident.Sources)
}

// Open opens a file for reading up to its published end.
func (l *Log) Open(ctx context.Context, epoch uint32, name string) (File, error) {
	return l.t.Open(ctx, path.Join(l.opt.Dir, epochDir(epoch), name))
}

// path is where a file lies in the volume.
func (l *Log) path(f *FileInfo) string { return path.Join(l.opt.Dir, f.Path()) }

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
