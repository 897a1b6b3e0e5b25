package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/local"
)

// provider opens the buckets of one scheme. create also makes a bucket where
// that is part of formatting; nil: the bucket must be there.
type provider struct {
	open   func(ctx context.Context, u objstore.URL) (objstore.Store, error)
	create func(ctx context.Context, u objstore.URL) (objstore.Store, error)
}

// providers is the table of what this build can open, by a URL's scheme.
func (a *app) providers() map[string]provider {
	return map[string]provider{
		objstore.SchemeFile: {open: openLocal, create: createLocal},
		objstore.SchemeS3:   {open: a.openS3},
		objstore.SchemeGCS:  {open: a.openGCS},
	}
}

func openLocal(_ context.Context, u objstore.URL) (objstore.Store, error) {
	return local.Open(u.Path)
}

// createLocal makes the directory, but not its parent: that is more likely to
// be a mistyped path or a disk that is not mounted.
func createLocal(ctx context.Context, u objstore.URL) (objstore.Store, error) {
	parent := filepath.Dir(u.Path)
	st, err := os.Stat(parent)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, usage(fmt.Errorf("directory %s does not exist: make it first, or check the URL %s", parent, u))
	case err != nil:
		return nil, localError(parent, err)
	case !st.IsDir():
		return nil, usage(fmt.Errorf("%s is not a directory: check the URL %s", parent, u))
	}
	if st, err := os.Stat(u.Path); err == nil && !st.IsDir() {
		return nil, usage(fmt.Errorf("%s is not a directory: check the URL %s", u.Path, u))
	}
	if err := refuseForeign(ctx, u); err != nil {
		return nil, err
	}
	return local.Create(u.Path)
}

// refuseForeign fails when a directory holds files that no volume put there:
// the store does not see them, but who formats it over them would wonder.
func refuseForeign(ctx context.Context, u objstore.URL) error {
	list, err := os.ReadDir(u.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return localError(u.Path, err)
	}
	ours := volumeNames()
	ours[".tmp"], ours[".lock"] = true, true
	for _, e := range list {
		if !ours[e.Name()] {
			what := e.Name()
			if inner := u.Child(what); e.IsDir() {
				if is, err := isVolume(ctx, nil, inner); err == nil && is {
					what = "the volume " + inner.String()
				}
			}
			return usage(fmt.Errorf("%s is not empty (it holds %s): choose an empty directory", u, what))
		}
	}
	return nil
}

// volumeNames are the first parts of the keys that a volume has.
func volumeNames() map[string]bool {
	names := map[string]bool{metadata.VolumeKey: true, metadata.LeaseKey: true, metadata.ClaimKey: true, metadata.DetachedKey: true, "probe": true}
	for _, prefix := range []string{metadata.CommitPrefix, metadata.ManifestPrefix, metadata.SegmentPrefix, metadata.ObjectPrefix, metadata.PinPrefix, metadata.SchedulePrefix} {
		names[strings.TrimSuffix(prefix, "/")] = true
	}
	return names
}

// refuseForeignKeys fails when a prefix holds keys that no volume put there. It
// asks for one key of each first part.
func refuseForeignKeys(ctx context.Context, s objstore.Store, u objstore.URL) error {
	ours := volumeNames()
	for after := ""; ; {
		page, err := s.List(ctx, "", after, 1)
		if err != nil {
			return fmt.Errorf("look whether %s is empty: %w", u, err)
		}
		if len(page) == 0 {
			return nil
		}
		name, _, folder := strings.Cut(page[0].Key, "/")
		if !ours[name] {
			return usage(fmt.Errorf("%s is not empty (it holds %s): choose an empty prefix", u, holds(ctx, s, u, page[0].Key)))
		}
		after = name
		if folder {
			after += "/\U0010ffff" // after all keys below it
		}
	}
}

// store is a volume's prefix with its decorators.
type store struct {
	objstore.Store
	metered  *objstore.Metered
	limits   *objstore.Limits
	speed    *objstore.Bandwidth
	underWay *objstore.UnderWay
	requests requestOptions
	keys     *gateway.Keys                               // of an encrypted volume, when it was opened as one
	doc      *metadata.VolumeDoc                         // of the volume, when it was opened as one; nil: there is none
	place    string                                      // of the service that has the bucket
	adopt    func(from objstore.Store)                   // puts another bucket's objects below the decorators
	warnings func(ctx context.Context) ([]string, error) // of the bucket's settings
	clear    func(ctx context.Context) error             // of what an empty bucket has beside keys
}

// Unwrap is the store below, through which the engine sees whether it is a clone's.
func (s *store) Unwrap() objstore.Store { return s.Store }

// bare is the store for a probe: what its requests meet is what the store does,
// with no limit, no retry and no second request in between.
func (s *store) bare() objstore.Store { return s.metered }

