package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Keys are the encryption keys of a mount: the first is for what is written
// from now on, all are for reading.
type Keys = blockcodec.Ring

// Unlock is OpenStore for who needs nothing that a clone shares.
func Unlock(ctx context.Context, s objstore.Store, url string, keys *Keys) (objstore.Store, *metadata.VolumeDoc, error) {
	return OpenStore(ctx, s, url, keys, nil)
}

// needKey refuses an encrypted volume when no key was given.
func needKey(doc *metadata.VolumeDoc, url string, keys *Keys) error {
	if doc.Key == "" || keys.First() != nil {
		return nil
	}
	return fmt.Errorf("%w: %s is encrypted and no key was given: name the file of its key with --encrypt-key-file (it was formatted with key %s)", ErrKey, url, doc.Key)
}

func unlock(s objstore.Store, doc *metadata.VolumeDoc, keys *Keys) objstore.Store {
	if !doc.EncryptsDocuments() {
		return s
	}
	return &secretStore{Store: s, volume: doc.ID, keys: keys}
}

// needKeys refuses a state whose settings name a key that was not given.
func needKeys(s metadata.Settings, url string, keys *Keys) error {
	for _, name := range s.KeyNames() {
		if _, err := keys.Need(name); err != nil {
			return fmt.Errorf("%s: %w; give every key that the volume still needs with --encrypt-key-file, the one to write with first", url, err)
		}
	}
	return nil
}

// needWriteKeys is needKeys for who writes: a key that another has taken the place
// of is for reading alone, so that an old configuration can't bring it back.
func needWriteKeys(s metadata.Settings, url string, keys *Keys) error {
	if err := needKeys(s, url, keys); err != nil {
		return err
	}
	if names := s.KeyNames(); len(names) > 0 && slices.Contains(names[1:], keys.First().Name()) {
		return &keyReplaced{url: url, key: keys.First().Name(), by: names[0]}
	}
	return nil
}

// keyReplaced is an ErrKey: the key to write with is one that was replaced.
type keyReplaced struct{ url, key, by string }

func (e *keyReplaced) Error() string {
	return fmt.Sprintf("%s: encryption key %s was replaced by key %s, and nothing new is written with it: give key %s first, or a new one, and the others after it", e.url, e.key, e.by, e.by)
}

func (e *keyReplaced) Is(target error) bool { return target == ErrKey }

// keysOf lists the names of the keys that a state needs once this codec has
// written to it: its own first.
func keysOf(c *blockcodec.Codec, before metadata.Settings) string {
	own := c.KeyName()
	if own == "" {
		return before.Keys
	}
	names := []string{own}
	for _, n := range before.KeyNames() {
		if n != own {
			names = append(names, n)
		}
	}
	return strings.Join(names, ",")
}

// newCodec makes the codec by which a volume's blocks are written and read.
func newCodec(doc *metadata.VolumeDoc, url string, keys *Keys) (*blockcodec.Codec, error) {
	method, err := blockcodec.ParseMethod(doc.Compress)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNewerFormat, url, err)
	}
	if err := needKey(doc, url, keys); err != nil {
		return nil, err
	}
	c, err := blockcodec.New(method, keys, doc.Key != "")
	if err != nil {
		return nil, fmt.Errorf("codec of %s: %w", url, err)
	}
	return c, nil
}

// openFrame decodes the frame of a block or extent; what names it in errors.
func (f *fetcher) openFrame(dst, frame []byte, ref metadata.Ref, c metadata.Cipher, number uint32, what string) error {
	born := c.Born
	if born.Key == "" {
		born = ref
	}
	if born.Volume == "" {
		born.Volume = f.vol.BornIn(born.Key)
	}
	err := f.codec.Open(dst, frame, c.Key, blockcodec.ID{Volume: born.Volume, Name: born.Key}, number)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKey):
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, what, err)
}

// frames makes the frames of one new object or segment; without a body bytes
// are stored as they are.
type frames struct {
	body *blockcodec.Body
	key  string // the cipher's
}

// newFrames begins the body that will be stored under key.
func (v *Volume) newFrames(key string) (frames, error) {
	if !v.codec.Framing() {
		return frames{}, nil
	}
	b, err := v.codec.NewBody(blockcodec.ID{Volume: v.doc.ID, Name: key}, v.opt.Rand)
	if err != nil {
		return frames{}, fmt.Errorf("begin %s: %w", key, err)
	}
	return frames{b, v.codec.KeyName()}, nil
}

