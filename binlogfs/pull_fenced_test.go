package binlogfs

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/mem"
)

// A relay whose volume another took ends, though nothing comes from its source, and
// acknowledges nothing whatever it was told to wait for.
func TestPuller_Run_TheVolumeIsTaken_Ends(t *testing.T) {
	for _, ack := range []Ack{AckJournal, AckBucket, AckMemory} {
		t.Run(string(ack), func(t *testing.T) {
			ctx := t.Context()
			p := &place{t: t, store: mem.New(), fs: vfs.NewMem()}
			if _, err := gateway.Format(ctx, gateway.FormatOptions{Store: p.store, URL: "mem:"}); err != nil {
				t.Fatal(err)
			}
			p.open()
			l, err := OpenLog(ctx, p.v, LogOptions{Ack: ack})
			if err != nil {
				t.Fatal(err)
			}
			silent := make(chan struct{})
			puller, err := NewPuller(l, PullOptions{
				Sources: []string{"silent:3306"}, User: "repl", ServerID: 77,
				Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					close(silent)
					<-ctx.Done()
					return nil, ctx.Err()
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- puller.Run(ctx) }()
			<-silent
			next, err := gateway.Open(ctx, gateway.Options{
				Store: p.store, URL: "mem:", FS: vfs.NewMem(), StateDir: "/state", Takeover: true,
				OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.v.RenewLease(ctx); !errors.Is(err, gateway.ErrFenced) {
				t.Fatalf("the lease of who lost it: %v", err)
			}
			if err := <-ended; !errors.Is(err, gateway.ErrFenced) || err.Error() != p.v.Stopped().Error() {
				t.Errorf("pulling ended with %v", err)
			}
			if s := puller.Status(); !s.Stopped || s.LastError == "" {
				t.Errorf("status %+v", s)
			}
			if err := l.harden(ctx); !errors.Is(err, gateway.ErrFenced) {
				t.Errorf("a group would be acknowledged: %v", err)
			}
			if err := p.v.Close(ctx); !errors.Is(err, gateway.ErrFenced) {
				t.Errorf("close: %v", err)
			}
			if err := next.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