// openStore opens the volume's prefix for a command. With create it makes the
// bucket where formatting does that. reg counts its requests; nil: nothing shows
// them.
func (a *app) openStore(ctx context.Context, u objstore.URL, create bool, reg prometheus.Registerer) (*store, error) {
	o, err := a.requests()
	if err != nil {
		return nil, err
	}
	return a.openStoreWith(ctx, u, create, reg, o)
}

// openStoreWith is openStore with its own bounds of requests.
func (a *app) openStoreWith(ctx context.Context, u objstore.URL, create bool, reg prometheus.Registerer, o requestOptions) (*store, error) {
	p, ok := a.providers()[u.Scheme]
	if !ok {
		return nil, usage(fmt.Errorf("%s: this build has no provider for %s:// volumes; it serves file:///dir, s3://bucket/prefix and gs://bucket/prefix", u, u.Scheme))
	}
	open := p.open
	if create && p.create != nil {
		open = p.create
	}
	s, err := open(ctx, u)
	if errors.Is(err, objstore.ErrNoBucket) {
		return nil, fmt.Errorf("%w: %s: check the URL, or make a volume with `cistern format`", objstore.ErrNoBucket, u)
	}
	if err != nil {
		return nil, err
	}
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	adopting := objstore.NewAdopting(objstore.WithPrefix(s, u.Prefix()), metadata.AdoptedPrefix)
	d, err := decorate(adopting, u, reg, o)
	if err != nil {
		return nil, err
	}
	d.adopt = adopting.Adopt
	d.place = servicePlace(s)
	d.clear = func(context.Context) error { return nil }
	if c, ok := s.(interface {
		Clear(ctx context.Context) error
	}); ok {
		d.clear = c.Clear
	}
	d.warnings = func(context.Context) ([]string, error) { return nil, nil }
	if w, ok := s.(interface {
		Warnings(ctx context.Context, prefix string) ([]string, error)
	}); ok {
		d.warnings = func(ctx context.Context) ([]string, error) { return w.Warnings(ctx, u.Prefix()) }
	}
	return d, nil
}

// servicePlace names the service that has a provider's bucket: what a URL means depends
// on the endpoint that is set. Empty where there is only one, this machine.
func servicePlace(s objstore.Store) string {
	if p, ok := s.(interface{ Place() string }); ok {
		return p.Place()
	}
	return ""
}

// place is servicePlace for what a URL means to this command; no request is made.
func (a *app) place(ctx context.Context, u objstore.URL) (string, error) {
	if u.Scheme == objstore.SchemeFile {
		return "", nil
	}
	p, ok := a.providers()[u.Scheme]
	if !ok {
		return "", nil // which the caller hears when it opens the store
	}
	s, err := p.open(ctx, u)
	if err != nil {
		return "", err
	}
	return servicePlace(s), nil
}

// decorate puts the decorators around a provider, in the order that package
// objstore tells.
func decorate(s objstore.Store, u objstore.URL, reg prometheus.Registerer, o requestOptions) (*store, error) {
	timeouts := o.bandwidth.TimeoutFor(o.downloads)
	timeouts.Base = o.timeout
	metered, err := objstore.WithMetrics(objstore.WithTimeout(s, timeouts), reg)
	if err != nil {
		return nil, err
	}
	limits, err := objstore.NewLimits(o.uploads, o.downloads, reg)
	if err != nil {
		return nil, err
	}
	underWay := objstore.NewUnderWay()
	watched := underWay.Wrap(metered)
	s = watched
	if u.Scheme != objstore.SchemeFile {
		// A disk that is slow to answer gets no quicker by being asked twice.
		if s, err = objstore.WithHedge(s, objstore.HedgeOptions{Spare: limits.TrySpare}, reg); err != nil {
			return nil, err
		}
	}
	speed := objstore.NewBandwidth(o.bandwidth)
	s = objstore.WithLimit(speed.Wrap(s), limits)
	lanes := leaseLane{Store: s, direct: watched}
	return &store{Store: objstore.WithRetry(lanes, objstore.RetryOptions{}), metered: metered, limits: limits, speed: speed, underWay: underWay, requests: o}, nil
}

// leaseLane lets the lease pass what waits for a free connection or for
// bandwidth: a bulk load must not cost the volume.
type leaseLane struct {
	objstore.Store
	direct objstore.Store
}

// Get implements objstore.Store.
func (l leaseLane) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if key == metadata.LeaseKey {
		return l.direct.Get(ctx, key, off, length)
	}
	return l.Store.Get(ctx, key, off, length)
}

// Put implements objstore.Store.
func (l leaseLane) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if key == metadata.LeaseKey {
		return l.direct.Put(ctx, key, body, size, cond)
	}
	return l.Store.Put(ctx, key, body, size, cond)
}
