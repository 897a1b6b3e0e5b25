package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// withAdopted puts the objects that a volume adopted into its store.
func (a *app) withAdopted(ctx context.Context, s *store, doc *metadata.VolumeDoc, o requestOptions) error {
	if doc == nil || doc.Adopted == nil {
		return nil
	}
	from, err := a.openBucket(ctx, doc.Adopted.URL, o)
	if err != nil {
		return fmt.Errorf("the bucket of adopted objects: %w", err)
	}
	s.Store = objstore.WithAdopted(s.Store, metadata.AdoptedPrefix, from)
	return nil
}

// openBucket opens a whole bucket, or directory, of Storage Manager's objects.
func (a *app) openBucket(ctx context.Context, url string, o requestOptions) (objstore.Store, error) {
	u, err := objstore.ParseURL(url)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	d, err := decorate(objstore.WithPrefix(s, u.Prefix()), u, prometheus.NewRegistry(), o)
	if err != nil {
		return nil, err
	}
	return d, nil
}
