package binlogfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// A log that ends anywhere ends behind its last whole group.
func TestReadLogEnd_CutAnywhere(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		s := recordedStream(t, kind)
		for i, body := range s.bodies {
			whole, err := ReadLogEnd(t.Context(), bytes.NewReader(body), s.names[i])
			if err != nil || whole.Offset != int64(len(body)) || whole.File != s.names[i] || whole.Server == "" || whole.State.Empty() != (kind == "my56") {
				t.Fatalf("%s, %s: %+v, %v", kind, s.names[i], whole, err)
			}
			last := int64(0)
			ends := map[int64]bool{}
			for n := 0; n <= len(body); n += 1 + min(30, max(0, len(body)-n-1)) {
				got, err := ReadLogEnd(t.Context(), bytes.NewReader(body[:n]), s.names[i])
				switch {
				case errors.Is(err, ErrCorrupt) && last == 0:
				case err != nil:
					t.Fatalf("%s, %s cut at %d: %v", kind, s.names[i], n, err)
				case got.Offset > int64(n) || got.Offset < last || !whole.State.Contains(got.State):
					t.Fatalf("%s, %s cut at %d: ends at %d, after %d", kind, s.names[i], n, got.Offset, last)
				default:
					last = got.Offset
					ends[last] = true
				}
			}
			if len(ends) < 2 || last != int64(len(body)) {
				t.Errorf("%s, %s: %d ends, the last at %d of %d", kind, s.names[i], len(ends), last, len(body))
			}
		}
	}
}

func TestReadLogEnd_NoLogOrNoReader(t *testing.T) {
	if _, err := ReadLogEnd(t.Context(), bytes.NewReader([]byte("\xfebix")), "x.000001"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("no log: %v", err)
	}
	body := recordedStream(t, "m1011").bodies[0]
	broken := errors.New("the bucket is away")
	for _, n := range []int{0, 2, 4, len(body) / 2} {
		r := io.MultiReader(bytes.NewReader(body[:n]), iotest.ErrReader(broken))
		if _, err := ReadLogEnd(t.Context(), r, "x.000001"); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
			t.Errorf("a reader that fails after %d bytes was taken for the end, or for damage: %v", n, err)
		}
	}
}

// Of an encrypted log nothing is known: it must not be taken for an empty one.
func TestReadLogEnd_Encrypted(t *testing.T) {
	body := recordedStream(t, "m118").bodies[0]
	for name, body := range map[string][]byte{
		"MySQL":   append([]byte(encryptedMagic), body[4:]...),
		"MariaDB": startEncryption(body),
	} {
		if end, err := ReadLogEnd(t.Context(), bytes.NewReader(body), "x.000001"); !errors.Is(err, ErrEncrypted) || errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v, %v, want ErrEncrypted", name, end, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if end, err := ReadLogEnd(ended, bytes.NewReader(body), "x.000001"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its time: %+v, %v", end, err)
	}
}
