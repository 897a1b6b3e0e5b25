package objstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

const (
	probeCreators = 64
	probeSwappers = 16
	swapTries     = 3 // of a round in which nobody wins

	shortSwapKeys = 2 // swapped at the same time
	longSwapKeys  = 4

	shortRaceBody = 16 << 10 // bytes; more than HTTP clients buffer before they send the header
	longRaceBody  = 1 << 20
	racePause     = 50 * time.Millisecond // in the middle of a body
)

// raceSize is how hard creators and swappers race.
type raceSize struct {
	creators, rounds     int
	body                 int64 // bytes, of creators
	swapKeys, swapRounds int
}

// shortRace is what format pays for.
func shortRace() raceSize {
	return raceSize{creators: probeCreators, rounds: 1, body: shortRaceBody, swapKeys: shortSwapKeys, swapRounds: shortSwaps}
}

// mountRace is what every mount pays for, in which nobody serves the volume: the
// creators, on whom fencing rests, and one round of swappers. A swap that is lost all the
// same is met by the seals.
func mountRace() raceSize {
	return raceSize{creators: probeCreators, rounds: 1, body: shortRaceBody, swapKeys: 1, swapRounds: 1}
}

func longRace() raceSize {
	return raceSize{creators: probeCreators, rounds: longRaceRounds, body: longRaceBody, swapKeys: longSwapKeys, swapRounds: longSwapRounds}
}

// noise is what bodies are made of: nothing that a store could compress or know
// already.
type noise struct {
	block [64 << 10]byte
}

func newNoise() *noise {
	n := &noise{}
	for i := 0; i < len(n.block); i += 8 {
		binary.LittleEndian.PutUint64(n.block[i:], mathrand.Uint64())
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

// racers are the bodies of one race, each with an id of its own. No two races on
// one key may share an id: many stores make the version from the body, and a
// winner that writes what is there already would look like one that wrote nothing.
type racers struct {
	src      *noise
	first, n int // ids
	size     int64
}

// stored returns which racer's body a key holds, whole, and its version. A key
// that is at version before still is no error and gives -1.
func (p *probe) stored(ctx context.Context, name string, r racers, before Version) (i int, version Version, err error) {
	err = again(ctx, func() error {
		got, info, err := ReadAll(ctx, p.s, p.base+name, r.size)
		if err != nil && !errors.Is(err, ErrTooLarge) {
			return err
		}
		i, version = -1, info.Version
		if before != "" && version == before {
			return nil
		}
		if info.Size != r.size {
			return lacks("of concurrent PUTs of %d bytes each to one key %d bytes were stored", r.size, info.Size)
		}
		id := int(binary.LittleEndian.Uint64(got))
		want, err := io.ReadAll(&noisyBody{n: r.src, id: uint64(id), size: r.size})
		if err != nil {
			return err
		}
		i = id - r.first
		if i < 0 || i >= r.n || string(got) != string(want) {
			return lacks("concurrent PUTs to one key left a body that none of them sent")
		}
		return nil
	})
	return i, version, err
}

// outcome is how a race ended.
type outcome struct {
	wins, winner int
	version      Version // that the winner was told
	unclear      error   // of a reply that says neither yes nor no
}

// race makes conditional PUTs at the same time.
func (p *probe) race(ctx context.Context, name string, r racers, cond Condition) outcome {
	key := p.key(name)
	versions, errs := make([]Version, r.n), make([]error, r.n)
	var wg sync.WaitGroup
	for i := range r.n {
		body := &noisyBody{n: r.src, id: uint64(r.first + i), size: r.size, pause: func() error { return sleep(ctx, racePause) }}
		wg.Go(func() { versions[i], errs[i] = p.s.Put(ctx, key, body, r.size, cond) })
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
	r := racers{src: newNoise(), n: size.creators, size: size.body}
	for round := range size.rounds {
		name := fmt.Sprintf("race-%d", round)
		o := p.race(ctx, name, r, Condition{IfAbsent: true})
		if o.wins > 1 {
			return lacks("%d of %d concurrent create-only PUTs to one key were accepted", o.wins, r.n)
		}
		i, _, err := p.stored(ctx, name, r, "")
		switch {
		case errors.Is(err, ErrNotExist) && o.wins == 0 && o.unclear != nil:
			return fmt.Errorf("%d concurrent create-only PUTs: none succeeded: %w", r.n, o.unclear)
		case errors.Is(err, ErrNotExist):
			return lacks("of %d concurrent create-only PUTs to one key none took effect", r.n)
		case err != nil:
			return err
		}
		if o.wins == 1 && i != o.winner {
			return lacks("the winner of %d concurrent create-only PUTs was overwritten by another", r.n)
		}
	}
	return nil
}

// raceSwappers lets several writers swap one key from the same version, round
// after round, and does so on several keys at the same time: one writer of a
// round may win, and what it wrote must stay.
func (p *probe) raceSwappers(ctx context.Context, size raceSize) error {
	src := newNoise()
	errs := make([]error, size.swapKeys)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = p.swapRounds(ctx, fmt.Sprintf("swaps-%d", i), src, size.swapRounds) })
	}
	wg.Wait()
	return worst(errs)
}

// swapRounds races on one key.
func (p *probe) swapRounds(ctx context.Context, name string, src *noise, rounds int) error {
	if err := Create(ctx, p.s, p.key(name), []byte("start "+rand.Text())); err != nil {
		return err
	}
	info, err := p.head(ctx, name)
	if err != nil {
		return err
	}
	version := info.Version
	r := racers{src: src, n: probeSwappers, size: shortRaceBody}
	for range rounds {
		if version, err = p.swapRound(ctx, name, r, version); err != nil {
			return err
		}
		r.first += r.n
	}
	return nil
}

// swapRound is one round of swaps from a version. It returns the next one.
func (p *probe) swapRound(ctx context.Context, name string, r racers, from Version) (Version, error) {
	for try := 1; ; try++ {
		o := p.race(ctx, name, r, Condition{IfVersion: from})
		if o.wins > 1 {
			return "", lacks("%d of %d concurrent compare-and-swap PUTs with one version were accepted: updates get lost", o.wins, r.n)
		}
		i, version, err := p.stored(ctx, name, r, from)
		switch {
		case errors.Is(err, ErrNotExist):
			return "", lacks("after %d concurrent compare-and-swap PUTs the object is not found", r.n)
		case err != nil:
			return "", err
		case i >= 0 && o.wins == 1 && (i != o.winner || version != o.version):
			return "", lacks("the winner of %d concurrent compare-and-swap PUTs was overwritten by another", r.n)
		case i >= 0:
			return version, nil
		case o.wins == 1:
			return "", lacks("a compare-and-swap PUT was accepted and had no effect")
		case try == swapTries && o.unclear != nil:
			return "", fmt.Errorf("%d concurrent compare-and-swap PUTs: none succeeded: %w", r.n, o.unclear)
		case try == swapTries:
			return "", lacks("of %d concurrent compare-and-swap PUTs with the right version none took effect", r.n)
		}
		if err := sleep(ctx, probePause<<(try-1)); err != nil {
			return "", err
		}
	}
}
