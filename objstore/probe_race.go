package objstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	probeCreators = 64
	probeSwappers = 16
	swapTries     = 3 // of a round in which nobody wins

	shortRaceBody = 16 << 10 // bytes; more than HTTP clients buffer before they send the header
	longRaceBody  = 1 << 20
	racePause     = 50 * time.Millisecond // in the middle of a body
)

// raceSize is how hard creators race.
type raceSize struct {
	creators, rounds int
	body             int64 // bytes
}

// noise is what bodies are made of: nothing that a store could compress or know
// already.
type noise struct {
	block [64 << 10]byte
}

func newNoise() *noise {
	n := &noise{}
	for i := 0; i < len(n.block); i += 8 {
		binary.LittleEndian.PutUint64(n.block[i:], rand.Uint64())
	}
	return n
}

// noisyBody is a body of any size that takes no memory, and that no other id
// has: the id, and then noise from a place of its own.
type noisyBody struct {
	n        *noise
	id       uint64
	size, at int64
	// pause is called once in each pass when half of the body was read: the
	// request's header is on its way then, and a store that judges the condition
	// before it has the body lets several creators through. May be nil.
	pause func() error
}

// Read implements io.Reader.
func (b *noisyBody) Read(p []byte) (int, error) {
	if b.at >= b.size {
		return 0, io.EOF
	}
	end := b.size
	if half := b.size / 2; b.pause != nil {
		if b.at < half {
			end = half
		} else if b.at == half {
			if err := b.pause(); err != nil {
				return 0, err
			}
		}
	}
	n := 0
	for n < len(p) && b.at < end {
		m := copy(p[n:min(len(p), n+int(end-b.at))], b.rest())
		n += m
		b.at += int64(m)
	}
	return n, nil
}

// rest returns some of the bytes from the position on.
func (b *noisyBody) rest() []byte {
	if b.at < 8 {
		return binary.LittleEndian.AppendUint64(nil, b.id)[b.at:]
	}
	return b.n.block[(uint64(b.at)+b.id*4099)%uint64(len(b.n.block)):]
}

// Seek implements io.Seeker.
func (b *noisyBody) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += b.at
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 || offset > b.size {
		return 0, fmt.Errorf("seek to %d of a body of %d bytes", offset, b.size)
	}
	b.at = offset
	return offset, nil
}

// racer returns a racer's body.
func racer(ctx context.Context, n *noise, id int, size int64) *noisyBody {
	return &noisyBody{n: n, id: uint64(id), size: size, pause: func() error { return sleep(ctx, racePause) }}
}

// stored returns whose body a key holds: one of n, whole, or an error.
func (p *probe) stored(ctx context.Context, name string, src *noise, n int, size int64) (id int, version Version, err error) {
	err = again(ctx, func() error {
		got, info, err := ReadAll(ctx, p.s, p.base+name, size)
		if err != nil && !errors.Is(err, ErrTooLarge) {
			return err
		}
		version = info.Version
		if info.Size != size {
			return lacks("of concurrent PUTs of %d bytes each to one key %d bytes were stored", size, info.Size)
		}
		id = int(binary.LittleEndian.Uint64(got))
		want, err := io.ReadAll(&noisyBody{n: src, id: uint64(id), size: size})
		if err != nil {
			return err
		}
		if id < 0 || id >= n || string(got) != string(want) {
			return lacks("concurrent PUTs to one key left a body that none of them sent")
		}
		return nil
	})
	return id, version, err
}

// outcome is how a race ended.
type outcome struct {
	wins, winner int
	version      Version // that the winner was told
	unclear      error   // of a reply that says neither yes nor no
}

// race makes n conditional PUTs at the same time.
func (p *probe) race(ctx context.Context, name string, src *noise, n int, size int64, cond Condition) outcome {
	key := p.key(name)
	versions, errs := make([]Version, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { versions[i], errs[i] = p.s.Put(ctx, key, racer(ctx, src, i, size), size, cond) })
	}
	wg.Wait()
	var o outcome
	for i, err := range errs {
		switch {
		case err == nil:
			o.wins++
			o.winner, o.version = i, versions[i]
		case !errors.Is(err, ErrConditionFailed):
			o.unclear = err
		}
	}
	return o
}

// raceCreators lets many creators have their PUTs under way at the same time.
func (p *probe) raceCreators(ctx context.Context, size raceSize) error {
	src := newNoise()
	for round := range size.rounds {
		name := fmt.Sprintf("race-%d", round)
		o := p.race(ctx, name, src, size.creators, size.body, Condition{IfAbsent: true})
		if o.wins > 1 {
			return lacks("%d of %d concurrent create-only PUTs to one key were accepted", o.wins, size.creators)
		}
		id, _, err := p.stored(ctx, name, src, size.creators, size.body)
		switch {
		case errors.Is(err, ErrNotExist) && o.wins == 0 && o.unclear != nil:
			return fmt.Errorf("%d concurrent create-only PUTs: none succeeded: %w", size.creators, o.unclear)
		case errors.Is(err, ErrNotExist):
			return lacks("of %d concurrent create-only PUTs to one key none took effect", size.creators)
		case err != nil:
			return err
		}
		if o.wins == 1 && id != o.winner {
			return lacks("the winner of %d concurrent create-only PUTs was overwritten by another", size.creators)
		}
	}
	return nil
}

// raceSwappers lets several writers swap one key from the same version, round
// after round: one of them may win, and what it wrote must stay.
func (p *probe) raceSwappers(ctx context.Context, rounds int) error {
	src := newNoise()
	if err := Create(ctx, p.s, p.key("swaps"), []byte("start")); err != nil {
		return err
	}
	info, err := p.head(ctx, "swaps")
	if err != nil {
		return err
	}
	version := info.Version
	for range rounds {
		if version, err = p.swapRound(ctx, src, version); err != nil {
			return err
		}
	}
	return nil
}

// swapRound is one round of swaps from a version. It returns the next one.
func (p *probe) swapRound(ctx context.Context, src *noise, from Version) (Version, error) {
	for try := 1; ; try++ {
		o := p.race(ctx, "swaps", src, probeSwappers, shortRaceBody, Condition{IfVersion: from})
		if o.wins > 1 {
			return "", lacks("%d of %d concurrent compare-and-swap PUTs with one version were accepted: updates get lost", o.wins, probeSwappers)
		}
		info, err := p.head(ctx, "swaps")
		if err != nil {
			return "", err
		}
		if info.Version != from {
			id, version, err := p.stored(ctx, "swaps", src, probeSwappers, shortRaceBody)
			if err == nil && o.wins == 1 && (id != o.winner || version != o.version) {
				err = lacks("the winner of %d concurrent compare-and-swap PUTs was overwritten by another", probeSwappers)
			}
			return version, err
		}
		if o.wins == 1 {
			return "", lacks("a compare-and-swap PUT was accepted and had no effect")
		}
		if try == swapTries && o.unclear != nil {
			return "", fmt.Errorf("%d concurrent compare-and-swap PUTs: none succeeded: %w", probeSwappers, o.unclear)
		}
		if try == swapTries {
			return "", lacks("of %d concurrent compare-and-swap PUTs with the right version none took effect", probeSwappers)
		}
		if err := sleep(ctx, probePause<<(try-1)); err != nil {
			return "", err
		}
	}
}
