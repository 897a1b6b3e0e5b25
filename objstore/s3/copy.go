package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/cisternfs/cistern/objstore"
)

var _ objstore.Copier = (*Store)(nil)

// CopyFrom implements objstore.Copier by CopyObject: both buckets are at the same
// endpoint, and the credentials read the one and write the other.
func (s *Store) CopyFrom(ctx context.Context, key string, size int64, fromBucket, fromKey string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	in := &awss3.CopyObjectInput{
		Bucket: &s.o.Bucket, Key: &key, CopySource: aws.String(strings.ReplaceAll(url.PathEscape(fromBucket+"/"+fromKey), "%2F", "/")), IfNoneMatch: aws.String("*"),
		ServerSideEncryption: types.ServerSideEncryption(s.o.SSE), TaggingDirective: types.TaggingDirectiveReplace,
	}
	if s.o.KMSKeyID != "" {
		in.SSEKMSKeyId = &s.o.KMSKeyID
	}
	if size >= classFrom {
		in.StorageClass = types.StorageClass(s.o.StorageClass)
	}
	if s.tagging != "" {
		in.Tagging = &s.tagging
	}
	_, err := s.client.CopyObject(ctx, in)
	if err == nil {
		return nil
	}
	var reply *awshttp.ResponseError
	if errors.As(err, &reply) && (reply.HTTPStatusCode() == http.StatusNotImplemented || reply.HTTPStatusCode() == http.StatusMethodNotAllowed) {
		return fmt.Errorf("copy s3://%s/%s: %w: %w", fromBucket, fromKey, errors.ErrUnsupported, err)
	}
	if err = s.failed(ctx, opPut, key, err); errors.Is(err, objstore.ErrConditionFailed) {
		return nil
	}
	return err
}
