package s3

import (
	"context"
	"fmt"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/cisternfs/cistern/objstore"
)

// List implements objstore.Store. A store may cut its pages shorter than it is
// asked for: they are put together.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	limit = objstore.PageSize(limit)
	var page []objstore.Info
	in := &awss3.ListObjectsV2Input{Bucket: &s.o.Bucket, EncodingType: types.EncodingTypeUrl}
	if prefix != "" {
		in.Prefix = &prefix
	}
	if startAfter != "" {
		in.StartAfter = &startAfter
	}
	for {
		in.MaxKeys = aws.Int32(int32(limit - len(page)))
		out, err := s.client.ListObjectsV2(ctx, in)
		if err != nil {
			return nil, s.failed(ctx, opList, prefix, err)
		}
		for _, o := range out.Contents {
			info, err := listed(o, out.EncodingType)
			if err != nil {
				return nil, fmt.Errorf("list s3://%s/%s: %w", s.o.Bucket, prefix, err)
			}
			page = append(page, info)
		}
		if len(page) > limit {
			return page[:limit], nil
		}
		if len(page) == limit || !aws.ToBool(out.IsTruncated) {
			return page, nil
		}
		next := aws.ToString(out.NextContinuationToken)
		if next == "" || next == aws.ToString(in.ContinuationToken) {
			return nil, fmt.Errorf("list s3://%s/%s: %w: the store says that there is more and not where", s.o.Bucket, prefix, objstore.ErrDamaged)
		}
		in.ContinuationToken = &next
	}
}

// listed is one entry of a listing.
func listed(o types.Object, encoding types.EncodingType) (objstore.Info, error) {
	key := aws.ToString(o.Key)
	if encoding == types.EncodingTypeUrl {
		plain, err := url.QueryUnescape(key)
		if err != nil {
			return objstore.Info{}, fmt.Errorf("%w: key %q is not encoded as the store says: %v", objstore.ErrDamaged, key, err)
		}
		key = plain
	}
	info := objstore.Info{Key: key, Size: aws.ToInt64(o.Size), Version: version(o.ETag), Modified: aws.ToTime(o.LastModified)}
	if o.Size == nil || info.Version == "" {
		return objstore.Info{}, fmt.Errorf("%w: key %q is listed without size or ETag", objstore.ErrDamaged, key)
	}
	return info, nil
}
