package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// copying is a copy of documents of unknown size from one store to another.
type copying struct {
	src, dst *mem.Store
	list     []thing
}

func newCopying(t *testing.T, documents, size int) *copying {
	t.Helper()
	c := &copying{src: mem.New(), dst: mem.New()}
	n := newNeed(func(string) bool { return true })
	for i := range documents {
		key := metadata.CommitKey(metadata.CommitID{Epoch: 1, N: uint64(i + 1)})
		if err := objstore.Create(bg, c.src, key, bytes.Repeat([]byte{byte(i)}, size)); err != nil {
			t.Fatal(err)
		}
		n.add(thing{key: key, size: -1})
	}
	c.list = n.list
	return c
}

func (c *copying) run(ctx context.Context, o CopyOptions, hold *budget, src, dst objstore.Store) (CopyProgress, error) {
	o.complete()
	k := copier{o: o, src: src, dst: dst, hold: hold, from: func(string) string { return "mem://from" }}
	return k.run(ctx, c.list)
}

// wantAll makes sure that the target has every document.
func (c *copying) wantAll(t *testing.T) {
	t.Helper()
	for i := range c.list {
		want, _, err := objstore.ReadAll(bg, c.src, c.list[i].key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := objstore.ReadAll(bg, c.dst, c.list[i].key, 1<<30); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", c.list[i].key, len(got), err)
		}
	}
}

// held counts the bytes that were read and are not stored yet.
type held struct {
	objstore.Store
	mu        sync.Mutex
	now, peak int64
	sizes     map[string]int64
}

func (h *held) Get(ctx context.Context, key string, off, n int64) (io.ReadCloser, objstore.Info, error) {
	body, info, err := h.Store.Get(ctx, key, off, n)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now += info.Size
	h.sizes[key] = info.Size
	h.peak = max(h.peak, h.now)
	return body, info, err
}

// stores is the other end of held.
type stores struct {
	objstore.Store
	from *held
}

func (s *stores) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, c objstore.Condition) (objstore.Version, error) {
	v, err := s.Store.Put(ctx, key, body, size, c)
	s.from.mu.Lock()
	defer s.from.mu.Unlock()
	s.from.now -= s.from.sizes[key]
	return v, err
}

func TestCopier_Run_DocumentsOfUnknownSizeStayInMemorysBounds(t *testing.T) {
	const size, most = 3 << 19, 4 << 20
	c := newCopying(t, 20, size)
	from := &held{Store: c.src, sizes: map[string]int64{}}
	p, err := c.run(bg, CopyOptions{Parallel: 16}, newBudget(most), from, &stores{c.dst, from})
	if err != nil || p.DoneThings != 20 {
		t.Fatalf("%+v, %v", p, err)
	}
	if from.peak > most || from.peak <= size {
		t.Errorf("%d bytes were held at a time: at most %d, and more than one document", from.peak, most)
	}
	c.wantAll(t)
}

// large is a store that says that an object is larger than anything may be.
type large struct{ objstore.Store }

func (l large) Head(ctx context.Context, key string) (objstore.Info, error) {
	info, err := l.Store.Head(ctx, key)
	info.Size = maxDocument + documentOverhead + 1
	return info, err
}

func TestCopier_Run_WhatIsTooLargeIsDamageAndNeverRead(t *testing.T) {
	c := newCopying(t, 1, 10)
	from := &held{Store: large{c.src}, sizes: map[string]int64{}}
	if _, err := c.run(bg, CopyOptions{}, nil, from, c.dst); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.list[0].key) {
		t.Error(err)
	}
	if from.peak != 0 {
		t.Error("it was read")
	}
}

func TestCopier_Run_WhatIsThereIsFoundAmongOthers(t *testing.T) {
	c := newCopying(t, 9, 10)
	for i := range 2000 { // two pages of a listing that nobody needs
		if err := objstore.Create(bg, c.dst, fmt.Sprintf("%s%05d", metadata.ObjectPrefix, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{0, 4, 8} {
		body, _, err := objstore.ReadAll(bg, c.src, c.list[i].key, 100)
		if err == nil {
			err = objstore.Create(bg, c.dst, c.list[i].key, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := c.run(bg, CopyOptions{}, nil, c.src, c.dst)
	if err != nil || p.Found != 3 || p.DoneThings != 9 {
		t.Errorf("%+v, %v", p, err)
	}
	c.wantAll(t)
	c.list[3].size = 11
	if _, err := c.run(bg, CopyOptions{}, nil, c.src, c.dst); !errors.Is(err, ErrDamaged) {
		t.Errorf("one of another size: %v", err)
	}
}

func TestCopier_Run_AStoreThatCopiesNothingIsToldOfOnce(t *testing.T) {
	c := newCopying(t, 12, 10)
	var log bytes.Buffer
	server := func(context.Context, string, string, int64) error { return errors.New("no permission") }
	p, err := c.run(bg, CopyOptions{Parallel: 4, Server: server, Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil, c.src, c.dst)
	if err != nil || p.DoneThings != 12 || p.Served != 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "no permission") {
		t.Errorf("%d lines: %s", lines, log.String())
	}
	c.wantAll(t)
}

func TestCopier_Run_InterruptedWhileTheStoreCopies(t *testing.T) {
	c := newCopying(t, 12, 10)
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(bg)
	server := func(ctx context.Context, _, _ string, _ int64) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := c.run(ctx, CopyOptions{Parallel: 4, Server: server, Logger: slog.New(slog.NewTextHandler(&log, nil))}, nil, c.src, c.dst)
	if !errors.Is(err, ErrInterrupted) || errors.Is(err, ErrStore) {
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("an interrupt was told of: %s", log.String())
	}
	list, err := c.dst.List(bg, "", "", 10)
	if err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
