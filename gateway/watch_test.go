package gateway

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// logBuffer collects what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

// Before writers wait for a bucket that is away there is a warning, and one
// while they wait.
func TestVolume_WarnsBeforeWritersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 41, 1<<20)
		store := faultstore.New(l.bucket, nil)
		defer store.Close()
		var log logBuffer
		v, err := l.mount(store, func(o *Options) {
			o.Manual, o.Logger, o.ReferenceBytes = false, slog.New(slog.NewTextHandler(&log, nil)), 1<<30
		})
		if err != nil {
			t.Fatal(err)
		}
		h := mkfile(t, v, metadata.RootInode, "a")
		store.SetOutage(faultstore.Refusing)
		p := make([]byte, 64<<10)
		done := make(chan error, 1)
		go func() {
			for off := int64(0); ; off += int64(len(p)) {
				if _, err := h.Write(bg, p, off, WriteFlags{}); err != nil || off > 16<<20 {
					done <- err
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		}()
		time.Sleep(3 * watchRepeat)
		if !log.has("nearly full") {
			t.Error("no warning before the journal is full")
		}
		if !log.has("writers wait for room") || !log.has("unavailable") {
			t.Error("no warning while writers wait that names the store's error")
		}
		store.SetOutage(faultstore.Up)
		if err := <-done; err != nil {
			t.Errorf("write after the bucket came back: %v", err)
		}
		h.Close()
		if err := v.Close(bg); err != nil {
			t.Error(err)
		}
	})
}
