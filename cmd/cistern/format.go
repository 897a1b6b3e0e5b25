package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// longest is the longest retention: a bound, so that sums of times fit.
const longest = 100 * 365 * 24 * time.Hour

// parseURL reads an argument that must be a URL of a volume's present.
func parseURL(arg string) (objstore.URL, error) {
	u, err := objstore.ParseURL(arg)
	if err == nil && u.Point != "" {
		err = fmt.Errorf("%s: a point in the past can't be meant here", arg)
	}
	return u, usage(err)
}

func (a *app) formatCommand() *cobra.Command {
	object := config.Size{Bytes: 5 << 20, Min: 1 << 20, Max: 64 << 20}
	quota := config.Size{Min: 1 << 20}
	retention := interval{d: 24 * time.Hour, max: longest}
	compress := choice{"none", []string{"none", "lz4", "zstd"}}
	var asJSON, names bool
	c := &cobra.Command{
		Use: "format <url>", Short: "Make an empty volume", Args: cobra.ExactArgs(1),
		Long: `Makes an empty volume at a URL, after it has made sure that the store keeps the
promises that a volume needs. The prefix must be empty. For file:///dir it makes
the directory, if its parent exists.

With a key (--encrypt-key-file) the volume is encrypted. Nobody can read it
without that key: keep it in a second place. Commits and manifests, which name
the files, are encrypted too, unless --encrypt-names=false was given.`,
	}
	c.Flags().Var(&object, "object-size", "size of an object: 1M to 64M")
	c.Flags().Var(&quota, "quota", "how many bytes of data the volume may hold (default: no limit)")
	c.Flags().Var(&retention, "retention", "how long every commit stays usable; 0: until the next collection")
	c.Flags().Var(&compress, "compress", "how blocks are compressed")
	c.Flags().BoolVar(&names, "encrypt-names", true, "of an encrypted volume: encrypt commits and manifests, and leave paths out of keys")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		u, err := parseURL(args[0])
		if err != nil {
			return err
		}
		if object.Bytes%4096 != 0 {
			return usage(fmt.Errorf("--object-size %d: must be a multiple of 4096", object.Bytes))
		}
		if retention.d%time.Second != 0 {
			return usage(fmt.Errorf("--retention %v: give whole seconds", retention.d))
		}
		doc, err := a.format(ctx, u, gateway.FormatOptions{
			ObjectSize: object.Bytes, QuotaBytes: quota.Bytes, Retention: retention.d, Compress: compress.value, PlainNames: !names,
		})
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(volumeDocOf(u, doc))
		}
		how := ""
		if doc.Compress != "" {
			how = ", compressed by " + doc.Compress
		}
		if doc.Key != "" {
			how += ", encrypted with key " + doc.Key
		}
		return a.say("%s is volume %s, with objects of %s%s", u, doc.ID, size(doc.ObjectSize), how)
	})
}

// format makes a volume at u, in a store that has passed the probe.
func (a *app) format(ctx context.Context, u objstore.URL, o gateway.FormatOptions) (*metadata.VolumeDoc, error) {
	keys, err := a.keyRing()
	if err != nil {
		return nil, err
	}
	if err := a.refuseNested(ctx, u); err != nil {
		return nil, err
	}
	s, err := a.openStore(ctx, u, true, nil)
	if err != nil {
		return nil, err
	}
	if err := refuseForeignKeys(ctx, s, u); err != nil {
		return nil, err
	}
	// Before the probe, which writes: what is not empty is left as it is.
	page, err := objstore.FirstKeys(ctx, s, 1)
	if err != nil {
		return nil, fmt.Errorf("look whether %s is empty: %w", u, err)
	}
	if len(page) == 0 {
		if err := objstore.Probe(ctx, s.bare()); err != nil {
			return nil, err
		}
	}
	o.Store, o.URL, o.Keys = s, u.String(), keys
	o.UID, o.GID, o.Owner = uint32(os.Geteuid()), uint32(os.Getegid()), gateway.HostOwner("")
	doc, err := gateway.Format(ctx, o)
	if errors.Is(err, gateway.ErrExist) || errors.Is(err, gateway.ErrInvalid) {
		return nil, usage(err)
	}
	if err != nil {
		return nil, err
	}
	a.warnOfBucket(ctx, s)
	return doc, nil
}

// formatted is what format tells a program.
type formatted struct {
	Volume     string `json:"volume"`
	URL        string `json:"url"`
	ObjectSize int64  `json:"object_size"`
	QuotaBytes int64  `json:"quota_bytes"`
	Retention  int64  `json:"retention_seconds"`
	Compress   string `json:"compress"` // none, lz4 or zstd
	Key        string `json:"encryption_key,omitempty"`
	PlainNames bool   `json:"names_readable,omitempty"` // of an encrypted volume
}

