package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// pathReader walks a volume's path of commits: from commit to commit and
// through seals.
type pathReader struct {
	store objstore.Store
}

// entry is what lies at one commit number: a commit or a seal.
type entry struct {
	id     metadata.CommitID
	commit *metadata.Commit
	seal   *metadata.Seal
	hash   string
	size   int64
}

// read returns the entry with a number, or nil when there is none.
func (r pathReader) read(ctx context.Context, id metadata.CommitID) (*entry, error) {
	e := &entry{id: id}
	key := metadata.CommitKey(id)
	err := readDocument(ctx, r.store, key, maxDocument, func(body []byte, _ objstore.Info) (err error) {
		e.commit, e.seal, err = metadata.DecodeCommitOrSeal(body)
		e.size = int64(len(body))
		if e.commit != nil {
			e.hash = metadata.Hash(body)
		}
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if e.commit != nil && e.commit.CommitID != id || e.seal != nil && e.seal.CommitID != id {
		return nil, fmt.Errorf("%w: %s holds another commit's document", ErrDamaged, key)
	}
	return e, nil
}

// next returns where the path goes on after an entry.
func (e *entry) next() metadata.CommitID {
	if e.seal != nil {
		return metadata.CommitID{Epoch: e.id.Epoch + 1, N: e.id.N + 1}
	}
	return metadata.CommitID{Epoch: e.id.Epoch, N: e.id.N + 1}
}

// lastOf returns the last number that an epoch uses, by listing; zero when it
// uses none. from is a commit that was the last once: when it is of this epoch,
// it or something after it is there, or the bucket is damaged.
func (r pathReader) lastOf(ctx context.Context, epoch uint64, from metadata.CommitID) (metadata.CommitID, error) {
	after := ""
	if from.Epoch == epoch {
		after = metadata.CommitKey(metadata.CommitID{Epoch: epoch, N: from.N - 1})
	}
	var last metadata.CommitID
	prefix := metadata.EpochPrefix(epoch)
	if after < prefix {
		after = ""
	}
	err := objstore.ListAll(ctx, r.store, prefix, after, func(i objstore.Info) error {
		if id, ok := metadata.ParseCommitKey(i.Key); ok {
			last = id
		}
		return nil
	})
	if err != nil {
		return last, storeErrorAt("list", prefix, err)
	}
	if last.N == 0 && from.Epoch == epoch && from.N != 0 {
		return last, fmt.Errorf("%w: %s is missing, which was the last commit once, and nothing follows it: the bucket lost commits", ErrDamaged, metadata.CommitKey(from))
	}
	return last, nil
}

// head finds the last commit on the path, given a lease's epoch and hint. next
// is where the path's next entry would lie.
func (r pathReader) head(ctx context.Context, epoch uint64, hint metadata.CommitID) (last *entry, next metadata.CommitID, err error) {
	p, err := r.end(ctx, epoch, hint)
	if err != nil {
		return nil, next, err
	}
	return p.last, p.next(), nil
}

// someCommit finds a late commit on the path: the last of the newest epoch
// that has one. Collection may pass between two of its requests, so what looks
// like a gap is looked at twice.
func (r pathReader) someCommit(ctx context.Context, epoch uint64, hint metadata.CommitID) (*entry, error) {
	x, err := r.lastCommit(ctx, epoch, hint)
	if errors.Is(err, ErrDamaged) {
		x, err = r.lastCommit(ctx, epoch, hint)
	}
	return x, err
}

// lastCommit walks back from the last number that is listed. An epoch in which
// nothing but the seal is left begins where the one before it ends; otherwise
// commits between are missing, and what lies before them is not the head.
func (r pathReader) lastCommit(ctx context.Context, epoch uint64, hint metadata.CommitID) (*entry, error) {
	var gap metadata.CommitID // where nothing was found below a seal
	for e := epoch; e > 0; e-- {
		id, err := r.lastOf(ctx, e, hint)
		if err != nil {
			return nil, err
		}
		if gap.N > 0 && id.N != gap.N {
			return nil, fmt.Errorf("%w: %s is missing, and its epoch's seal is there: the bucket lost commits", ErrDamaged, metadata.CommitKey(gap))
		}
		for ; id.N > 0; id.N-- {
			x, err := r.read(ctx, id)
			if err != nil {
				return nil, err
			}
			if x == nil {
				gap = id
				break
			}
			if x.commit != nil {
				return x, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the volume has no commit at all: its format did not end", ErrDamaged)
}

// sharedEpoch returns an error when the entry is a seal that another reign wrote
// for the same epoch. Seals are create-only: the first of an epoch decides whose it
// is, also where the store let two writers swap the lease.
func (e *entry) sharedEpoch(epoch uint64, reign string) error {
	if e.seal == nil || e.seal.Epoch != epoch || e.seal.By == reign {
		return nil
	}
	return lostSwap(fmt.Sprintf("the seal at %s says that another writer has epoch %d too", e.id, epoch))
}

// sealedBy returns the reign that sealed an epoch.
func (r pathReader) sealedBy(ctx context.Context, epoch uint64, hint metadata.CommitID) (string, error) {
	last, err := r.lastOf(ctx, epoch, hint)
	if err != nil {
		return "", err
	}
	x, err := r.read(ctx, last)
	if err != nil {
		return "", err
	}
	if x == nil || x.seal == nil {
		return "", fmt.Errorf("%w: epoch %d has no seal at its end", ErrDamaged, epoch)
	}
	return x.seal.By, nil
}