// object turns a slot's bytes into the object's and completes its base.
func (f frames) object(plain []byte, b *metadata.Base) []byte {
	if f.body == nil {
		return plain
	}
	blocks := slices.Collect(slices.Chunk(plain, metadata.BlockSize))
	out := make([]byte, 0, len(plain)+len(blocks)*blockcodec.Overhead)
	b.Stored, b.Cipher.Key = make([]uint32, len(blocks)), f.key
	for i, block := range blocks {
		n := len(out)
		out = f.body.Append(out, block, uint32(i))
		b.Stored[i] = uint32(len(out) - n)
	}
	return out
}

// extent appends an extent to a segment and completes its patch.
func (f frames) extent(segment, plain []byte, p *metadata.Patch) []byte {
	p.SegOff, p.Sum = uint32(len(segment)), checksum(plain)
	if f.body == nil {
		return append(segment, plain...)
	}
	segment = f.body.Append(segment, plain, p.SegOff)
	p.Stored, p.Cipher.Key = uint32(len(segment))-p.SegOff, f.key
	return segment
}

// secretStore keeps a volume's commits and manifests encrypted in the store
// below it. Above it, they and their sizes are those of plain documents.
type secretStore struct {
	objstore.Store
	volume string
	keys   *Keys
}

const documentOverhead = int64(blockcodec.DocumentOverhead)

// secret says whether what lies under a key is encrypted as a document.
func secret(key string) bool {
	return strings.HasPrefix(key, metadata.CommitPrefix) || strings.HasPrefix(key, metadata.ManifestPrefix)
}

func (s *secretStore) id(key string) blockcodec.ID {
	return blockcodec.ID{Volume: s.volume, Name: key}
}

// Get implements objstore.Store. A document is read whole whatever the range.
func (s *secretStore) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if !secret(key) || off < 0 { // which the store below refuses
		return s.Store.Get(ctx, key, off, length)
	}
	body, info, err := objstore.ReadAll(ctx, s.Store, key, maxDocument+documentOverhead)
	if err != nil {
		return nil, info, err
	}
	plain, err := s.keys.OpenDocument(body, s.id(key))
	if errors.Is(err, ErrKey) {
		return nil, info, fmt.Errorf("%w: %s: %w; name its file with --encrypt-key-file", objstore.ErrOpaque, key, err)
	}
	if err != nil {
		return nil, info, fmt.Errorf("%w: %s: %w", objstore.ErrDamaged, key, err)
	}
	info.Size = int64(len(plain))
	plain = plain[min(off, info.Size):]
	if length >= 0 {
		plain = plain[:min(int64(len(plain)), length)]
	}
	return &documentReader{ctx, bytes.NewReader(plain)}, info, nil
}

// documentReader reads a decrypted document while its context lives.
type documentReader struct {
	ctx  context.Context
	rest *bytes.Reader
}

// Read implements io.Reader.
func (r *documentReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.rest.Read(p)
}

// Close implements io.Closer.
func (r *documentReader) Close() error { return nil }

// Put implements objstore.Store. The same document gives the same bytes.
func (s *secretStore) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if !secret(key) {
		return s.Store.Put(ctx, key, body, size, cond)
	}
	if err := objstore.CheckPut(key, size, cond); err != nil {
		return "", err
	}
	plain, err := io.ReadAll(io.LimitReader(body, size+1))
	if err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	if int64(len(plain)) != size {
		return "", fmt.Errorf("put %s: the body has not the %d bytes that were announced", key, size)
	}
	out := s.keys.SealDocument(plain, s.id(key))
	return s.Store.Put(ctx, key, bytes.NewReader(out), int64(len(out)), cond)
}

// Head implements objstore.Store.
func (s *secretStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := s.Store.Head(ctx, key)
	return plainSize(i), err
}

// List implements objstore.Store.
func (s *secretStore) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	page, err := s.Store.List(ctx, prefix, startAfter, limit)
	for i := range page {
		page[i] = plainSize(page[i])
	}
	return page, err
}

func plainSize(i objstore.Info) objstore.Info {
	if secret(i.Key) {
		i.Size -= min(i.Size, documentOverhead)
	}
	return i
}