func volumeDocOf(u objstore.URL, d *metadata.VolumeDoc) formatted {
	f := formatted{d.ID, u.String(), d.ObjectSize, d.Settings.QuotaBytes, d.Settings.RetentionSec, d.Compress, d.Key, d.PlainNames}
	if f.Compress == "" {
		f.Compress = "none"
	}
	return f
}

// destroyFlags are what a user says of a destroy.
type destroyFlags struct{ yes, takeover, force bool }

func (a *app) destroyCommand() *cobra.Command {
	var f destroyFlags
	c := &cobra.Command{
		Use: "destroy <url>", Short: "Delete a volume and everything in it", Args: cobra.ExactArgs(1),
		Long: `Deletes everything that a volume has in its bucket, after its URL was typed or
--yes was given. It needs no encryption key. A volume that has an owner is left
alone, and so is one that has a pin or snapshot without an end, or a clone that
shares with it. Its default state directory on this machine goes with it.`,
	}
	c.Flags().BoolVar(&f.yes, "yes", false, "don't ask")
	c.Flags().BoolVar(&f.takeover, "takeover", false, "although it has an owner, which is fenced if it lives")
	c.Flags().BoolVar(&f.force, "force", false, "although something is pinned")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		if err := a.refuseDestroy(ctx, t); err != nil {
			return err
		}
		s, err := a.openStore(ctx, t.url, false, nil)
		if err != nil {
			return err
		}
		if err := somethingThere(ctx, s, t); err != nil {
			return err
		}
		if !f.yes {
			word := t.url.String()
			if err := a.confirm(fmt.Sprintf("This deletes the volume for good. Type its URL, %s, to go on:", word), word); err != nil {
				return err
			}
		}
		return a.destroy(ctx, t, s, &f)
	})
}

// refuseDestroy fails while this machine uses the volume, or when it is not one.
func (a *app) refuseDestroy(ctx context.Context, t target) error {
	if t.mount != "" {
		return &statusError{fmt.Errorf("%s is mounted on %s: unmount it first", t.url, t.mount), exitOwned}
	}
	if t.point != "" {
		return usage(fmt.Errorf("%s@%s: only a whole volume can be destroyed", t.url, t.point))
	}
	if owner, err := a.owner(ctx, t); err == nil && owner != nil {
		return &statusError{fmt.Errorf("%s is mounted on this machine: unmount it first", t.url), exitOwned}
	}
	if dir := a.pointMount(ctx, t); dir != "" {
		return &statusError{fmt.Errorf("a point of %s is mounted on %s: unmount it first", t.url, text(dir).shown()), exitOwned}
	}
	return nil
}

// destroy deletes the volume, what others keep for it, and its local state.
func (a *app) destroy(ctx context.Context, t target, s *store, f *destroyFlags) error {
	id := destroyedID(ctx, s, t)
	n := 0
	err := gateway.Destroy(ctx, s, t.url.String(), gateway.HostOwner(""), f.takeover, f.force, func(k int) { n = k })
	if err != nil {
		return err
	}
	o, err := a.requests()
	if err != nil {
		return err
	}
	if err := gateway.ForgetClone(ctx, s, t.url.String(), a.opener(o)); err != nil {
		return err
	}
	if err := s.clear(ctx); err != nil {
		a.note("warning: the volume is gone; what its directory keeps beside it is not: %v", err)
	}
	if err := a.say("%s is deleted, with %s", t.url, count(n, "object")); err != nil || id == "" {
		return err
	}
	state, err := a.dropState(t.url, id)
	if err != nil {
		return fmt.Errorf("the volume is gone, but not its local state: %w", err)
	}
	if state != "" {
		return a.say("its local state in %s is deleted too", state)
	}
	return nil
}

// destroyedID returns the id of what is to be destroyed; empty when an earlier
// destroy has deleted all that tells it. A clone tells it to the end.
func destroyedID(ctx context.Context, s *store, t target) string {
	if doc, err := gateway.ReadVolumeDoc(ctx, s, t.url.String()); err == nil {
		return doc.ID
	}
	if claim, err := gateway.ReadClaim(ctx, s); err == nil && claim != nil {
		return claim.ID
	}
	return ""
}

// somethingThere fails when a URL has neither a volume nor the rest of one, as
// an interrupted format or destroy leaves it.
func somethingThere(ctx context.Context, s *store, t target) error {
	for _, key := range []string{metadata.VolumeKey, metadata.LeaseKey, metadata.ClaimKey} {
		_, err := s.Head(ctx, key)
		if err == nil {
			return nil
		}
		if !errors.Is(err, objstore.ErrNotExist) {
			return fmt.Errorf("look at %s: %w", key, err)
		}
	}
	return fmt.Errorf("%w: %s holds nothing to delete", gateway.ErrNoVolume, t.url)
}
