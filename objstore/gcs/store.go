package gcs

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/cisternfs/cistern/objstore"
)

// Store is one bucket. It implements objstore.Store.
type Store struct {
	o      Options
	base   string // of the JSON API, with a slash at its end
	hc     *http.Client
	client *storage.Client
	bucket *storage.BucketHandle
}

// What uploads are stored with.
const (
	contentType  = "application/octet-stream"
	cacheControl = "no-store, no-transform"
)

// version writes a generation as a version.
func version(generation int64) objstore.Version {
	return objstore.Version(strconv.FormatInt(generation, 10))
}

// info is what a listing tells about an object. Its time is that of the
// generation, which changes of metadata don't touch.
func info(a *storage.ObjectAttrs) objstore.Info {
	return objstore.Info{Key: a.Name, Size: a.Size, Version: version(a.Generation), Modified: a.Created}
}

// Put implements objstore.Store. It reads body twice.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if err := objstore.CheckPut(key, size, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	object := s.bucket.Object(key)
	switch {
	case cond.IfAbsent:
		object = object.If(storage.Conditions{DoesNotExist: true})
	case cond.IfVersion != "":
		generation, err := strconv.ParseInt(string(cond.IfVersion), 10, 64)
		if err != nil || generation <= 0 {
			return "", fmt.Errorf("put %s: %w: version %q is no generation", key, objstore.ErrConditionFailed, cond.IfVersion)
		}
		object = object.If(storage.Conditions{GenerationMatch: generation})
	}
	sum, err := checksum(body, size)
	if err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	a, err := upload(ctx, object, body, size, sum)
	switch {
	case err == nil:
	case !notFound(err):
		return "", s.fail(ctx, "put", key, err)
	case cond.IfVersion == "":
		return "", s.noBucket("put", key)
	default:
		err = s.missing(ctx, "put", key, err)
		if errors.Is(err, objstore.ErrNotExist) {
			return "", fmt.Errorf("put %s: %w: it does not exist", key, objstore.ErrConditionFailed)
		}
		return "", err
	}
	if a.Size != size || a.CRC32C != sum || a.Generation <= 0 {
		return "", fmt.Errorf("put %s: %w: the store says that it stored %d bytes with CRC32C %08x as generation %d, sent were %d with %08x",
			key, objstore.ErrDamaged, a.Size, a.CRC32C, a.Generation, size, sum)
	}
	return version(a.Generation), nil
}

// checksum returns the CRC32C of the size bytes that body holds from where it
// stands, and goes back there.
func checksum(body io.ReadSeeker, size int64) (uint32, error) {
	start, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, fmt.Errorf("find the start of the body: %w", err)
	}
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.LimitReader(body, size+1))
	if err != nil {
		return 0, fmt.Errorf("read the body: %w", err)
	}
	if n < size {
		return 0, fmt.Errorf("the body ended after %d of %d bytes", n, size)
	}
	if n > size {
		return 0, fmt.Errorf("the body is longer than the declared %d bytes", size)
	}
	if _, err := body.Seek(start, io.SeekStart); err != nil {
		return 0, fmt.Errorf("go back to the start of the body: %w", err)
	}
	return sum.Sum32(), nil
}

// bodyError is a failure of the caller's body, not of the store.
type bodyError struct{ error }

func (e bodyError) Unwrap() error { return e.error }

// upload sends one request and waits for its end.
func upload(ctx context.Context, object *storage.ObjectHandle, body io.Reader, size int64, sum uint32) (*storage.ObjectAttrs, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := object.NewWriter(ctx)
	w.ChunkSize = 0 // one request
	w.SendCRC32C, w.CRC32C = true, sum
	w.ContentType, w.CacheControl = contentType, cacheControl
	source := &source{r: io.LimitReader(body, size)}
	// An error of w is told, better, by its Close.
	n, _ := io.Copy(w, source)
	if source.err == nil && n < size && source.ended {
		source.err = fmt.Errorf("the body ended after %d of %d bytes on its second reading", n, size)
	}
	if source.err != nil {
		cancel()
		// Close alone might end the request in good order before the
		// cancelled context has cut it off.
		_ = w.CloseWithError(source.err)
	}
	err := w.Close()
	if source.err != nil {
		return nil, bodyError{source.err}
	}
	if err != nil {
		return nil, err
	}
	return w.Attrs(), nil
}

// source remembers how a body ended, to tell that from errors of the writer.
type source struct {
	r     io.Reader
	ended bool
	err   error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err == io.EOF {
		s.ended = true
	} else if err != nil {
		s.err = fmt.Errorf("read the body: %w", err)
	}
	return n, err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	return s.head(ctx, "head", key)
}

func (s *Store) head(ctx context.Context, op, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	a, err := s.bucket.Object(key).Attrs(ctx)
	if err != nil {
		return objstore.Info{}, s.fail(ctx, op, key, err)
	}
	if a.Name != key || a.Generation <= 0 {
		return objstore.Info{}, fmt.Errorf("%s %s: %w: the store answers with key %q, generation %d", op, key, objstore.ErrDamaged, a.Name, a.Generation)
	}
	return info(a), nil
}

// List implements objstore.Store. The API's startOffset includes its key, so
// that one more key than asked for may have to be listed; it lists 1000 at a
// time at most.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	limit = objstore.PageSize(limit)
	q := &storage.Query{Prefix: prefix, StartOffset: startAfter, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name", "Size", "Generation", "Created"}); err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	it := s.bucket.Objects(ctx, q)
	var page []objstore.Info
	for want := limit + 1; len(page) < limit; want = limit - len(page) {
		it.PageInfo().MaxSize = min(want, objstore.MaxList)
		a, err := it.Next()
		if err == iterator.Done {
			break
		}
		if notFound(err) {
			return nil, s.noBucket("list", prefix)
		}
		if err != nil {
			return nil, s.fail(ctx, "list", prefix, err)
		}
		if a.Generation <= 0 {
			return nil, fmt.Errorf("list %q: %w: the store lists %q with generation %d", prefix, objstore.ErrDamaged, a.Name, a.Generation)
		}
		if a.Name > startAfter {
			page = append(page, info(a))
		}
	}
	return page, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	err := s.bucket.Object(key).Delete(ctx)
	if err == nil {
		return nil
	}
	err = s.fail(ctx, "delete", key, err)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	return err
}
