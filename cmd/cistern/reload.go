package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/objstore"
)

// notSettings are a mount's flags that neither the environment nor a file may give.
func notSettings() []string {
	return []string{"config", "encrypt-key-file", "foreground", "help", "dbroot"}
}

// applyMountFile completes a mount's flags from the environment and the file, in
// which the cache's size may stand as storagemanager.cnf has it. Every section of
// the file must be right, also those that this mount needs nothing of.
func (a *app) applyMountFile(o *mountOptions, f *pflag.FlagSet, file *configFile) error {
	if o.onLine == nil {
		o.onLine = map[string]string{}
		f.Visit(func(f *pflag.Flag) { o.onLine[f.Name] = f.Value.String() })
	}
	var wrong problems
	wrong.add(config.Apply(f, a.lookup, file.path, file.text, "mount", notSettings()...))
	if file.path == "" {
		return wrong.err()
	}
	sm, err := a.readStorageManager()
	wrong.add(err)
	if err := wrong.err(); err != nil {
		return err
	}
	if sm.given[sectionCache+"/cache_size"] && !f.Changed("cache-size") {
		o.cache.Bytes = sm.cache.Bytes
	}
	if sm.given[sectionStorage+"/object_size"] {
		o.objectSize = sm.object.Bytes
	}
	return nil
}

// tunables are what a running mount takes from a file that was changed.
type tunables struct {
	cache     int64
	uploads   int
	downloads int
	bandwidth objstore.BandwidthOptions
}

// readTunables reads the file anew. Flags of the command line still beat it.
func (a *app) readTunables(o *mountOptions) (*tunables, error) {
	before, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	again := *a
	// The process has left the directory that a relative path was from.
	again.config, again.configFlag = nil, before.path
	file, err := again.readConfig()
	if err != nil {
		return nil, err
	}
	now := newMountOptions()
	f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	now.mountFlags(f)
	for name, value := range o.onLine {
		if f.Lookup(name) == nil || f.Lookup(name).Value.Type() == "stringArray" {
			continue // nothing that is tuned
		}
		if err := f.Set(name, value); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	if err := again.applyMountFile(now, f, file); err != nil {
		return nil, err
	}
	r, err := again.requests()
	if err != nil {
		return nil, err
	}
	return &tunables{
		cache: now.cache.Bytes, uploads: r.uploads, downloads: r.downloads,
		bandwidth: objstore.BandwidthOptions{Upload: now.upload.Bytes, Download: now.download.Bytes},
	}, nil
}

// reload takes cache size, concurrency and bandwidth from the configuration file
// as it is now, or leaves all as it was.
func (m *mountProcess) reload() error {
	if m.o.relay != nil {
		return errors.New("a relay takes new settings when it is started")
	}
	t, err := m.a.readTunables(m.o)
	if err != nil {
		return err
	}
	// A request's deadline was worked out from the bandwidth at the start.
	before, after := m.store.requests.bandwidth.TimeoutFor(m.store.requests.downloads), t.bandwidth.TimeoutFor(t.downloads)
	if after.BytesPerSecond != 0 && (before.BytesPerSecond == 0 || after.BytesPerSecond < before.BytesPerSecond) {
		return fmt.Errorf("--download-limit %s with %s at a time is so slow that requests need more time than this mount gives them: unmount, and mount with it", size(t.bandwidth.Download), count(t.downloads, "download"))
	}
	c, ok := m.v.(interface{ SetCacheBytes(n int64) error })
	if !ok {
		return errors.New("this mount has no cache to change")
	}
	return m.apply(c, t)
}

// apply sets what was read, or leaves all as it was.
func (m *mountProcess) apply(c interface{ SetCacheBytes(n int64) error }, t *tunables) error {
	before := m.store.limits.Status()
	if err := m.store.limits.Set(t.uploads, t.downloads); err != nil {
		return err
	}
	if err := c.SetCacheBytes(t.cache); err != nil {
		return errors.Join(err, m.store.limits.Set(before.Uploads.Most, before.Downloads.Most))
	}
	m.store.speed.Set(t.bandwidth) // can't fail
	m.log.Info("configuration read anew", "cache", size(t.cache), "uploads", t.uploads, "downloads", t.downloads, "upload_limit", size(t.bandwidth.Upload), "download_limit", size(t.bandwidth.Download))
	return nil
}

// onHangup reloads at each SIGHUP until ctx ends; done is closed then.
func (m *mountProcess) onHangup(ctx context.Context) (done chan struct{}) {
	done = make(chan struct{})
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		defer signal.Stop(hup)
		for {
			select {
			case <-hup:
				if err := m.reload(); err != nil {
					m.log.Error("configuration refused: the old values stay", "error", sentence(err))
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}
