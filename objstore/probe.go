package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// ErrGuarantee marks a store on which a volume would not be safe. The text
// around it says what the store does wrong.
var ErrGuarantee = errors.New("the object store lacks a guarantee that a volume needs")

const (
	probeCreators = 64
	probeBody     = 16 << 10 // bytes; more than HTTP clients buffer before they send the header
	probePause    = 50 * time.Millisecond
	probeCleanup  = 30 * time.Second
)

// Probe makes sure that a store keeps the promises that a volume's safety
// rests on: create-only refuses an existing key and lets one of 64 concurrent
// creators win, compare-and-swap refuses a wrong version and a missing key and
// accepts the right one, what was written is read back, whole and by range, and
// listed at once. A store that fails gives ErrGuarantee; any other error means
// that it could not be found out. It works under a random key probe/… and
// removes what it wrote also when it fails; it takes about 70 PUTs.
func Probe(ctx context.Context, s Store) (err error) {
	p := &probe{s: s, base: "probe/" + rand.Text() + "/"}
	defer func() {
		if cleanErr := p.clean(ctx); cleanErr != nil {
			err = errors.Join(err, fmt.Errorf("probe: remove %s: %w", p.base, cleanErr))
		}
	}()
	for _, step := range []func(context.Context) error{p.create, p.read, p.list, p.swap, p.race} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("probe of the object store: %w", err)
		}
	}
	return nil
}

// probe is one run. Its steps build on each other.
type probe struct {
	s       Store
	base    string
	body    []byte  // of key "one"
	version Version // of key "one"
}

// lacks returns the error for a guarantee that does not hold.
func lacks(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrGuarantee, fmt.Sprintf(format, args...))
}

func (p *probe) put(ctx context.Context, key string, body []byte, cond Condition) (Version, error) {
	return p.s.Put(ctx, p.base+key, bytes.NewReader(body), int64(len(body)), cond)
}

// refused makes sure that a conditional PUT was refused.
func refused(err error, what string) error {
	if err == nil {
		return lacks("%s was accepted", what)
	}
	if !errors.Is(err, ErrConditionFailed) {
		return fmt.Errorf("%s: expected a refusal: %w", what, err)
	}
	return nil
}

// holds makes sure that key "one" holds p.body.
func (p *probe) holds(ctx context.Context, after string) error {
	got, info, err := ReadAll(ctx, p.s, p.base+"one", probeBody)
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrTooLarge) || err == nil && !bytes.Equal(got, p.body) {
		return lacks("what is read after %s is not what was last written", after)
	}
	if err != nil {
		return err
	}
	if info.Version != p.version {
		return lacks("after %s the version is %q where the PUT returned %q", after, info.Version, p.version)
	}
	return nil
}

// create makes key "one" and tries to make it again.
func (p *probe) create(ctx context.Context) error {
	p.body = []byte("first " + rand.Text())
	if err := Create(ctx, p.s, p.base+"one", p.body); err != nil {
		return err
	}
	info, err := p.s.Head(ctx, p.base+"one")
	if errors.Is(err, ErrNotExist) {
		return lacks("an object is not found right after it was written")
	}
	if err != nil {
		return err
	}
	p.version = info.Version
	if err := p.holds(ctx, "a create"); err != nil {
		return err
	}
	_, err = p.put(ctx, "one", []byte("second "+rand.Text()), Condition{IfAbsent: true})
	if err := refused(err, "a create-only PUT to an existing key"); err != nil {
		return err
	}
	return p.holds(ctx, "a refused create")
}

// read reads a range in the middle, and one across the end.
func (p *probe) read(ctx context.Context) error {
	got := make([]byte, 5)
	err := ReadRange(ctx, p.s, p.base+"one", 3, got)
	if errors.Is(err, ErrDamaged) || err == nil && !bytes.Equal(got, p.body[3:8]) {
		return lacks("a read of a range returns other bytes than that range")
	}
	if err != nil {
		return err
	}
	body, _, err := p.s.Get(ctx, p.base+"one", int64(len(p.body))-2, 100)
	if err != nil {
		return err
	}
	tail, err := io.ReadAll(io.LimitReader(body, 100))
	if err := errors.Join(err, body.Close()); err != nil {
		return err
	}
	if !bytes.Equal(tail, p.body[len(p.body)-2:]) {
		return lacks("a read of a range across the object's end does not return its last bytes")
	}
	return nil
}

// list makes sure that a listing sees a key that was just written, and no
// longer sees one that was just deleted.
func (p *probe) list(ctx context.Context) error {
	if err := Create(ctx, p.s, p.base+"zero", nil); err != nil {
		return err
	}
	want := []string{p.base + "one", p.base + "zero"}
	for range 2 {
		page, err := p.s.List(ctx, p.base, "", 0)
		if err != nil {
			return err
		}
		if len(page) != len(want) {
			return lacks("a listing right after a change shows %d keys, not %d", len(page), len(want))
		}
		for i, info := range page {
			if info.Key != want[i] {
				return lacks("a listing shows %q where %q is due", info.Key, want[i])
			}
		}
		if err := p.s.Delete(ctx, p.base+"zero"); err != nil {
			return err
		}
		want = want[:1]
	}
	page, err := p.s.List(ctx, p.base, p.base+"one", 0)
	if err != nil {
		return err
	}
	if len(page) != 0 {
		return lacks("a listing that starts after the last key shows %q", page[0].Key)
	}
	return nil
}

