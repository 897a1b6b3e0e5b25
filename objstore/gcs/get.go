package gcs

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/api/googleapi"

	"github.com/cisternfs/cistern/objstore"
)

// castagnoli is the polynomial of CRC32C, the checksum that the API speaks.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Get implements objstore.Store. One response is of one generation.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, objstore.Info{}, err
	}
	if off < 0 {
		return nil, objstore.Info{}, fmt.Errorf("get %s: offset %d is negative", key, off)
	}
	if length == 0 {
		info, err := s.head(ctx, "get", key)
		if err != nil {
			return nil, objstore.Info{}, err
		}
		return http.NoBody, info, nil
	}
	res, err := s.download(ctx, key, off, length)
	if err != nil {
		return nil, objstore.Info{}, s.fail(ctx, "get", key, err)
	}
	if res.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		res.Body.Close()
		return s.pastTheEnd(ctx, key, off)
	}
	body, info, err := open(ctx, key, off, length, res)
	if err != nil {
		res.Body.Close()
		return nil, objstore.Info{}, fmt.Errorf("get %s: %w", key, err)
	}
	return body, info, nil
}

// download asks for a range of an object. The response is one of the statuses
// 200, 206 and 416.
func (s *Store) download(ctx context.Context, key string, off, length int64) (*http.Response, error) {
	query := url.Values{"alt": {"media"}}
	if s.o.UserProject != "" {
		query.Set("userProject", s.o.UserProject)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"b/"+escape(s.o.Bucket)+"/o/"+escape(key)+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	// Who accepts gzip gets objects that are stored so as they are; anyone else
	// gets them unpacked.
	req.Header.Set("Accept-Encoding", "gzip")
	switch {
	case length > 0 && off+length > off:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+length-1))
	case off > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", off))
	}
	res, err := s.hc.Do(req)
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return res, nil
	}
	defer res.Body.Close()
	return nil, googleapi.CheckResponse(res)
}

// escape writes one segment of the API's paths.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// pastTheEnd answers for a range that starts past the end of an object.
func (s *Store) pastTheEnd(ctx context.Context, key string, off int64) (io.ReadCloser, objstore.Info, error) {
	info, err := s.head(ctx, "get", key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	if info.Size > off {
		return nil, objstore.Info{}, fmt.Errorf("get %s: %w: the store has no byte %d of an object of %d bytes; it may have been replaced just now",
			key, objstore.ErrUnavailable, off, info.Size)
	}
	return http.NoBody, info, nil
}

// open checks what a response's header says against what was asked for.
func open(ctx context.Context, key string, off, length int64, res *http.Response) (io.ReadCloser, objstore.Info, error) {
	first, size, err := extent(res)
	if err != nil {
		return nil, objstore.Info{}, fmt.Errorf("%w: %w", objstore.ErrDamaged, err)
	}
	n := max(size-off, 0)
	if length > 0 {
		n = min(n, length)
	}
	whole := res.StatusCode == http.StatusOK
	switch {
	case whole && off >= size:
		res.Body.Close()
		res.Body = http.NoBody
	case first != off:
		return nil, objstore.Info{}, fmt.Errorf("%w: asked for bytes from %d on, the store answers from %d on", objstore.ErrDamaged, off, first)
	case whole && n < size:
		// A server may ignore ranges; the rest stays unread.
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, n), res.Body}
	case res.ContentLength >= 0 && res.ContentLength != n:
		return nil, objstore.Info{}, fmt.Errorf("%w: the body has %d bytes, %d are due of an object of %d", objstore.ErrDamaged, res.ContentLength, n, size)
	}
	generation, err := strconv.ParseInt(res.Header.Get("X-Goog-Generation"), 10, 64)
	if err != nil || generation <= 0 {
		return nil, objstore.Info{}, fmt.Errorf("%w: the store says that its generation is %q", objstore.ErrDamaged, res.Header.Get("X-Goog-Generation"))
	}
	b := &body{ctx: ctx, key: key, rc: res.Body, left: n}
	if off == 0 && n == size {
		b.want, b.check = declaredSum(res.Header)
	}
	info := objstore.Info{Key: key, Size: size, Version: version(generation)}
	if t, err := http.ParseTime(res.Header.Get("Last-Modified")); err == nil {
		info.Modified = t
	}
	return b, info, nil
}

// extent returns the offset at which a response's body begins and the size of
// the whole object.
func extent(res *http.Response) (first, size int64, err error) {
	if res.StatusCode == http.StatusOK {
		if stored, err := strconv.ParseInt(res.Header.Get("X-Goog-Stored-Content-Length"), 10, 64); err == nil && stored >= 0 {
			return 0, stored, nil
		}
		if res.ContentLength < 0 {
			return 0, 0, fmt.Errorf("the store does not say how long the object is")
		}
		return 0, res.ContentLength, nil
	}
	var last int64
	text := res.Header.Get("Content-Range")
	if n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &first, &last, &size); n != 3 || err != nil || first < 0 || last < first || last >= size {
		return 0, 0, fmt.Errorf("the store answers with the range %q", text)
	}
	return first, size, nil
}

// declaredSum returns the CRC32C of the whole object that a header declares.
func declaredSum(h http.Header) (sum uint32, ok bool) {
	for _, line := range h.Values("X-Goog-Hash") {
		for part := range strings.SplitSeq(line, ",") {
			text, found := strings.CutPrefix(strings.TrimSpace(part), "crc32c=")
			if !found {
				continue
			}
			if raw, err := base64.StdEncoding.DecodeString(text); err == nil && len(raw) == 4 {
				return binary.BigEndian.Uint32(raw), true
			}
		}
	}
	return 0, false
}

// body is what a Get returns. It belongs to one goroutine, as readers do.
type body struct {
	ctx     context.Context
	key     string
	rc      io.ReadCloser
	left    int64 // bytes still to come
	sum     uint32
	want    uint32 // the object's CRC32C, if check
	check   bool
	damaged error // what Close repeats: io.ReadFull drops an error that comes with the last bytes
}

func (b *body) Read(p []byte) (int, error) {
	if b.damaged != nil {
		return 0, b.damaged
	}
	n, err := b.rc.Read(p)
	if b.check {
		b.sum = crc32.Update(b.sum, castagnoli, p[:n])
	}
	b.left -= int64(n)
	switch {
	case b.left < 0:
		b.damaged = fmt.Errorf("read %s: %w: the body goes on past its end", b.key, objstore.ErrDamaged)
		return 0, b.damaged
	case err == nil:
		return n, nil
	case err != io.EOF:
		return n, fmt.Errorf("read %s: %w", b.key, classify(b.ctx, err))
	case b.left > 0:
		b.damaged = fmt.Errorf("read %s: %w: the body ended %d bytes early", b.key, objstore.ErrDamaged, b.left)
		return n, b.damaged
	case b.check && b.sum != b.want:
		b.damaged = fmt.Errorf("read %s: %w: its CRC32C is %08x, the store declared %08x", b.key, objstore.ErrDamaged, b.sum, b.want)
		return n, b.damaged
	}
	return n, io.EOF
}

// Close returns the damage that was found, if any.
func (b *body) Close() error {
	err := b.rc.Close()
	if b.damaged != nil {
		return b.damaged
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", b.key, classify(b.ctx, err))
	}
	return nil
}
