package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/rangelock"
)

// node is what the process knows of an inode that is in use.
type node struct {
	id    InodeID
	lock  rangelock.Lock // over the file's bytes
	refs  uint64         // lookups of the kernel and open handles
	users int            // calls under way

	parent InodeID // where it was last looked up or made, for objects' names
	name   string
}

// nodeTable holds the nodes in use.
type nodeTable struct {
	mu sync.Mutex // guards the fields below and the counts of every node; the innermost lock
	m  map[InodeID]*node
}

func (t *nodeTable) get(ino InodeID) *node {
	if t.m == nil {
		t.m = map[InodeID]*node{}
	}
	n := t.m[ino]
	if n == nil {
		n = &node{id: ino}
		t.m[ino] = n
	}
	return n
}

// retain adds references that keep an inode without names alive.
func (t *nodeTable) retain(ino InodeID, n uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd := t.get(ino)
	nd.refs += n
	return nd
}

// named is retain for who came by a name.
func (t *nodeTable) named(ino, parent InodeID, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd := t.get(ino)
	nd.refs++
	nd.parent, nd.name = parent, name
}

// path returns a path by which an inode was reached lately, as far as it is
// known; it is for people.
func (t *nodeTable) path(ino InodeID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var path string
	for range 64 {
		nd := t.m[ino]
		if nd == nil || nd.name == "" {
			break
		}
		if path == "" {
			path = nd.name
		} else {
			path = nd.name + "/" + path
		}
		ino = nd.parent
	}
	return path
}

// release gives references back and says whether they were the last.
func (t *nodeTable) release(ino InodeID, n uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd := t.m[ino]
	if nd == nil {
		return false
	}
	nd.refs -= min(n, nd.refs)
	last := nd.refs == 0
	t.drop(nd)
	return last
}

// use returns an inode's node, which stays the same until done.
func (t *nodeTable) use(ino InodeID) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd := t.get(ino)
	nd.users++
	return nd
}

func (t *nodeTable) done(nd *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd.users--
	t.drop(nd)
}

func (t *nodeTable) drop(nd *node) {
	if nd.refs == 0 && nd.users == 0 {
		delete(t.m, nd.id)
	}
}

func (t *nodeTable) held(ino InodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	nd := t.m[ino]
	return nd != nil && nd.refs > 0
}

func (t *nodeTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

// Forget gives back n references of Lookup and its like.
func (v *Volume) Forget(ino InodeID, n uint64) {
	if v.nodes.release(ino, n) {
		v.mayReap(ino)
	}
}

// mayReap queues an inode to be freed if it has no names and no references.
func (v *Volume) mayReap(ino InodeID) {
	v.mu.RLock()
	n, err := v.inode(ino)
	v.mu.RUnlock()
	if err == nil && n.Nlink == 0 && !v.nodes.held(ino) {
		v.reaping.add(ino)
	}
}

// reapQueue is the set of inodes that may be freed. It is bounded by the
// number of inodes without names.
type reapQueue struct {
	mu sync.Mutex
	m  map[InodeID]struct{}
}

func (q *reapQueue) add(ino InodeID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.m == nil {
		q.m = map[InodeID]struct{}{}
	}
	q.m[ino] = struct{}{}
}

func (q *reapQueue) take() []InodeID {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := make([]InodeID, 0, len(q.m))
	for ino := range q.m {
		list = append(list, ino)
	}
	q.m = nil
	return list
}

// reapAll frees the queued inodes that nobody holds. What can't be freed now
// stays queued.
func (v *Volume) reapAll(ctx context.Context) error {
	list := v.reaping.take()
	for i, ino := range list {
		if err := v.reap(ctx, ino); err != nil {
			for _, rest := range list[i:] {
				v.reaping.add(rest)
			}
			return err
		}
	}
	return nil
}

// reapWait is how long freeing an inode waits for room in the journal: the commit
// that would make room waits for it.
const reapWait = time.Second

func (v *Volume) reap(ctx context.Context, ino InodeID) error {
	short, cancel := context.WithTimeout(ctx, reapWait)
	defer cancel()
	res, err := v.journal.Reserve(short, opOverhead, true)
	if err != nil {
		return v.waitError(short, err)
	}
	defer res.Release()
	nd := v.nodes.use(ino)
	defer v.nodes.done(nd)
	held, err := nd.lock.Lock(ctx, 0, wholeFile, true)
	if err != nil {
		return err
	}
	defer held.Unlock()
	v.mu.Lock()
	n, err := v.inode(ino)
	if err != nil || n.Nlink != 0 || v.nodes.held(ino) {
		v.mu.Unlock()
		return nil // gone already, or in use again
	}
	_, err = v.doLocked(res, &reapOp{ino: ino}, nil)
	v.mu.Unlock()
	if err != nil {
		return err
	}
	if err := v.cache.Remove(uint64(ino)); err != nil {
		v.log.Warn("cache file of a freed inode stays", "inode", ino, "error", err)
	}
	return nil
}
