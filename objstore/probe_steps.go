package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync"
)

// create makes a key and tries to make it again.
func (p *probe) create(ctx context.Context) error {
	body := []byte("first " + rand.Text())
	if err := Create(ctx, p.s, p.key("one"), body); err != nil {
		return err
	}
	info, err := p.head(ctx, "one")
	if err != nil {
		return err
	}
	if err := p.holds(ctx, "one", "a create", body, info.Version); err != nil {
		return err
	}
	err = p.refused(ctx, "one", "a create-only PUT to an existing key", []byte("second "+rand.Text()), Condition{IfAbsent: true})
	if err != nil {
		return err
	}
	return p.holds(ctx, "one", "a refused create", body, info.Version)
}

// read reads a range in the middle, and one across the end.
func (p *probe) read(ctx context.Context) error {
	body := []byte("0123456789 " + rand.Text())
	if err := Create(ctx, p.s, p.key("ranges"), body); err != nil {
		return err
	}
	key := p.base + "ranges"
	err := again(ctx, func() error {
		got := make([]byte, 5)
		err := ReadRange(ctx, p.s, key, 3, got)
		if errors.Is(err, ErrDamaged) || err == nil && !bytes.Equal(got, body[3:8]) {
			return lacks("a read of a range returns other bytes than that range")
		}
		return err
	})
	if err != nil {
		return err
	}
	return again(ctx, func() error {
		r, _, err := p.s.Get(ctx, key, int64(len(body))-2, 100)
		if err != nil {
			return err
		}
		tail, err := io.ReadAll(io.LimitReader(r, 100))
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
		if !bytes.Equal(tail, body[len(body)-2:]) {
			return lacks("a read of a range across the object's end does not return its last bytes")
		}
		return nil
	})
}

// list makes sure that a listing is in order, sees keys that were just written,
// and no longer sees one that was just deleted.
func (p *probe) list(ctx context.Context) error {
	for _, name := range []string{"list/b", "list/a/x"} {
		if err := Create(ctx, p.s, p.key(name), nil); err != nil {
			return err
		}
	}
	want := []string{"list/a/x", "list/b"}
	if err := p.listed(ctx, "", want); err != nil {
		return err
	}
	if err := again(ctx, func() error { return p.s.Delete(ctx, p.base+"list/a/x") }); err != nil {
		return err
	}
	if err := p.listed(ctx, "", want[1:]); err != nil {
		return err
	}
	return p.listed(ctx, p.base+"list/b", nil)
}

// listed makes sure that exactly the given keys are listed.
func (p *probe) listed(ctx context.Context, after string, want []string) error {
	return again(ctx, func() error {
		page, err := p.s.List(ctx, p.base+"list/", after, 0)
		if err != nil {
			return err
		}
		if len(page) != len(want) {
			return lacks("a listing right after a change shows %d keys, not %d", len(page), len(want))
		}
		for i, info := range page {
			if info.Key != p.base+want[i] {
				return lacks("a listing shows %q where %q is due", info.Key, p.base+want[i])
			}
		}
		return nil
	})
}

// remove deletes a key, and deletes it again when it is missing.
func (p *probe) remove(ctx context.Context) error {
	if err := Create(ctx, p.s, p.key("gone"), []byte("x")); err != nil {
		return err
	}
	for _, what := range []string{"", "of a missing key "} {
		err := again(ctx, func() error { return p.s.Delete(ctx, p.base+"gone") })
		if errors.Is(err, ErrNotExist) {
			return lacks("a DELETE %sis an error", what)
		}
		if err != nil {
			return err
		}
	}
	return again(ctx, func() error {
		_, err := p.s.Head(ctx, p.base+"gone")
		switch {
		case err == nil:
			return lacks("an object is found right after it was deleted")
		case errors.Is(err, ErrNotExist):
			return nil
		}
		return err
	})
}

// swap tries compare-and-swap with a wrong version, a missing key, the right
// version, and that version once more.
func (p *probe) swap(ctx context.Context) error {
	body := []byte("before " + rand.Text())
	// A wrong version that the store itself made, but of another body: stores may
	// reject one that they could not have made for other reasons.
	var other, first Info
	err := both(func() error {
		return p.made(ctx, "other", []byte("other "+rand.Text()), &other)
	}, func() error {
		return p.made(ctx, "swap", body, &first)
	})
	if err != nil {
		return err
	}
	if other.Version == first.Version {
		return lacks("two different objects have the same version %q", first.Version)
	}
	wrong := Condition{IfVersion: other.Version}
	err = both(func() error {
		return p.refused(ctx, "swap", "a compare-and-swap PUT with a wrong version", []byte("wrong"), wrong)
	}, func() error {
		return p.refused(ctx, "missing", "a compare-and-swap PUT to a missing key", []byte("wrong"), wrong)
	})
	if err != nil {
		return err
	}
	if err := p.holds(ctx, "swap", "a refused compare-and-swap", body, first.Version); err != nil {
		return err
	}
	body = []byte("swapped " + rand.Text())
	second, err := CompareAndSwap(ctx, p.s, p.base+"swap", first.Version, body)
	if errors.Is(err, ErrConditionFailed) || err != nil && p.refusesSwap(ctx, first.Version, body) {
		return lacks("a compare-and-swap PUT with the right version was refused")
	}
	if err != nil {
		return err
	}
	if err := p.holds(ctx, "swap", "a compare-and-swap", body, second); err != nil {
		return err
	}
	old := Condition{IfVersion: first.Version}
	if err := p.refused(ctx, "swap", "a compare-and-swap PUT with an old version", []byte("late"), old); err != nil {
		return err
	}
	return p.holds(ctx, "swap", "a second compare-and-swap with the same version", body, second)
}

// made creates a key and asks what the store says about it.
func (p *probe) made(ctx context.Context, name string, body []byte, info *Info) error {
	if err := Create(ctx, p.s, p.key(name), body); err != nil {
		return err
	}
	i, err := p.head(ctx, name)
	*info = i
	return err
}

// both does two things at the same time and returns the worse error.
func both(f, g func() error) error {
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = f() })
	wg.Go(func() { errs[1] = g() })
	wg.Wait()
	return worst(errs)
}

// refusesSwap tells a store that refuses what it should do from one that could
// not be asked.
func (p *probe) refusesSwap(ctx context.Context, v Version, body []byte) bool {
	info, headErr := p.s.Head(ctx, p.base+"swap")
	_, err := p.put(ctx, "swap", body, Condition{IfVersion: v})
	return headErr == nil && info.Version == v && errors.Is(err, ErrConditionFailed)
}
