package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// pathEnd is the end of the path of commits as it was found.
type pathEnd struct {
	last *entry // the last commit
	tail *entry // the last entry: that commit, or the last seal after it
}

// next is where the path goes on.
func (p *pathEnd) next() metadata.CommitID { return p.tail.next() }

// end finds the path's end, given a lease's epoch and hint: by one listing from
// the hint on, or, where that does not show an unbroken path, by epochs.
func (r pathReader) end(ctx context.Context, epoch uint64, hint metadata.CommitID) (*pathEnd, error) {
	p, err := r.endAfter(ctx, hint)
	if p == nil && err == nil {
		p, err = r.endByEpochs(ctx, epoch, hint)
	}
	return p, err
}

// endByEpochs finds the end with an epoch to begin at only, one request after
// another.
func (r pathReader) endByEpochs(ctx context.Context, epoch uint64, hint metadata.CommitID) (*pathEnd, error) {
	last, err := r.someCommit(ctx, epoch, hint)
	if err != nil {
		return nil, err
	}
	p := &pathEnd{last: last, tail: last}
	return p, r.walk(ctx, p)
}

// walk goes on to where there is no further entry.
func (r pathReader) walk(ctx context.Context, p *pathEnd) error {
	for {
		e, err := r.read(ctx, p.next())
		if e == nil || err != nil {
			return err
		}
		if err := p.add(e); err != nil {
			return err
		}
	}
}

// add appends the entry that follows.
func (p *pathEnd) add(e *entry) error {
	if e.commit != nil {
		if e.commit.Prev != p.last.hash {
			return fmt.Errorf("%w: commit %s does not follow commit %s", ErrDamaged, e.id, p.last.id)
		}
		p.last = e
	}
	p.tail = e
	return nil
}

// endAfter finds the end from a commit on that was the last once: the numbers
// after it are listed at once, and only the last commit and the last entry are
// read. It returns nil when the listing does not show an unbroken path from that
// commit on, or what it shows is deleted meanwhile.
func (r pathReader) endAfter(ctx context.Context, from metadata.CommitID) (*pathEnd, error) {
	if from.N == 0 {
		return nil, nil
	}
	ids, err := r.listed(ctx, from)
	if err != nil || len(ids) == 0 || ids[0] != from {
		return nil, err
	}
	// An entry that the next one follows in the same epoch is a commit, one that
	// leads to another epoch is a seal. What the last one is, its document says.
	commit := -1
	for i := range ids[1:] {
		switch now := ids[i+1]; {
		case now.N == ids[i].N+1 && now.Epoch == ids[i].Epoch:
			commit = i
		case now.N != ids[i].N+1 || now.Epoch != ids[i].Epoch+1:
			return nil, nil
		}
	}
	want := ids[len(ids)-1:]
	if commit >= 0 {
		want = []metadata.CommitID{want[0], ids[commit]}
	}
	found, err := r.readSeveral(ctx, want)
	if err != nil {
		return nil, err
	}
	for _, e := range found {
		if e == nil {
			return nil, nil
		}
	}
	p := &pathEnd{tail: found[0], last: found[0]}
	if p.tail.seal != nil && commit >= 0 {
		p.last = found[1]
	}
	if p.last.commit == nil {
		return nil, nil
	}
	return p, nil
}

// listed lists the numbers of all entries from one on, in their order.
func (r pathReader) listed(ctx context.Context, from metadata.CommitID) ([]metadata.CommitID, error) {
	before := metadata.CommitKey(metadata.CommitID{Epoch: from.Epoch, N: from.N - 1})
	var ids []metadata.CommitID
	err := objstore.ListAll(ctx, r.store, metadata.CommitPrefix, before, func(i objstore.Info) error {
		if id, ok := metadata.ParseCommitKey(i.Key); ok {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return nil, storeErrorAt("list", metadata.CommitPrefix, err)
	}
	return ids, nil
}

// readSeveral reads a few entries at the same time.
func (r pathReader) readSeveral(ctx context.Context, ids []metadata.CommitID) ([]*entry, error) {
	found, errs := make([]*entry, len(ids)), make([]error, len(ids))
	together(len(ids), func(i int) { found[i], errs[i] = r.read(ctx, ids[i]) })
	return found, errors.Join(errs...)
}

// sealTo closes every epoch from the path's end on that is below the given one,
// in ascending order, in the name of a reign. A seal for that very epoch in
// another's name means that two reigns were told that they have it.
func (r pathReader) sealTo(ctx context.Context, p *pathEnd, epoch uint64, reign string) error {
	if p.next().Epoch >= epoch {
		return r.sealedBefore(ctx, epoch, reign)
	}
	if err := p.tail.sharedEpoch(epoch, reign); err != nil {
		return err
	}
	for p.next().Epoch < epoch {
		at := p.next()
		s := metadata.Seal{CommitID: at, By: reign, Epoch: epoch}
		err := objstore.Create(ctx, r.store, metadata.CommitKey(at), metadata.EncodeSeal(&s))
		if err == nil {
			p.tail = &entry{id: at, seal: &s}
			continue
		}
		if !errors.Is(err, objstore.ErrConditionFailed) {
			return storeError("seal epoch "+at.String(), err)
		}
		x, err := r.read(ctx, at)
		if err != nil {
			return err
		}
		if x == nil {
			return fmt.Errorf("%w: %s was refused as taken and is not there", ErrStore, metadata.CommitKey(at))
		}
		if err := x.sharedEpoch(epoch, reign); err != nil {
			return err
		}
		if err := p.add(x); err != nil {
			return err
		}
	}
	return nil
}

// sealedBefore answers a path that leads to an epoch before this mount has written
// a seal for it.
func (r pathReader) sealedBefore(ctx context.Context, epoch uint64, reign string) error {
	last, err := r.lastOf(ctx, epoch-1, metadata.CommitID{})
	if err != nil || last.N == 0 {
		return err
	}
	x, err := r.read(ctx, last)
	if err != nil || x == nil {
		return err
	}
	return x.sharedEpoch(epoch, reign)
}

// stands reads the end anew once this mount's seals are written: the last one must
// be there as it was written, and what was committed after it is gone through.
func (r pathReader) stands(ctx context.Context, p *pathEnd, epoch uint64, reign string) error {
	found, err := r.readSeveral(ctx, []metadata.CommitID{p.tail.id, p.next()})
	if err != nil {
		return err
	}
	switch x := found[0]; {
	case x == nil && p.tail.seal != nil:
		return fmt.Errorf("%w: the seal at %s was written and is not there", ErrDamaged, p.tail.id)
	case x != nil:
		if err := x.sharedEpoch(epoch, reign); err != nil {
			return err
		}
	}
	if found[1] == nil {
		return nil
	}
	if err := p.add(found[1]); err != nil {
		return err
	}
	return r.walk(ctx, p)
}
