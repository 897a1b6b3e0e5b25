package objstoretest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// RunCopier checks a provider that copies by itself: s is its bucket, of that
// name, under a prefix that is empty.
func RunCopier(t *testing.T, s objstore.Store, bucket, prefix string) {
	t.Helper()
	c, ok := s.(objstore.Copier)
	if !ok {
		t.Fatalf("%T copies nothing by itself", s)
	}
	ctx := t.Context()
	body := bytes.Repeat([]byte("copy me\x00"), 40000)
	from, to := prefix+"from/a b~c%2F", prefix+"to/a b~c%2F"
	if err := objstore.Create(ctx, s, from, body); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{int64(len(body)), -1} { // the second finds it
		if err := c.CopyFrom(ctx, to, size, bucket, from); err != nil {
			t.Fatalf("copy of %d bytes: %v", size, err)
		}
		got, info, err := objstore.ReadAll(ctx, s, to, 1<<20)
		if err != nil || !bytes.Equal(got, body) || info.Size != int64(len(body)) {
			t.Errorf("the copy has %d bytes, %+v, %v", len(got), info, err)
		}
	}
	if err := c.CopyFrom(ctx, prefix+"none", -1, bucket, prefix+"missing"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("copy of what is not there: %v", err)
	}
	if err := c.CopyFrom(ctx, "", -1, bucket, from); err == nil {
		t.Error("a copy without a key was made")
	}
	if _, err := s.Head(ctx, prefix+"none"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("after a copy of nothing: %v", err)
	}
}
