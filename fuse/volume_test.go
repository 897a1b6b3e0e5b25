package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

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

// serveTestView fills the volume, commits it by closing it, and mounts that
// commit from the bucket alone until stdin ends.
func serveTestView(ctx context.Context, v *gateway.Volume, closeVolume func() error) error {
	own := gateway.Owner{}
	d, err := v.Create(ctx, metadata.RootInode, "d", unix.S_IFDIR|0o755, 0, own, nil)
	if err != nil {
		return err
	}
	if _, err := v.Create(ctx, d.ID, "l", unix.S_IFLNK|0o777, 0, own, []byte("../f")); err != nil {
		return err
	}
	f, err := v.Create(ctx, metadata.RootInode, "f", unix.S_IFREG|0o644, 0, own, nil)
	if err != nil {
		return err
	}
	h, err := v.Open(ctx, f.ID)
	if err != nil {
		return err
	}
	_, err = h.Write(ctx, []byte("content"), 1<<20, gateway.WriteFlags{})
	err = errors.Join(err, v.SetXattr(ctx, f.ID, "user.a", []byte("v"), 0), h.Close(), closeVolume())
	if err != nil {
		return err
	}
	store, err := local.Open(filepath.Join(os.Getenv(serveState), "bucket"))
	if err != nil {
		return err
	}
	view, err := gateway.OpenView(ctx, gateway.ViewOptions{Store: store, KV: metadata.NewMemKV()})
	if err != nil {
		return err
	}
	s, err := MountView(ctx, view, os.Getenv(serveDir), Options{})
	if err != nil {
		return err
	}
	fmt.Println("ok")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return errors.Join(s.Unmount(), view.Close())
}
