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
	if err := loadPages(m, get, kv, derivedMax); err != nil {
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

// loadPages puts the records of all pages into the store, and those that are
// derived from them, of which up to limit bytes wait to be sorted. Pages are read
// by loaders and stored in their order.
func loadPages(m *Manifest, get func(key string, size int64) ([]byte, error), kv KV, limit int) error {
	decs, err := newDecoders(min(loaders, len(m.Pages)))
	if err != nil {
		return err
	}
	defer decs.close()
	l := &pageLoader{m: m, get: get, decs: decs, quit: make(chan struct{}), queue: make(chan chan pageOps, loaders)}
	l.wg.Add(1)
	go l.run()
	f := &pageFill{pages: l, limit: limit}
	err = fill(kv, f.next)
	close(l.quit)
	l.wg.Wait()
	if err != nil {
		return err
	}
	for _, i := range f.again {
		if err := storeDerived(l.load(i), kv); err != nil {
			return err
		}
	}
	return nil
}

// pageLoader fetches and decodes pages, a few of them at the same time.
type pageLoader struct {
	m     *Manifest
	get   func(key string, size int64) ([]byte, error)
	decs  decoders
	quit  chan struct{}     // closed when nothing more is wanted
	queue chan chan pageOps // a page's records each, in the order of pages; closed after the last one
	wg    sync.WaitGroup
}

// pageOps are a page's records, or why there are none.
type pageOps struct {
	page int
	ops  []op
	err  error
}

func (l *pageLoader) run() {
	defer l.wg.Done()
	defer close(l.queue)
	for i := range l.m.Pages {
		ch := make(chan pageOps, 1)
		select {
		case l.queue <- ch:
		case <-l.quit:
			return
		}
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			ch <- l.load(i)
		}()
	}
}

// load fetches and decodes one page, with one of the decoders.
func (l *pageLoader) load(i int) pageOps {
	dec := <-l.decs
	defer func() { l.decs <- dec }()
	p := &l.m.Pages[i]
	ops, err := loadPage(p, dec, l.get)
	return pageOps{page: i, ops: ops, err: err}
}

// decoders holds those that nobody uses.
type decoders chan *zstd.Decoder

func newDecoders(n int) (decoders, error) {
	d := make(decoders, n)
	for range n {
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*pageMax))
		if err != nil {
			d.close()
			return nil, err
		}
		d <- dec
	}
	return d, nil
}

// close ends the decoders; all of them are back.
func (d decoders) close() {
	close(d)
	for dec := range d {
		dec.Close()
	}
}

func loadPage(p *Page, dec *zstd.Decoder, get func(key string, size int64) ([]byte, error)) ([]op, error) {
	what := "manifest page " + p.Key()
	body, err := get(p.Key(), p.Size)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", what, err)
	}
	raw, err := openPage(what, p, dec, body)
	if err != nil {
		return nil, err
	}
	var r lineReader
	batch := changes{ops: make([]op, 0, 2*min(p.Records, pageMax/8))}
	records := 0
	for len(raw) > 0 {
		line, rest, ok := bytes.Cut(raw, []byte{'\n'})
		if !ok {
			return nil, damaged(what, "its last line has no end")
		}
		raw = rest
		records++
		if err := r.decode(line, batch.set); err != nil {
			return nil, damaged(what, "line %d: %v", records, err)
		}
	}
	if records != p.Records {
		return nil, damaged(what, "it has %d records, not %d", records, p.Records)
	}
	return batch.ops, nil
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
