package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Follower is a volume as its writer's last commit has it: a view that moves
// from commit to commit. It only ever reads from the bucket, and needs neither
// lease nor pin: it is less than the retention behind. Safe for concurrent use.
//
// # How it moves
//
// Once an interval it asks for the next entry on the path of commits: one
// request, which a quiet volume answers with "not there". What a commit changes
// (Delta) is worked out from its document; then, at one moment for all files,
//
//	names, View.moving taken → cache bytes that change dropped, commit applied
//	View.moving given back   → reads are of the new commit from here on
//	Watcher.DropPages        → the kernel has no page of the old one any more
//	names given back         → names and attributes are of the new commit, too
//	Watcher.DropNames
//
// so that whoever sees a new name or size can't find old bytes, or the zeros
// that fill the last page of a shorter file.
//
// When the path can't be gone on with, because collection has passed or a restore
// went back to an earlier commit, the state is loaded anew from the manifest of
// the head, beside the old one.
type Follower struct {
	o    FollowOptions
	view *View

	// names is shared while a request for names or attributes is answered, and
	// exclusive during a move. Taken before View.moving, never held over the
	// network by who shares it.
	names sync.RWMutex

	turn chan struct{} // holds a token; whoever has it may move, and use the fields of step
	step followStep
	poke chan struct{} // asks for a look before the interval has passed

	looks outage // for the next commit

	mu      sync.Mutex // guards the fields below
	watcher Watcher
	waiting []chan struct{} // reads that wait for the next look; closed by it
	stat    followState
	closed  bool

	group sync.WaitGroup
	stop  context.CancelFunc
}

// followStep is where a follower is.
type followStep struct {
	next     metadata.CommitID // where the path goes on
	untold   Delta             // what the watcher has not heard of
	number   int               // of the index's directory
	headSeen time.Time         // when the lease was read last
}

// FollowOptions tell OpenFollower what to follow.
type FollowOptions struct {
	Store    objstore.Store
	URL      string
	Keys     *Keys // of an encrypted volume, whose Store is what Unlock returned
	FS       vfs.FS
	Dir      string                                // the follower's alone, for its index and cache
	OpenKV   func(dir string) (metadata.KV, error) // of an index
	Cache    int64                                 // bytes of local disk, default 2 GiB
	KeepFree int64                                 // bytes of the disk that the cache leaves to others; default none
	Fetches  int                                   // parallel ranged reads, default 16
	Interval time.Duration                         // between looks for the next commit, default 1 s
	Logger   *slog.Logger
}

// Watcher hears what a move changes, so that no one keeps believing what was.
type Watcher interface {
	// DropPages is called when reads are of the new commit, while no name and
	// no attribute of it is given out. When it returns, nobody has bytes of the
	// old one cached. It may wait for reads under way, and for nothing else.
	DropPages(d *Delta)
	// DropNames is called when everything is of the new commit.
	DropNames(d *Delta)
}

const (
	// headEvery is how often a follower that finds no next commit asks the lease
	// whether there is a later one that it can't get to.
	headEvery = 15 * time.Second
	// followPatience is how long a move waits for reads of bytes that it changes.
	followPatience = 3 * time.Second

	// What one move takes in at most.
	moveCommits = 256
	moveBytes   = 32 << 20
)

