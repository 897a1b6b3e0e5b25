package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrGuarantee marks a store on which a volume would not be safe. The text
// around it says what the store does wrong.
var ErrGuarantee = errors.New("the object store lacks a guarantee that a volume needs")

const (
	probeTries    = 4                      // of a request that may fail in passing
	probePause    = 100 * time.Millisecond // before the second; doubled each time
	probeCleanup  = time.Minute            // for removing what was written
	probeCleaners = 16                     // deletes at a time
)

// Probe makes sure that a store keeps the promises that a volume's safety
// rests on: create-only refuses an existing key and lets one of 64 concurrent
// creators win, compare-and-swap refuses a wrong version and a missing key,
// accepts the right one and lets one of 16 concurrent swappers win, in two rounds on
// each of two keys, what was written is read back, whole and by range, and
// listed at once. A store that fails gives ErrGuarantee; any other error means
// that it could not be found out. It works under a random key probe/… and
// removes what it wrote also when it fails. It takes about 150 PUTs of 16 KiB at
// most, nearly all of them at the same time: give it the store without its limit
// of parallel requests. What it finds is evidence, not proof.
func Probe(ctx context.Context, s Store) error { return probeWith(ctx, s, shortRace()) }

// ProbeAgain is Probe for a store that passed it before, with a quarter of the swaps: it
// takes about 100 PUTs.
func ProbeAgain(ctx context.Context, s Store) error { return probeWith(ctx, s, mountRace()) }

func probeWith(ctx context.Context, s Store, size raceSize) error {
	p := newProbe(s)
	steps := p.steps(size)
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() { errs[i] = step.run(ctx) })
	}
	wg.Wait()
	first := worst(errs)
	if first != nil {
		first = fmt.Errorf("probe of the object store: %w", first)
	}
	if err := p.clean(ctx); err != nil {
		return errors.Join(first, err)
	}
	return first
}

// worst returns the error that tells most: what is known to be wrong before what
// could not be found out.
func worst(errs []error) (first error) {
	for _, err := range errs {
		if errors.Is(err, ErrGuarantee) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// ProbePrefix is where probes work. One that is killed leaves keys there, which mean
// nothing.
const ProbePrefix = "probe/"

// FirstKeys lists the first keys of a store, at most so many, without those that
// probes have left: none when it is empty but for them.
func FirstKeys(ctx context.Context, s Store, most int) ([]Info, error) {
	page, err := s.List(ctx, "", "", most)
	if err != nil {
		return nil, err
	}
	left := func(i Info) bool { return strings.HasPrefix(i.Key, ProbePrefix) }
	if !slices.ContainsFunc(page, left) {
		return page, nil
	}
	more, err := s.List(ctx, "", ProbePrefix+"\U0010ffff", most)
	if err != nil {
		return nil, err
	}
	page = append(slices.DeleteFunc(page, func(i Info) bool { return i.Key >= ProbePrefix }), more...)
	return page[:min(len(page), most)], nil
}

// probe is one run. Its steps know nothing of each other.
type probe struct {
	s    Store
	base string // what its keys begin with

	mu   sync.Mutex // guards the field below; never held during a request
	keys map[string]struct{}
}

// probeStep is one thing that is found out.
type probeStep struct {
	name string // for a table
	run  func(context.Context) error
}

func newProbe(s Store) *probe {
	return &probe{s: s, base: ProbePrefix + rand.Text() + "/", keys: map[string]struct{}{}}
}

// steps are the promises, in the order in which they are told about.
func (p *probe) steps(size raceSize) []probeStep {
	return []probeStep{
		{"create-only PUT", p.create},
		{"range reads", p.read},
		{"listing", p.list},
		{"deleting", p.remove},
		{"compare-and-swap PUT", p.swap},
		{fmt.Sprintf("%d concurrent creators", size.creators), func(ctx context.Context) error { return p.raceCreators(ctx, size) }},
		{fmt.Sprintf("%d concurrent swappers", probeSwappers), func(ctx context.Context) error { return p.raceSwappers(ctx, size) }},
	}
}

// lacks returns the error for a guarantee that does not hold.
func lacks(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrGuarantee, fmt.Sprintf(format, args...))
}

// key returns a key of the probe, which clean will remove.
func (p *probe) key(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[name] = struct{}{}
	return p.base + name
}

func (p *probe) put(ctx context.Context, name string, body []byte, cond Condition) (Version, error) {
	return p.s.Put(ctx, p.key(name), bytes.NewReader(body), int64(len(body)), cond)
}

// again repeats what may fail in passing.
func again(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || !mayPass(err) || errors.Is(err, ErrGuarantee) || try == probeTries {
			return err
		}
		if waitErr := sleep(ctx, probePause<<(try-1)); waitErr != nil {
			return fmt.Errorf("%w: %w", waitErr, err)
		}
	}
}

// refused makes sure that a conditional PUT is refused.
func (p *probe) refused(ctx context.Context, name, what string, body []byte, cond Condition) error {
	return again(ctx, func() error {
		_, err := p.put(ctx, name, body, cond)
		if err == nil {
			return lacks("%s was accepted", what)
		}
		if !errors.Is(err, ErrConditionFailed) {
			return fmt.Errorf("%s: expected a refusal: %w", what, err)
		}
		return nil
	})
}

// head returns what the store says about a key that is there.
func (p *probe) head(ctx context.Context, name string) (info Info, err error) {
	err = again(ctx, func() error {
		info, err = p.s.Head(ctx, p.base+name)
		if errors.Is(err, ErrNotExist) {
			return lacks("an object is not found right after it was written")
		}
		return err
	})
	return info, err
}

// holds makes sure that a key holds body at the given version.
func (p *probe) holds(ctx context.Context, name, after string, body []byte, version Version) error {
	return again(ctx, func() error {
		got, info, err := ReadAll(ctx, p.s, p.base+name, int64(len(body))+1)
		if errors.Is(err, ErrNotExist) || errors.Is(err, ErrTooLarge) || err == nil && !bytes.Equal(got, body) {
			return lacks("what is read after %s is not what was last written", after)
		}
		if err != nil {
			return err
		}
		if info.Version != version {
			return lacks("after %s the version is %q where the PUT returned %q", after, info.Version, version)
		}
		return nil
	})
}

// clean removes every key of the probe, also when ctx has ended. It does not
// rely on a listing, which may be what the store gets wrong.
func (p *probe) clean(ctx context.Context) error {
	p.mu.Lock()
	keys := make([]string, 0, len(p.keys))
	for name := range p.keys {
		keys = append(keys, p.base+name)
	}
	p.mu.Unlock()
	return deleteAll(ctx, p.s, len(keys), func(i int) string { return keys[i] })
}

// deleteAll deletes n keys, a few at a time, also when ctx has ended, and
// returns the first error.
func deleteAll(ctx context.Context, s Store, n int, key func(i int) string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, min(n, probeCleaners))
	for w := range errs {
		wg.Go(func() {
			for i := w; i < n; i += len(errs) {
				err := again(ctx, func() error { return s.Delete(ctx, key(i)) })
				if err != nil && errs[w] == nil {
					errs[w] = fmt.Errorf("probe: remove %s: %w", key(i), err)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
