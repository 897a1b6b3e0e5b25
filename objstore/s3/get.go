package s3

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cisternfs/cistern/objstore"
)

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, err
	}
	if off < 0 {
		return nil, objstore.Info{}, fmt.Errorf("get s3://%s/%s: offset %d is negative", s.o.Bucket, key, off)
	}
	if length == 0 {
		return s.nothing(ctx, key, off, length)
	}
	in := &awss3.GetObjectInput{Bucket: &s.o.Bucket, Key: &key}
	whole := off == 0 && length < 0
	switch {
	case whole:
	case length < 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", off))
	default:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", off, off+length-1))
	}
	out, err := s.client.GetObject(ctx, in, func(o *awss3.Options) {
		if whole {
			o.APIOptions = append(o.APIOptions, askForChecksum)
		}
	})
	if statusOf(err) == http.StatusRequestedRangeNotSatisfiable {
		return s.nothing(ctx, key, off, length)
	}
	if err != nil {
		return nil, objstore.Info{}, s.failed(ctx, opGet, key, err)
	}
	b := &body{s: s, ctx: ctx, key: key, rc: out.Body}
	info, err := b.expect(out, off, length, in.Range != nil)
	if err != nil {
		// Nobody wants the bytes, so their error says nothing.
		_ = out.Body.Close()
		return nil, objstore.Info{}, fmt.Errorf("get s3://%s/%s: %w", s.o.Bucket, key, err)
	}
	return b, info, nil
}

// askForChecksum adds the header by itself: with the SDK's own setting it would
// verify in its way, and the store's range replies with it.
func askForChecksum(stack *middleware.Stack) error {
	return smithyhttp.AddHeaderValue("X-Amz-Checksum-Mode", "ENABLED")(stack)
}

// nothing answers for a range that has no bytes.
func (s *Store) nothing(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	info, err := s.Head(ctx, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if length != 0 && off < info.Size {
		return nil, objstore.Info{}, fmt.Errorf("get s3://%s/%s: %w: the store has no byte %d of an object of %d", s.o.Bucket, key, objstore.ErrUnavailable, off, info.Size)
	}
	return io.NopCloser(strings.NewReader("")), info, nil
}

// body is an object's bytes on their way. It belongs to one goroutine, as
// readers do.
type body struct {
	s    *Store
	ctx  context.Context
	key  string
	rc   io.ReadCloser
	skip int64 // bytes before the range, of a store that ignores ranges
	left int64 // bytes of the range still to come
	size int64 // of the object

	sum  hash.Hash32 // nil: there is nothing to compare with
	want string      // the checksum that the store declares
	err  error       // sticks
}

// expect takes from a reply's header what the body has to be.
func (b *body) expect(out *awss3.GetObjectOutput, off, length int64, ranged bool) (objstore.Info, error) {
	info := objstore.Info{Key: b.key, Version: version(out.ETag), Modified: aws.ToTime(out.LastModified)}
	if out.ContentLength == nil || info.Version == "" {
		return info, fmt.Errorf("%w: the reply has no length or no ETag", objstore.ErrUnavailable)
	}
	coming := *out.ContentLength
	switch contentRange := aws.ToString(out.ContentRange); {
	case contentRange == "":
		info.Size = coming
		b.skip = min(off, info.Size)
	case !ranged:
		return info, fmt.Errorf("%w: the store answers with range %q of a whole object", objstore.ErrDamaged, contentRange)
	default:
		first, last, size, err := parseRange(contentRange)
		if err != nil {
			return info, err
		}
		if first != off || last-first+1 != coming {
			return info, fmt.Errorf("%w: asked for %d+%d, the store answers with %d bytes as range %q", objstore.ErrDamaged, off, length, coming, contentRange)
		}
		info.Size = size
	}
	b.size, b.left = info.Size, max(info.Size-off, 0)
	if length >= 0 {
		b.left = min(b.left, length)
	}
	if out.ContentRange != nil && b.left != coming {
		return info, fmt.Errorf("%w: %d bytes are due of an object of %d, the store sends %d", objstore.ErrDamaged, b.left, info.Size, coming)
	}
	if !ranged && out.ChecksumCRC32C != nil && out.ChecksumType != types.ChecksumTypeComposite && !strings.Contains(*out.ChecksumCRC32C, "-") {
		b.sum, b.want = crc32.New(crc32.MakeTable(crc32.Castagnoli)), *out.ChecksumCRC32C
	}
	return info, nil
}

// parseRange reads "bytes 5-9/100".
func parseRange(s string) (first, last, size int64, err error) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	from, rest, ok1 := strings.Cut(rest, "-")
	to, total, ok2 := strings.Cut(rest, "/")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	if !ok || !ok1 || !ok2 || errors.Join(err1, err2, err3) != nil || first > last || last >= size {
		return 0, 0, 0, fmt.Errorf("%w: the store answers with the range %q", objstore.ErrDamaged, s)
	}
	return first, last, size, nil
}

// Read implements io.Reader. The last bytes of a body whose checksum is wrong
// are not handed out.
func (b *body) Read(p []byte) (int, error) {
	if b.err == nil && b.skip > 0 {
		n, err := io.CopyN(io.Discard, b.rc, b.skip)
		if b.skip -= n; b.skip > 0 {
			b.err = b.broken(err)
		}
	}
	if b.err != nil {
		return 0, b.err
	}
	if b.left == 0 {
		// An empty object has a checksum too.
		b.err = io.EOF
		if !b.verified() {
			b.err = b.wrong()
		}
		return 0, b.err
	}
	n, err := b.rc.Read(p[:min(int64(len(p)), b.left)])
	if b.sum != nil {
		b.sum.Write(p[:n]) // never fails
	}
	b.left -= int64(n)
	switch {
	case b.left == 0 && !b.verified():
		b.err = b.wrong()
		return 0, b.err
	case b.left == 0:
		return n, nil
	case err != nil:
		b.err = b.broken(err)
	}
	return n, b.err
}

func (b *body) verified() bool { return b.sum == nil || encodeCRC(b.sum.Sum32()) == b.want }

func (b *body) wrong() error {
	return fmt.Errorf("get s3://%s/%s: %w: its CRC32C is %s, the store declares %s", b.s.o.Bucket, b.key, objstore.ErrDamaged, encodeCRC(b.sum.Sum32()), b.want)
}

// broken is the error of a body that ended before its end.
func (b *body) broken(err error) error {
	what := fmt.Sprintf("get s3://%s/%s", b.s.o.Bucket, b.key)
	if b.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, b.ctx.Err())
	}
	return fmt.Errorf("%s: %w: the body of an object of %d bytes broke off %d bytes early: %v", what, objstore.ErrUnavailable, b.size, b.left, err)
}

// Close implements io.Closer. What is left of the body is dropped, so that an
// error of the connection says nothing.
func (b *body) Close() error {
	_ = b.rc.Close()
	return nil
}