// OpenFollower brings the index in o.Dir to the writer's last commit, or makes
// it anew from the bucket. Errors: ErrNoVolume, ErrNewerFormat, ErrDamaged,
// ErrStore, ErrInterrupted.
func OpenFollower(ctx context.Context, o FollowOptions) (*Follower, error) {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.Fetches == 0 {
		o.Fetches = 16
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	doc, err := ReadVolumeDoc(ctx, o.Store, o.URL)
	if err != nil {
		return nil, err
	}
	if err := makeDir(o.FS, o.Dir); err != nil {
		return nil, err
	}
	f := &Follower{o: o, turn: make(chan struct{}, 1), poke: make(chan struct{}, 1)}
	v := &View{url: o.URL, doc: *doc}
	v.moves = newMover(f.again)
	v.fetcher = newFetcher(o.Store, doc, o.Fetches, &v.stats, time.Now)
	if v.codec, err = newCodec(doc, o.URL, o.Keys); err != nil {
		return nil, err
	}
	v.follows = true
	f.view = v
	if err := f.openIndex(ctx); err != nil {
		return nil, err
	}
	v.local, err = openViewCache(v, ViewOptions{FS: o.FS, CacheDir: filepath.Join(o.Dir, "cache"), CacheBytes: o.Cache, KeepFree: o.KeepFree, Logger: o.Logger})
	if err != nil {
		return nil, errors.Join(err, v.kv.Close())
	}
	f.turn <- struct{}{}
	return f, nil
}

// Start follows the writer until Close. w hears of every move from now on; it
// may be nil.
func (f *Follower) Start(w Watcher) {
	ctx, stop := context.WithCancel(context.Background())
	f.mu.Lock()
	f.watcher, f.stop = w, stop
	f.mu.Unlock()
	f.group.Add(1)
	go func() {
		defer f.group.Done()
		f.run(ctx)
	}()
}

// run looks for commits until ctx ends.
func (f *Follower) run(ctx context.Context) {
	for {
		t := time.NewTimer(f.o.Interval)
		select {
		case <-t.C:
		case <-f.poke:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return
		}
		_ = f.Poll(ctx) // which has told log and status
	}
}

// Poll looks for later commits once and moves to the last that there is. Errors:
// ErrStore, ErrDamaged, ErrInterrupted, and those of the local disk; what is
// shown stays a commit then, and the next Poll tries again.
func (f *Follower) Poll(ctx context.Context) error {
	select {
	case <-f.turn:
	case <-ctx.Done():
		return ErrInterrupted
	}
	defer func() { f.turn <- struct{}{} }()
	f.mu.Lock()
	waiting := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	answer := sync.OnceFunc(func() {
		for _, w := range waiting {
			close(w)
		}
	})
	defer answer()
	err := f.look(ctx, len(waiting) > 0, answer)
	if err == nil || ctx.Err() == nil {
		f.noteLook(err)
	}
	return err
}

// look finds later commits and moves to them. moved is called when reads are of
// what was found, or nothing was. sure: ask the lease whether that is all.
func (f *Follower) look(ctx context.Context, sure bool, moved func()) error {
	if f.isBroken() {
		return f.rebuild(ctx, moved)
	}
	for {
		found, more, err := f.gather(ctx)
		if resets(found) {
			return f.rebuild(ctx, moved)
		}
		if len(found) > 0 {
			if merr := f.move(found, moved); merr != nil {
				f.o.Logger.Warn("the local index can't be moved on; it is built anew", "volume", f.o.URL, "error", merr)
				return f.rebuild(ctx, moved)
			}
		}
		if err != nil {
			return err
		}
		if len(found) > 0 && more {
			continue
		}
		if len(found) == 0 && (sure || time.Since(f.step.headSeen) >= headEvery) {
			return f.lookAhead(ctx, moved)
		}
		return nil
	}
}

// gather reads the entries that follow on the path. more: there may be others.
func (f *Follower) gather(ctx context.Context) (found []*entry, more bool, err error) {
	r := pathReader{f.o.Store}
	size := int64(0)
	for at := f.step.next; len(found) < moveCommits && size < moveBytes; {
		e, err := r.read(ctx, at)
		if err != nil || e == nil {
			return found, false, err
		}
		found = append(found, e)
		size += e.size
		at = e.next()
	}
	return found, true, nil
}

// resets says whether one of the entries goes back to an earlier state, so that
// the path can't be followed by differences.
func resets(list []*entry) bool {
	return slices.ContainsFunc(list, func(e *entry) bool { return e.commit != nil && e.commit.Resets() })
}

// lookAhead asks the lease whether there is a later commit than the path leads
// to: then collection has passed, and the state is loaded anew.
func (f *Follower) lookAhead(ctx context.Context, moved func()) error {
	l, _, err := readLease(ctx, f.o.Store)
	if err != nil {
		return err
	}
	f.step.headSeen = time.Now()
	shown := f.Head()
	if l.Hint.N <= shown.N && l.Epoch <= f.step.next.Epoch {
		return nil
	}
	f.noteAhead(l.Hint.N)
	// The hint may be of a commit that was made since the path was read.
	found, _, err := f.gather(ctx)
	switch {
	case err != nil:
		return err
	case resets(found):
		return f.rebuild(ctx, moved)
	case len(found) > 0:
		return f.move(found, moved)
	case l.Hint.N <= shown.N:
		return nil // a writer has taken an epoch and not sealed the last one yet
	}
	f.o.Logger.Warn("collection has passed the commit that is shown: its state is loaded anew", "volume", f.o.URL, "shown", shown.CommitID.String(), "last", l.Hint.String())
	return f.rebuild(ctx, moved)
}

// move applies entries of the path, at one moment for all readers.
func (f *Follower) move(found []*entry, moved func()) error {
	f.names.Lock()
	err := f.apply(found)
	moved()
	if err == nil {
		f.dropPages()
	}
	f.names.Unlock()
	if err == nil {
		f.dropNames()
	}
	return err
}

// apply is the moment itself. After an error the index may be between two
// commits, and nothing is answered until it is built anew.
func (f *Follower) apply(found []*entry) error {
	v := f.view
	v.moving.Lock()
	defer v.moving.Unlock()
	ix := v.Index()
	for _, e := range found {
		if e.commit != nil {
			if err := f.applyCommit(ix, e); err != nil {
				v.broken = fmt.Errorf("move to commit %s: %w", e.id, err)
				return v.broken
			}
		}
		f.step.next = e.next()
	}
	v.moves.moved()
	return nil
}

func (f *Follower) applyCommit(ix *metadata.Index, e *entry) error {
	var d Delta
	if err := d.add(ix, e.commit, f.view.doc.ObjectSize); err != nil {
		return err
	}
	u := &f.step.untold
	u.Ranges, u.Inodes, u.Names = append(u.Ranges, d.Ranges...), append(u.Inodes, d.Inodes...), append(u.Names, d.Names...)
	u.Limit = max(u.Limit, d.Limit)
	if err := f.view.local.forget(&d, e.commit.Gone); err != nil {
		return err
	}
	return ix.Apply(e.commit, e.hash, nil)
}

// dropPages waits until the watcher has let go of changed bytes. Reads of the
// old ones for which the store lets one wait are given up: they hold pages.
func (f *Follower) dropPages() {
	d := &f.step.untold
	w := f.hears()
	if w == nil || d.empty() {
		return
	}
	t := time.AfterFunc(followPatience, func() { f.view.moves.giveUp(d) })
	defer t.Stop()
	w.DropPages(d)
}

func (f *Follower) dropNames() {
	d := &f.step.untold
	if w := f.hears(); w != nil && !d.empty() {
		w.DropNames(d)
	}
	f.step.untold = Delta{}
}

func (f *Follower) hears() Watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watcher
}

