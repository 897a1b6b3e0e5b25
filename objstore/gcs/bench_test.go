package gcs

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// BenchmarkStore_PutGet measures the client alone: the server, in this process,
// throws away what it gets and sends what it always sends.
func BenchmarkStore_PutGet(b *testing.B) {
	body := bytes.Repeat([]byte("12345678"), 5<<20/8)
	stored := object("k", string(body), 1)
	s, _ := serve(b, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
			answer(w, stored)
			return
		}
		media{200, map[string]string{"X-Goog-Hash": "crc32c=" + stored["crc32c"].(string)}, string(body)}.write(w, r)
	})
	b.Run("Put", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if _, err := s.Put(b.Context(), "k", bytes.NewReader(body), int64(len(body)), objstore.Condition{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Get", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if _, _, err := objstore.ReadAll(b.Context(), s, "k", int64(len(body))); err != nil {
				b.Fatal(err)
			}
		}
	})
}
