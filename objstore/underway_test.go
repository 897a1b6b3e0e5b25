package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func TestUnderWay_Wrap_IsAStore(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return objstore.NewUnderWay().Wrap(mem.New()) })
}

// What hangs is listed, ends when it is told to, and is repeated by who repeats.
func TestUnderWay_End_IsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New()
		if err := objstore.Create(t.Context(), inner, "k", []byte("body")); err != nil {
			t.Fatal(err)
		}
		fault := faultstore.New(inner, faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Hang}))
		defer fault.Close()
		u := objstore.NewUnderWay()
		s := objstore.WithRetry(u.Wrap(fault), objstore.RetryOptions{})
		done := make(chan error, 1)
		go func() {
			body, _, err := objstore.ReadAll(t.Context(), s, "k", 100)
			if err == nil && string(body) != "body" {
				err = errors.New("wrong bytes")
			}
			done <- err
		}()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		list := u.List()
		if len(list) != 1 || list[0].Op != "GET" || list[0].Key != "k" || time.Since(list[0].Since) != 3*time.Second {
			t.Fatalf("%+v", list)
		}
		if u.End(list[0].ID + 1) {
			t.Error("a request that is not there was ended")
		}
		if !u.End(list[0].ID) {
			t.Error("the request is gone")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if list := u.List(); len(list) != 0 {
			t.Errorf("left: %+v", list)
		}
	})
}

func TestUnderWay_End_OfABodyIsUnavailable(t *testing.T) {
	inner := mem.New()
	if err := objstore.Create(t.Context(), inner, "k", bytes.Repeat([]byte("x"), 100)); err != nil {
		t.Fatal(err)
	}
	u := objstore.NewUnderWay()
	body, _, err := u.Wrap(endless{inner}).Get(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	u.End(u.List()[0].ID)
	if _, err := io.ReadAll(body); !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := body.Close(); err != nil || len(u.List()) != 0 {
		t.Errorf("%v, %v", err, u.List())
	}
}

// endless is a store whose bodies end with their context alone.
type endless struct{ objstore.Store }

func (e endless) Get(ctx context.Context, key string, off, n int64) (io.ReadCloser, objstore.Info, error) {
	_, info, err := e.Store.Get(ctx, key, off, n)
	return endlessBody{ctx}, info, err
}

type endlessBody struct{ ctx context.Context }

func (b endlessBody) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }
func (endlessBody) Close() error               { return nil }
