package s3

import (
	"context"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/cisternfs/cistern/objstore"
)

// classFrom is the size in bytes from which a body gets the storage class of
// the options: the least that S3's infrequent-access classes bill.
const classFrom = 128 << 10

// cleanTimeout bounds the removal of a self-check's object, which goes on when the
// request that it was for is over.
const cleanTimeout = 5 * time.Second

// unsigned stands in for the body's SHA-256 where TLS and the checksums guard it.
const unsigned = "UNSIGNED-PAYLOAD"

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	out, err := s.client.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &s.o.Bucket, Key: &key})
	if err != nil {
		return objstore.Info{}, s.failed(ctx, opHead, key, err)
	}
	info := objstore.Info{Key: key, Version: version(out.ETag), Modified: aws.ToTime(out.LastModified)}
	if out.ContentLength == nil || info.Version == "" {
		return objstore.Info{}, fmt.Errorf("head s3://%s/%s: %w: the reply has no length or no ETag", s.o.Bucket, key, objstore.ErrUnavailable)
	}
	info.Size = *out.ContentLength
	return info, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	_, err := s.client.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &s.o.Bucket, Key: &key})
	if err == nil {
		return nil
	}
	if err = s.failed(ctx, opDelete, key, err); errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	return err
}

// version is an ETag without its quotes, and without the mark of a weak one that
// a proxy on the way may have added: If-Match takes strong ones only.
func version(tag *string) objstore.Version {
	return objstore.Version(strings.Trim(strings.TrimPrefix(aws.ToString(tag), "W/"), `"`))
}

// sums are the checksums of a body.
type sums struct {
	md5    string // base64; empty: not needed
	crc32c string // base64, big endian
	sha256 string // hex, or unsigned
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if err := objstore.CheckPut(key, size, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put s3://%s/%s: %w", s.o.Bucket, key, err)
	}
	start, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", fmt.Errorf("put s3://%s/%s: find the start of the body: %w", s.o.Bucket, key, err)
	}
	sum, err := s.digest(body, size)
	if err != nil {
		return "", fmt.Errorf("put s3://%s/%s: %w", s.o.Bucket, key, err)
	}
	send := func(bare bool) (objstore.Version, error) {
		if _, err := body.Seek(start, io.SeekStart); err != nil {
			return "", fmt.Errorf("put s3://%s/%s: go back to the start of the body: %w", s.o.Bucket, key, err)
		}
		return s.put(ctx, key, body, size, sum, cond, bare)
	}
	bare := s.bare.Load()
	v, err := send(bare)
	switch {
	case bare || cond.IfVersion == "":
	case err == nil:
		s.quoted.Store(true)
	case errors.Is(err, objstore.ErrConditionFailed) && !s.quoted.Load() && s.wantsBare(ctx, key, cond.IfVersion):
		return send(true)
	}
	return v, err
}

// md5Least is how large a body must be, in bytes, to go without its MD5 where the
// store computes CRC32Cs: the MD5 takes more time than all else that is done for it.
const md5Least = 256 << 10

// digest reads a body to its end. One that is not size bytes long is an error.
func (s *Store) digest(body io.Reader, size int64) (sums, error) {
	m, c, h := md5.New(), crc32.New(crc32.MakeTable(crc32.Castagnoli)), sha256.New()
	w := []io.Writer{c}
	withMD5 := size < md5Least || !s.crcs.Load()
	if withMD5 {
		w = append(w, m)
	}
	if s.plain {
		w = append(w, h)
	}
	n, err := io.Copy(io.MultiWriter(w...), io.LimitReader(body, size+1))
	switch {
	case err != nil:
		return sums{}, fmt.Errorf("read the body: %w", err)
	case n > size:
		return sums{}, fmt.Errorf("the body is longer than the %d bytes that were announced", size)
	case n < size:
		return sums{}, fmt.Errorf("the body has %d bytes and not the %d that were announced", n, size)
	}
	sum := sums{
		crc32c: encodeCRC(c.Sum32()),
		sha256: unsigned,
	}
	if withMD5 {
		sum.md5 = base64.StdEncoding.EncodeToString(m.Sum(nil))
	}
	if s.plain {
		sum.sha256 = hex.EncodeToString(h.Sum(nil))
	}
	return sum, nil
}

// encodeCRC writes a CRC32C as S3's headers have it.
func encodeCRC(c uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, c))
}

