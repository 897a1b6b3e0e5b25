package metadata

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// loaders is how many pages are fetched and read at the same time.
const loaders = 8

// LoadManifest fills an empty store with a manifest, so that OpenIndex opens it,
// and returns the head. get fetches a page's body of size bytes; it is called
// from up to 8 goroutines and its result is not kept. Every page is verified.
// After an error the store is half-filled: OpenIndex refuses it, delete it.
func LoadManifest(doc []byte, get func(key string, size int64) ([]byte, error), kv KV) (Head, error) {
	m, err := DecodeManifest(doc)
	if err != nil {
		return Head{}, err
	}
	if err := mustBeEmpty(kv); err != nil {
		return Head{}, fmt.Errorf("load manifest %v: the store is not empty: %w", m.CommitID, err)
	}
	if err := loadPages(m, get, kv); err != nil {
		return Head{}, fmt.Errorf("load manifest %v: %w", m.CommitID, err)
	}
	// The head is what makes the rest valid: it goes last, when that is durable.
	err = kv.Sync()
	if err == nil {
		err = kv.Update(func(w Writer) error { return w.Set(headKey(), encodeHead(&m.Head)) })
	}
	if err == nil {
		err = kv.Sync()
	}
	if err != nil {
		return Head{}, fmt.Errorf("load manifest %v: %w", m.CommitID, err)
	}
	return m.Head, nil
}

// loadPages runs the loaders and returns the first error, when all have ended.
func loadPages(m *Manifest, get func(key string, size int64) ([]byte, error), kv KV) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards the two below
		next  int
		first error
	)
	take := func(err error) (*Page, bool) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = err
		}
		if first != nil || next == len(m.Pages) {
			return nil, false
		}
		next++
		return &m.Pages[next-1], true
	}
	for range min(loaders, len(m.Pages)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*pageMax))
			if err != nil {
				take(err)
				return
			}
			defer dec.Close()
			for p, ok := take(nil); ok; p, ok = take(err) {
				err = loadPage(p, dec, get, kv)
			}
		}()
	}
	wg.Wait()
	return first
}

func loadPage(p *Page, dec *zstd.Decoder, get func(key string, size int64) ([]byte, error), kv KV) error {
	what := "manifest page " + p.Key()
	body, err := get(p.Key(), p.Size)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	raw, err := openPage(what, p, dec, body)
	if err != nil {
		return err
	}
	var batch changes
	records := 0
	for len(raw) > 0 {
		line, rest, ok := bytes.Cut(raw, []byte{'\n'})
		if !ok {
			return damaged(what, "its last line has no end")
		}
		raw = rest
		records++
		if err := decodeLine(line, batch.set); err != nil {
			return damaged(what, "line %d: %v", records, err)
		}
		var none changes
		if batch.over(&none, batchOps) || len(raw) == 0 {
			if err := kv.Update(func(w Writer) error { return writeOps(w, batch.ops) }); err != nil {
				return fmt.Errorf("store %s: %w", what, err)
			}
			batch = changes{}
		}
	}
	if records != p.Records {
		return damaged(what, "it has %d records, not %d", records, p.Records)
	}
	return nil
}

// openPage verifies a page's body and returns its lines.
func openPage(what string, p *Page, dec *zstd.Decoder, body []byte) ([]byte, error) {
	if int64(len(body)) != p.Size {
		return nil, damaged(what, "it has %d bytes, not %d", len(body), p.Size)
	}
	if sum := crc32.Checksum(body, castagnoli()); sum != p.Sum {
		return nil, damaged(what, "its checksum is %08x, not %08x", sum, p.Sum)
	}
	raw, err := dec.DecodeAll(body, make([]byte, 0, p.Raw))
	if err != nil {
		return nil, damaged(what, "%v", err)
	}
	if int64(len(raw)) != p.Raw || Hash(raw) != p.Hash {
		return nil, damaged(what, "its uncompressed bytes are not those that its name says")
	}
	return raw, nil
}

// ReadPage verifies a page's body and calls fn for each of its lines, for tools.
func ReadPage(p *Page, body []byte, fn func(line []byte) error) (err error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*pageMax))
	if err != nil {
		return err
	}
	defer dec.Close()
	raw, err := openPage("manifest page "+p.Key(), p, dec, body)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(raw) {
		if err := fn(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
	return nil
}
