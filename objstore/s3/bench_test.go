package s3

import (
	"bytes"
	"testing"
)

// What the checksums of one object cost, over TLS and over plain HTTP.
func BenchmarkStore_Digest(b *testing.B) {
	body := make([]byte, 5<<20)
	for name, plain := range map[string]bool{"https": false, "http": true} {
		b.Run(name, func(b *testing.B) {
			s := &Store{plain: plain}
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := s.digest(bytes.NewReader(body), int64(len(body))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