// put makes one PUT. bare sends the ETag of a condition without quotes.
func (s *Store) put(ctx context.Context, key string, body io.Reader, size int64, sum sums, cond objstore.Condition, bare bool) (objstore.Version, error) {
	in := &awss3.PutObjectInput{
		Bucket: &s.o.Bucket, Key: &key, Body: body, ContentLength: &size,
		ChecksumCRC32C: &sum.crc32c, ContentType: aws.String("application/octet-stream"),
		ServerSideEncryption: types.ServerSideEncryption(s.o.SSE),
	}
	if sum.md5 != "" {
		in.ContentMD5 = &sum.md5
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
	switch {
	case cond.IfAbsent:
		in.IfNoneMatch = aws.String("*")
	case cond.IfVersion != "" && bare:
		in.IfMatch = aws.String(string(cond.IfVersion))
	case cond.IfVersion != "":
		in.IfMatch = aws.String(`"` + string(cond.IfVersion) + `"`)
	}
	out, err := s.client.PutObject(ctx, in, func(o *awss3.Options) {
		o.APIOptions = append(o.APIOptions, hashed(sum.sha256))
	})
	if err != nil {
		return "", s.putFailed(ctx, key, cond, err)
	}
	if got := out.ChecksumCRC32C; got != nil && *got != sum.crc32c {
		return "", fmt.Errorf("put s3://%s/%s: %w: the store stored a body with CRC32C %s, %s was sent", s.o.Bucket, key, objstore.ErrDamaged, *got, sum.crc32c)
	} else if got != nil {
		s.crcs.Store(true)
	}
	v := version(out.ETag)
	if v == "" {
		return "", fmt.Errorf("put s3://%s/%s: %w: the reply has no ETag", s.o.Bucket, key, objstore.ErrUnavailable)
	}
	return v, nil
}

// hashed tells the signature the body's SHA-256, which the SDK would compute once
// more. It has to be told inside of the call, whose context begins empty.
func hashed(sum string) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("PayloadHash", func(
			ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
		) (middleware.InitializeOutput, middleware.Metadata, error) {
			return next.HandleInitialize(v4.SetPayloadHash(ctx, sum), in)
		}), middleware.Before)
	}
}

// putFailed is the error of a PUT, whose condition gives some a meaning of
// their own.
func (s *Store) putFailed(ctx context.Context, key string, cond objstore.Condition, err error) error {
	conditional := cond != (objstore.Condition{})
	status := statusOf(err)
	err = s.failed(ctx, opPut, key, err)
	switch {
	case cond.IfVersion != "" && errors.Is(err, objstore.ErrNotExist):
		return fmt.Errorf("put s3://%s/%s: %w: the key is missing", s.o.Bucket, key, objstore.ErrConditionFailed)
	case conditional && status == 501:
		return fmt.Errorf("%w: it does not know conditional PUTs: %v", objstore.ErrGuarantee, err)
	}
	return err
}

// wantsBare finds out, after a refused compare-and-swap, whether the store
// refuses what it should accept because it compares ETags without quotes, as
// Ceph RGW 16.2 does. It is asked on a key of its own, so that a store which
// ignores such a condition does no harm; what it says then holds for good.
func (s *Store) wantsBare(ctx context.Context, key string, expected objstore.Version) bool {
	if info, err := s.Head(ctx, key); err != nil || info.Version != expected {
		return false // the refusal is true
	}
	scratch := key + ".etag-" + rand.Text()
	if len(scratch) > objstore.MaxKey {
		return false
	}
	try := func(text string, cond objstore.Condition) (objstore.Version, error) {
		body := strings.NewReader(text)
		sum, err := s.digest(body, int64(len(text)))
		if err != nil {
			return "", err
		}
		return s.put(ctx, scratch, strings.NewReader(text), int64(len(text)), sum, cond, true)
	}
	first, err := try("first "+scratch, objstore.Condition{IfAbsent: true})
	if err != nil {
		return false
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		if err := s.Delete(ctx, scratch); err != nil {
			s.log.Warn("an object of a self-check is left", "key", scratch, "error", err)
		}
	}()
	second, err := try("second "+scratch, objstore.Condition{IfVersion: first})
	if err != nil {
		return false
	}
	if _, err := try("third "+scratch, objstore.Condition{IfVersion: first}); !errors.Is(err, objstore.ErrConditionFailed) {
		return false
	}
	if info, err := s.Head(ctx, scratch); err != nil || info.Version != second {
		return false
	}
	s.log.Info("the store compares ETags without quotes; conditions are sent so from now on", "bucket", s.o.Bucket)
	s.bare.Store(true)
	return true
}
