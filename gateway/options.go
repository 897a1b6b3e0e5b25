package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Mode says what fsync waits for.
type Mode int

// The durability modes.
const (
	ModeLocal  Mode = iota // the local journal
	ModeBucket             // the commit
	ModeLag                // the local journal, and the bucket when it is too far behind
)

// Durability is a mode with its parameter.
type Durability struct {
	Mode Mode
	Lag  time.Duration // of ModeLag: how old uncommitted data may be
}

// ParseDurability reads local, bucket or lag=<time>.
func ParseDurability(s string) (Durability, error) {
	switch {
	case s == "local":
		return Durability{}, nil
	case s == "bucket":
		return Durability{Mode: ModeBucket}, nil
	case len(s) > 4 && s[:4] == "lag=":
		d, err := time.ParseDuration(s[4:])
		if err != nil || d <= 0 {
			return Durability{}, fmt.Errorf("durability %q: the time after lag= must be like 2s or 500ms", s)
		}
		return Durability{Mode: ModeLag, Lag: d}, nil
	}
	return Durability{}, fmt.Errorf("durability %q: choose local, bucket or lag=<time>", s)
}

func (d Durability) String() string {
	switch d.Mode {
	case ModeBucket:
		return "bucket"
	case ModeLag:
		return "lag=" + d.Lag.String()
	}
	return "local"
}

// Options tell Open what to open and how. Store, FS, StateDir and OpenKV are
// required; the rest has defaults.
type Options struct {
	Store    objstore.Store // the volume's prefix
	Keys     *Keys          // of an encrypted volume, whose Store is what Unlock returned
	URL      string         // of the volume, for messages
	FS       vfs.FS         // the local disk
	StateDir string         // journal, cache and index
	OpenKV   func(dir string) (metadata.KV, error)

	Durability       Durability
	CommitInterval   time.Duration // default 1 s
	CacheBytes       int64         // default 2 GiB
	JournalBytes     int64         // default 1 GiB
	KeepFree         int64         // of the local disk, in bytes, what cache and journal leave to the index, whatever their limits; default none: no disk is looked at
	JournalFileBytes int64         // default 1/32 of JournalBytes, 2 to 32 MiB; less than 2 MiB counts as 2 MiB
	MemoryBytes      int64         // of uncommitted metadata, default 96 MiB
	UploadBytes      int64         // of buffers being uploaded, default 96 MiB
	BulkBytes        int64         // of large writes at which a commit begins though the interval has not passed, default 1/8 of CacheBytes and at least 64 MiB
	ReferenceBytes   int           // smaller writes are journaled as data, default 64 KiB
	Fetches          int           // parallel ranged reads, default 32
	LimitENOSPC      bool          // at a limit: ENOSPC after LimitWait instead of waiting on
	LimitWait        time.Duration // default 5 min

	// Fit says whether the store keeps what a volume needs of it. It is asked while
	// Open reads, which writes nothing before Fit has returned nil, and it ends soon
	// after its context. Nil: the store is fit.
	Fit func(context.Context) error

	Takeover          bool          // take the lease from an owner that may be alive
	AcceptLostJournal bool          // mount although the journal is lost
	RequireReleased   bool          // fail at once with ErrOwned unless the lease is free or one's own
	Wait              time.Duration // for an owner that renews its lease; 0: fail when it does
	StopOnLeaseLost   bool          // writers wait while the lease can't be renewed
	LeaseDuration     time.Duration // default 15 s; renewed every third of it

	Fold    FoldPolicy
	Collect CollectPolicy

	// Schedules keeps the volume's schedules of snapshots while it is open.
	Schedules bool
	// Database is how a scheduled snapshot of a volume learns of the database in it;
	// nil: not at all.
	Database func(v *Volume) DatabaseOf
	// Manual runs no background work: a test calls Commit, Fold and the rest.
	Manual bool
	// Now is the wall clock, for timestamps; default time.Now.
	Now func() time.Time
	// Rand is the source of identities; default crypto/rand.
	Rand io.Reader
	// Owner is who this is, for other hosts' messages.
	Owner  metadata.Owner
	Logger *slog.Logger
}

// Bounds that users can't set.
const (
	minObjectSize   = 4 << 10
	maxObjectSize   = 64 << 20
	minOwnObject    = 256 << 10 // a slot gets an object of its own from here on
	segmentTarget   = 8 << 20   // bytes at which a commit starts another segment
	bulkCommit      = 64 << 20  // bytes of large writes that wait for no pause between two commits
	bulkShare       = 8         // of the cache: such bytes of one commit are at most about this part, unless told otherwise
	manifestCommits = 1000      // commits after which a manifest is written,
	manifestEpochs  = 16        // or reigns,
	manifestLeast   = 4 << 20   // or bytes of commit documents: half of the last manifest's,
	manifestBytes   = 64 << 20  // within these bounds
	maxDocument     = 256 << 20 // bytes of any JSON document
	minJournalFile  = 2 << 20   // an operation never spans files, and a write has up to 1 MiB
)

func (o *Options) setDefaults() {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	defD := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	defD(&o.CommitInterval, time.Second)
	defD(&o.LimitWait, 5*time.Minute)
	defD(&o.LeaseDuration, 15*time.Second)
	def(&o.CacheBytes, 2<<30)
	def(&o.JournalBytes, 1<<30)
	def(&o.JournalFileBytes, min(o.JournalBytes/32, 32<<20))
	o.JournalFileBytes = max(o.JournalFileBytes/4096*4096, minJournalFile)
	def(&o.MemoryBytes, 96<<20)
	def(&o.UploadBytes, 96<<20)
	def(&o.BulkBytes, max(bulkCommit, o.CacheBytes/bulkShare))
	if o.ReferenceBytes == 0 {
		o.ReferenceBytes = 64 << 10
	}
	if o.Fetches == 0 {
		o.Fetches = 32
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Fold.setDefaults()
	o.Collect.setDefaults()
}

// Validate says which option can't be used and why.
func (o *Options) Validate() error {
	switch {
	case o.Store == nil || o.FS == nil || o.StateDir == "" || o.OpenKV == nil:
		return errors.New("gateway options: Store, FS, StateDir and OpenKV are required")
	case o.CommitInterval < 0:
		return fmt.Errorf("commit interval %v: must be positive", o.CommitInterval)
	case o.CacheBytes < 0:
		return fmt.Errorf("cache size %d: must be positive", o.CacheBytes)
	case o.JournalBytes != 0 && o.JournalBytes < 4<<20:
		return fmt.Errorf("journal size %d: must be at least 4 MiB", o.JournalBytes)
	case o.Wait < 0:
		return fmt.Errorf("wait of %v for the volume's owner: must not be negative", o.Wait)
	case o.LeaseDuration != 0 && o.LeaseDuration < 3*time.Millisecond:
		return fmt.Errorf("lease duration %v: too short", o.LeaseDuration)
	}
	return nil
}
