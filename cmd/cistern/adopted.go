package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// withAdopted puts the objects that a volume adopted into its store, below its
// decorators: requests for them count, wait and are shown like all others.
func (a *app) withAdopted(ctx context.Context, s *store, doc *metadata.VolumeDoc) error {
	if doc == nil || doc.Adopted == nil {
		return nil
	}
	from, _, err := a.openBareBucket(ctx, doc.Adopted.URL)
	if err != nil {
		return fmt.Errorf("the bucket of adopted objects: %w", err)
	}
	s.adopt(from)
	return nil
}

// openBareBucket opens a whole bucket, or directory, of Storage Manager's objects.
func (a *app) openBareBucket(ctx context.Context, url string) (objstore.Store, objstore.URL, error) {
	u, err := objstore.ParseURL(url)
	if err != nil {
		return nil, u, err
	}
	var s objstore.Store
	switch u.Scheme {
	case objstore.SchemeFile:
		s, err = storagemanager.OpenDir(u.Path)
	case objstore.SchemeS3:
		s, err = a.openS3Bucket(ctx, u, true)
	default:
		s, err = a.openGCS(ctx, u)
	}
	if err != nil {
		return nil, u, err
	}
	return objstore.WithPrefix(s, u.Prefix()), u, nil
}

// openBucket is openBareBucket with decorators of its own.
func (a *app) openBucket(ctx context.Context, url string, o requestOptions) (objstore.Store, error) {
	s, u, err := a.openBareBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	return decorate(s, u, prometheus.NewRegistry(), o)
}
