package gcs

import (
	"context"
	"errors"

	"cloud.google.com/go/storage"

	"github.com/cisternfs/cistern/objstore"
)

var _ objstore.Copier = (*Store)(nil)

// CopyFrom implements objstore.Copier by a rewrite, which may take several requests
// between locations.
func (s *Store) CopyFrom(ctx context.Context, key string, _ int64, fromBucket, fromKey string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	from := s.client.Bucket(fromBucket).Object(fromKey)
	_, err := s.bucket.Object(key).If(storage.Conditions{DoesNotExist: true}).CopierFrom(from).Run(ctx)
	if err == nil {
		return nil
	}
	if notFound(err) {
		return s.missing(ctx, "copy", key, err)
	}
	if err = s.fail(ctx, "copy", key, err); errors.Is(err, objstore.ErrConditionFailed) {
		return nil
	}
	return err
}
