package gateway

import (
	"context"
	"errors"
	"sync"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// survey is what a mount reads in the bucket before it changes anything there.
type survey struct {
	lease   *metadata.Lease
	version objstore.Version // of the lease
	path    *pathEnd
}

// together calls f with 0 to n-1 at the same time and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// survey reads the bucket, as far as that is possible without the lease, while
// Options.Fit judges the store: on the way from one owner to the next both are
// time in which nobody serves the volume.
func (v *Volume) survey(ctx context.Context) (*survey, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fit := make(chan error, 1)
	go func() {
		if v.opt.Fit == nil {
			fit <- nil
			return
		}
		fit <- v.opt.Fit(ctx)
	}()
	s, err := v.look(ctx)
	if err != nil {
		cancel()
	}
	if ferr := <-fit; ferr != nil && (err == nil || errors.Is(ferr, objstore.ErrGuarantee)) {
		return nil, ferr
	}
	return s, err
}

// look reads the volume's documents and, where nobody owns the volume, brings the
// index to its last commit.
func (v *Volume) look(ctx context.Context) (*survey, error) {
	s := &survey{}
	var doc *metadata.VolumeDoc
	var docErr, err error
	together(2, func(i int) {
		if i == 0 {
			doc, docErr = ReadVolumeDoc(ctx, v.store, v.opt.URL)
		} else {
			s.lease, s.version, err = readLease(ctx, v.store)
		}
	})
	if docErr != nil {
		return nil, docErr
	}
	if uerr := v.useDoc(doc); uerr != nil {
		return nil, uerr
	}
	if oerr := v.readOwner(); oerr != nil {
		return nil, oerr
	}
	if err != nil {
		return nil, err
	}
	// A volume whose end can't be read, or not with these keys, is left as it is.
	if s.path, err = (pathReader{v.store}).end(ctx, s.lease.Epoch, s.lease.Hint); err != nil {
		return nil, err
	}
	if set := s.path.last.commit.Settings; v.doc.Key != "" && set != nil {
		if err := needWriteKeys(*set, v.opt.URL, v.opt.Keys); err != nil {
			return nil, err
		}
	}
	if s.lease.Released || v.opt.Takeover {
		v.indexAhead(ctx, s.path.last)
	}
	return s, nil
}

// indexAhead brings the index to a commit that may not be the last any more when
// this mount has the lease. What fails is done then: an owner may have collected
// what is read here.
func (v *Volume) indexAhead(ctx context.Context, last *entry) {
	err := v.openIndex(ctx, last)
	if err == nil {
		return
	}
	v.log.Debug("the index is brought to the last commit later", "reason", err)
	v.dropIndex()
}

// become makes this mount the owner of the volume: it takes the lease, seals all
// lower epochs and returns the end of the path, which nobody else can move then.
func (v *Volume) become(ctx context.Context, s *survey) (*pathEnd, error) {
	taken, err := v.acquire(ctx, s)
	if err != nil {
		return nil, err
	}
	r, path := pathReader{v.store}, s.path
	if taken.Nonce != s.lease.Nonce { // it waited, and the owner may have gone on meanwhile
		if path, err = r.end(ctx, taken.Epoch, taken.Hint); err != nil {
			return nil, err
		}
	}
	epoch, reign := v.epoch(), v.owner.current()
	if err := r.sealTo(ctx, path, epoch, reign); err != nil {
		return nil, err
	}
	var confirmed, stands error
	together(2, func(i int) {
		if i == 0 {
			confirmed = v.confirmLease(ctx)
		} else {
			stands = r.stands(ctx, path, epoch, reign)
		}
	})
	if err := errors.Join(confirmed, stands); err != nil {
		return nil, err
	}
	if next := path.next(); next.Epoch != epoch {
		return nil, v.fencedAt(next.Epoch)
	}
	return path, nil
}
