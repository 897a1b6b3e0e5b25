package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// View is a volume as one commit has it, read from the bucket alone. It needs
// no lease and no local state. Safe for concurrent use.
type View struct {
	*fetcher
	url   string
	doc   metadata.VolumeDoc
	index atomic.Pointer[metadata.Index]
	stats counters
	local *viewCache // nil: none
	moves *mover     // nil: it stays with its commit

	// A Follower moves its view on: exclusive for that, shared while something
	// is put together that must be of one commit. Never held over the network.
	moving sync.RWMutex
	kv     metadata.KV
	broken error // why the index is between two commits; nil: it is not
}

// ViewOptions tell OpenView what to read.
type ViewOptions struct {
	Store   objstore.Store
	Keys    *Keys // of an encrypted volume, whose Store is what Unlock returned
	URL     string
	KV      metadata.KV // an empty store for the index; closed by Close
	Commit  uint64      // number of the commit to show; 0: the last
	Fetches int         // parallel ranged reads, default 16

	// A view that is mounted keeps what it read in a cache on the local disk.
	// CacheDir is the view's alone: what is there goes, and Close removes it.
	FS         vfs.FS
	CacheDir   string // empty: no cache
	CacheBytes int64  // of local disk; default 2 GiB
	KeepFree   int64  // bytes of the disk that the cache leaves to others; default none
	Logger     *slog.Logger
}