// again waits for a look at the path that begins after now: something that the
// commit that is shown needs is not in the bucket any more.
func (f *Follower) again(ctx context.Context) error {
	w := make(chan struct{})
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return ErrClosed
	}
	f.waiting = append(f.waiting, w)
	f.mu.Unlock()
	select {
	case f.poke <- struct{}{}:
	default: // somebody has asked already
	}
	select {
	case <-w:
		return nil
	case <-ctx.Done():
		return ErrInterrupted
	}
}

// Hold keeps the follower at one commit until release is called, which must be
// soon: meanwhile what View answers about names and attributes is of that
// commit. Data is read without it.
func (f *Follower) Hold() (release func()) {
	f.names.RLock()
	return f.names.RUnlock
}

// View is what is shown. Its methods need Hold, but Head, Status, Doc, and Read
// of an open file.
func (f *Follower) View() *View { return f.view }

// Head is the commit that is shown.
func (f *Follower) Head() metadata.Head { return f.view.Head() }

// Close ends following and all fetches, and gives the cache back. The index
// stays in its directory, for the next follower to start from.
func (f *Follower) Close() error {
	f.mu.Lock()
	stop := f.stop
	waiting := f.waiting
	f.waiting, f.closed = nil, true
	f.mu.Unlock()
	for _, w := range waiting {
		close(w)
	}
	if stop != nil {
		stop()
	}
	f.view.moves.close()
	f.group.Wait()
	return f.view.Close()
}
