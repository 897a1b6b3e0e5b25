package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/storeserver"
)

// serverWait bounds the start of a store server. On a machine where none was
// started before it is compiled first.
const serverWait = 15 * time.Minute

// StoreServer starts a real store server with an empty bucket. At the test's
// end it is killed if it still runs; its output is shown when the test failed.
func StoreServer(t testing.TB, kind storeserver.Kind) *storeserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), serverWait)
	defer cancel()
	s, err := storeserver.Start(ctx, kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what %v printed:\n%s", kind, s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Errorf("clean up the store server: %v", err)
		}
	})
	return s
}