// swap tries compare-and-swap with a wrong version, a missing key, the right
// version, and that version once more.
func (p *probe) swap(ctx context.Context) error {
	// A version that the store itself made, but of another body: stores may
	// reject one that they could not have made for other reasons.
	other := []byte("other " + rand.Text())
	if err := Create(ctx, p.s, p.base+"other", other); err != nil {
		return err
	}
	info, err := p.s.Head(ctx, p.base+"other")
	if err != nil {
		return err
	}
	if info.Version == p.version {
		return lacks("two different objects have the same version %q", info.Version)
	}
	_, err = p.put(ctx, "one", []byte("wrong"), Condition{IfVersion: info.Version})
	if err := refused(err, "a compare-and-swap PUT with a wrong version"); err != nil {
		return err
	}
	if err := p.holds(ctx, "a refused compare-and-swap"); err != nil {
		return err
	}
	_, err = p.put(ctx, "missing", []byte("wrong"), Condition{IfVersion: info.Version})
	if err := refused(err, "a compare-and-swap PUT to a missing key"); err != nil {
		return err
	}
	first := p.version
	p.body = []byte("swapped " + rand.Text())
	p.version, err = CompareAndSwap(ctx, p.s, p.base+"one", first, p.body)
	if errors.Is(err, ErrConditionFailed) || err != nil && p.refusesSwap(ctx, first) {
		return lacks("a compare-and-swap PUT with the right version was refused")
	}
	if err != nil {
		return err
	}
	if err := p.holds(ctx, "a compare-and-swap"); err != nil {
		return err
	}
	_, err = p.put(ctx, "one", []byte("late"), Condition{IfVersion: first})
	if err := refused(err, "a compare-and-swap PUT with an old version"); err != nil {
		return err
	}
	return p.holds(ctx, "a second compare-and-swap with the same version")
}

// refusesSwap tells a store that refuses what it should do from one that could
// not be asked.
func (p *probe) refusesSwap(ctx context.Context, v Version) bool {
	info, headErr := p.s.Head(ctx, p.base+"one")
	_, err := p.put(ctx, "one", p.body, Condition{IfVersion: v})
	return headErr == nil && info.Version == v && errors.Is(err, ErrConditionFailed)
}

// race lets many creators have their PUTs under way at the same time.
func (p *probe) race(ctx context.Context) error {
	bodies := make([][]byte, probeCreators)
	errs := make([]error, probeCreators)
	var wg sync.WaitGroup
	for i := range probeCreators {
		bodies[i] = bytes.Repeat([]byte{byte(i)}, probeBody)
		wg.Go(func() {
			body := &halting{ctx: ctx, Reader: bytes.NewReader(bodies[i])}
			_, errs[i] = p.s.Put(ctx, p.base+"race", body, probeBody, Condition{IfAbsent: true})
		})
	}
	wg.Wait()
	winner, wins, unclear := 0, 0, error(nil)
	for i, err := range errs {
		switch {
		case err == nil:
			winner = i
			wins++
		case !errors.Is(err, ErrConditionFailed):
			unclear = err
		}
	}
	if wins > 1 {
		return lacks("%d of %d concurrent create-only PUTs to one key were accepted", wins, probeCreators)
	}
	got, _, err := ReadAll(ctx, p.s, p.base+"race", probeBody)
	switch {
	case errors.Is(err, ErrNotExist) && wins == 0 && unclear != nil:
		return fmt.Errorf("%d concurrent create-only PUTs: none succeeded: %w", probeCreators, unclear)
	case errors.Is(err, ErrNotExist):
		return lacks("of %d concurrent create-only PUTs to one key none took effect", probeCreators)
	case err != nil:
		return err
	}
	if wins == 1 && !bytes.Equal(got, bodies[winner]) {
		return lacks("the winner of %d concurrent create-only PUTs was overwritten by another", probeCreators)
	}
	return nil
}

// halting is a body that pauses in the middle of each pass, when the request's
// header is on its way already: a store that judges the condition before it
// has the body then lets several creators through.
type halting struct {
	*bytes.Reader
	ctx context.Context
}

func (h *halting) Read(p []byte) (int, error) {
	const half = probeBody / 2
	if left := h.Len(); left > half {
		p = p[:min(len(p), left-half)]
	} else if left == half {
		if err := sleep(h.ctx, probePause); err != nil {
			return 0, err
		}
	}
	return h.Reader.Read(p)
}

// WriteTo hides that of bytes.Reader, which would not pause.
func (h *halting) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{h})
}

// clean removes every key of the probe, also when ctx has ended. It does not
// rely on a listing, which may be what the store gets wrong.
func (p *probe) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeCleanup)
	defer cancel()
	var errs []error
	for _, key := range []string{"one", "zero", "other", "missing", "race"} {
		errs = append(errs, p.s.Delete(ctx, p.base+key))
	}
	return errors.Join(errs...)
}