// OpenView reads a volume's state as of a commit.
func OpenView(ctx context.Context, o ViewOptions) (*View, error) {
	if o.Fetches == 0 {
		o.Fetches = 16
	}
	doc, err := ReadVolumeDoc(ctx, o.Store, o.URL)
	if err != nil {
		return nil, err
	}
	head, err := headOf(ctx, o.Store)
	if err != nil {
		return nil, err
	}
	if o.Commit != 0 {
		horizon := head.commit.Horizon
		if head, err = commitAt(ctx, o.Store, head, o.Commit, o.URL); err != nil {
			return nil, err
		}
		if err := stillKept(ctx, o.Store, head.id, horizon, o.URL); err != nil {
			return nil, err
		}
	}
	v := &View{url: o.URL, doc: *doc, kv: o.KV}
	v.fetcher = newFetcher(o.Store, doc, o.Fetches, &v.stats, time.Now)
	if v.codec, err = newCodec(doc, o.URL, o.Keys); err != nil {
		return nil, err
	}
	if s := head.commit.Settings; s != nil {
		if err := needKeys(*s, o.URL, o.Keys); err != nil {
			return nil, err
		}
	}
	ix, _, err := loadIndex(ctx, o.Store, o.KV, doc.ObjectSize, head)
	if err != nil {
		return nil, err
	}
	v.index.Store(ix)
	if o.CacheDir != "" {
		if v.local, err = openViewCache(v, o); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// stillKept refuses a commit that collection has passed and no pin keeps: what
// it needs may be deleted, which is not damage.
func stillKept(ctx context.Context, s objstore.Store, id metadata.CommitID, horizon uint64, url string) error {
	if id.N >= horizon {
		return nil
	}
	kept := false
	err := objstore.ListAll(ctx, s, metadata.PinPrefix, "", func(i objstore.Info) error {
		err := readDocument(ctx, s, i.Key, 1<<20, func(body []byte, info objstore.Info) error {
			p, err := decodePin(body, info)
			if err == nil && p.Commit.N == id.N {
				kept = true
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		return err
	})
	if err != nil || kept {
		return err
	}
	return fmt.Errorf("%w: what commit %d of %s needs may be deleted: collection has gone up to commit %d, and no pin keeps it", ErrCollected, id.N, url, horizon)
}

// headOf finds the last commit without taking the lease.
func headOf(ctx context.Context, s objstore.Store) (*entry, error) {
	l, _, err := readLease(ctx, s)
	if err != nil {
		return nil, err
	}
	if l.Reign == reignDestroyed {
		return nil, fmt.Errorf("%w: it is being destroyed", ErrNoVolume)
	}
	head, _, err := pathReader{s}.head(ctx, l.Epoch, l.Hint)
	return head, err
}

// commitAt finds a commit by its number, from the epoch of a later one down.
func commitAt(ctx context.Context, s objstore.Store, head *entry, n uint64, url string) (*entry, error) {
	if n > head.id.N {
		return nil, fmt.Errorf("%w: %s has no commit %d: its last is %d", noCommit{}, url, n, head.id.N)
	}
	r := pathReader{s}
	for e := head.id.Epoch; e > 0; e-- {
		x, err := r.read(ctx, metadata.CommitID{Epoch: e, N: n})
		if err != nil {
			return nil, err
		}
		if x == nil {
			continue
		}
		if x.seal != nil {
			return nil, fmt.Errorf("%w: number %d of %s is no commit but the end of epoch %d", noCommit{}, n, url, e)
		}
		if l := lineageOf(s); l != nil && n <= l.doc.Base().N {
			return nil, beforeBirth(l.doc, url, n)
		}
		return x, nil
	}
	return nil, fmt.Errorf("%w: commit %d of %s was collected", noCommit{}, n, url)
}

// Close gives the index's store and the cache back.
func (v *View) Close() error {
	if v.local != nil {
		return errors.Join(v.local.close(), v.kv.Close())
	}
	return v.kv.Close()
}

// Head is the commit that is shown.
func (v *View) Head() metadata.Head { return v.Index().Head() }

// Status is a picture of the view: what a volume that is written to has besides
// stays zero. It never waits for the store or the disk.
func (v *View) Status() Status {
	h := v.Index().Head()
	s := Status{
		Volume: v.doc.ID, URL: v.url, Epoch: h.Epoch, Commit: h.CommitID, CommitTime: time.Unix(0, h.Time).UTC(),
		Inodes: h.Totals.Inodes, UsedBytes: h.Totals.UsedBytes, QuotaBytes: h.Settings.QuotaBytes,
		Fetched: v.stats.fetched.Load(), Fetches: v.stats.fetches.Load(), Damage: v.stats.damage.Load(), CacheErrors: v.stats.cacheErrors.Load(),
	}
	s.Compress, s.Keys = v.doc.Compress, h.Settings.KeyNames()
	if err, since := v.stats.storeError(); err != nil {
		s.StoreError, s.StoreSince = err.Error(), &since
	}
	if v.local != nil {
		c := v.local.cache.Stats()
		s.Cache = CacheStatus{Limit: c.Limit, Allocated: c.Allocated, Pinned: c.Pinned, Hits: c.Hits, Misses: c.Misses, Evictions: c.Evictions, Error: text(c.LastError)}
	}
	return s
}

// Doc is the volume's identity.
func (v *View) Doc() metadata.VolumeDoc { return v.doc }

// Index is the state's index, for reports.
func (v *View) Index() *metadata.Index { return v.index.Load() }

// Inode returns a node's attributes.
func (v *View) Inode(ino InodeID) (*Inode, error) {
	if v.broken != nil {
		return nil, v.broken
	}
	n, err := v.Index().Inode(ino)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, ErrNotExist
	}
	return n, err
}

// Lookup finds a path from the top directory; symbolic links are not followed.
func (v *View) Lookup(path string) (*Inode, error) {
	n, err := v.Inode(metadata.RootInode)
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(path, "/") {
		if name == "" || name == "." {
			continue
		}
		if n.Mode&modeType != modeDir {
			return nil, ErrNotDir
		}
		d, err := v.Index().Lookup(n.ID, name)
		if errors.Is(err, metadata.ErrNotExist) {
			return nil, ErrNotExist
		}
		if err != nil {
			return nil, err
		}
		if n, err = v.Inode(d.Inode); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Names calls fn for a directory's names until it returns false.
func (v *View) Names(ino InodeID, fn func(metadata.Dentry) bool) error {
	return v.Index().Names(ino, 0, fn)
}

// Read fills p with a file's bytes from off on, as Handle.Read does.
func (v *View) Read(ctx context.Context, n *Inode, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, ErrInvalid
	}
	if off >= n.Size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), n.Size-off)]
	if v.local != nil {
		return v.local.read(ctx, n.ID, n, p, off)
	}
	if err := v.readRange(ctx, n, p, off); err != nil {
		return len(p), v.orCollected(ctx, err)
	}
	return len(p), nil
}

// orCollected is an error of reading what is missing in the bucket: ErrCollected, when
// collection has passed the commit since it was opened, which is no damage.
func (v *View) orCollected(ctx context.Context, err error) error {
	if !errors.Is(err, objstore.ErrNotExist) {
		return err
	}
	if gone := v.kept(ctx); errors.Is(gone, ErrCollected) {
		return gone
	}
	return err
}

// kept returns ErrCollected when collection has passed the commit that is shown, and
// another error when that can't be told.
func (v *View) kept(ctx context.Context) error {
	head, err := headOf(ctx, v.store)
	if err != nil {
		return err
	}
	return stillKept(ctx, v.store, v.Head().CommitID, head.commit.Horizon, v.url)
}

// readRange fills p, which lies within the file, from the store.
func (v *View) readRange(ctx context.Context, n *Inode, p []byte, off int64) error {
	return v.eachSlot(n, off, off+int64(len(p)), func(no uint32, s *metadata.Slot, from, to int64) error {
		buf := p[from-off : to-off]
		if s == nil {
			clear(buf)
			return nil
		}
		return v.readSlot(ctx, s, uint32(from-int64(no)*v.doc.ObjectSize), buf)
	})
}

// errFound ends a walk that has what it was for.
var errFound = errors.New("found")

// eachSlot calls fn for the slots of a file's range in order, with the part of
// the range that lies in each; s is nil where there is none.
func (v *View) eachSlot(n *Inode, off, end int64, fn func(no uint32, s *metadata.Slot, from, to int64) error) error {
	for off < end {
		no := off / v.doc.ObjectSize
		to := min(end, (no+1)*v.doc.ObjectSize)
		s, err := v.Index().Slot(n.ID, uint32(no))
		if err != nil {
			return fmt.Errorf("slot %d of inode %d: %w", no, n.ID, err)
		}
		if err := fn(uint32(no), s, off, to); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// readSlot reads whole blocks and copies what is asked for.
func (v *View) readSlot(ctx context.Context, s *metadata.Slot, off uint32, p []byte) error {
	from := off / metadata.BlockSize * metadata.BlockSize
	to := min(s.End(), (off+uint32(len(p))+metadata.BlockSize-1)/metadata.BlockSize*metadata.BlockSize)
	clear(p)
	if to <= from {
		return nil
	}
	raw := make([]byte, to-from)
	if err := v.assemble(ctx, s, from, raw); err != nil {
		return err
	}
	if off-from < uint32(len(raw)) {
		copy(p, raw[off-from:])
	}
	return nil
}
