package fuse

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/local"
)

// openTestVolume makes a volume in a directory as its bucket, with its state
// beside it, both below dir.
func openTestVolume(ctx context.Context, dir string) (*gateway.Volume, func() error, error) {
	bucket, state := filepath.Join(dir, "bucket"), filepath.Join(dir, "state")
	if err := errors.Join(os.Mkdir(bucket, 0o755), os.Mkdir(state, 0o755)); err != nil {
		return nil, nil, err
	}
	store, err := local.Open(bucket)
	if err != nil {
		return nil, nil, err
	}
	const url = "file:///bucket"
	if _, err := gateway.Format(ctx, gateway.FormatOptions{Store: store, URL: url}); err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	v, err := gateway.Open(ctx, gateway.Options{
		Store: store, URL: url, FS: vfs.OS(), StateDir: state, Logger: log,
		OpenKV: func(dir string) (metadata.KV, error) { return metadata.OpenBadgerKV(dir, log) },
	})
	if err != nil {
		return nil, nil, err
	}
	return v, func() error { return v.Close(ctx) }, nil
}
