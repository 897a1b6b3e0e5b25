package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/columnstore"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// importOptions are what `cistern import columnstore` was told.
type importOptions struct {
	dbroots                           []string
	metadata, journal, cache, objects string
	copy, acceptOwned                 bool
	parallel                          int
	asJSON                            bool
}

func (a *app) importCommand() *cobra.Command {
	c := &cobra.Command{Use: "import", Short: "Bring data of other systems into volumes", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.importColumnStoreCommand())
	return c
}

func (a *app) importColumnStoreCommand() *cobra.Command {
	o := &importOptions{}
	c := &cobra.Command{
		Use: "columnstore [url]", Short: "Turn what Storage Manager keeps into volumes", Args: cobra.MaximumNArgs(1),
		Long: `Makes a volume of each DBRoot (data1, data2, …) that ColumnStore's Storage
Manager has metadata of, as the storagemanager.cnf named by --config says; with a
URL, of one DBRoot, there. Objects stay where they are and are referred to;
journals are merged. Every object is read once and verified. With --copy the
objects are copied, and Storage Manager's can go afterwards.

Storage Manager must not run. Nothing of its is changed, then or later: a volume
never deletes an object that it refers to there. What was interrupted
goes on with the same command. Objects that are missing, torn journals, and
objects and journals that no metadata names are told; exit status 4 when files
were left out or bytes were lost.`,
	}
	f := c.Flags()
	f.StringArrayVar(&o.dbroots, "dbroot", nil, "this DBRoot alone; several times for several (default: all that have metadata)")
	f.StringVar(&o.metadata, "metadata", "", "Storage Manager's metadata_path (default: as the file says)")
	f.StringVar(&o.journal, "journal", "", "its journal_path")
	f.StringVar(&o.cache, "cache", "", "its [Cache] path")
	f.StringVar(&o.objects, "objects", "", "its bucket: s3://bucket, gs://bucket, or file:///dir for LocalStorage")
	f.BoolVar(&o.copy, "copy", false, "copy the objects into the volume")
	f.BoolVar(&o.acceptOwned, "accept-owned", false, "although Storage Manager's metadata says that a node has the DBRoot: it ended uncleanly")
	f.IntVar(&o.parallel, "parallel", 8, "files at a time")
	f.BoolVar(&o.asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if o.parallel < 1 || o.parallel > 256 {
			return usage(fmt.Errorf("--parallel %d: must be 1 to 256", o.parallel))
		}
		sm, err := a.readStorageManager()
		if err != nil {
			return err
		}
		for _, p := range []struct {
			flag string
			to   *string
		}{{o.metadata, &sm.tree.Metadata}, {o.journal, &sm.tree.Journal}, {o.cache, &sm.tree.Cache}} {
			if p.flag != "" {
				*p.to = p.flag
			}
		}
		return a.importDBRoots(ctx, sm, o, args)
	})
}

// imported is what an import of one DBRoot did.
type imported struct {
	DBRoot string `json:"dbroot"`
	URL    string `json:"url"`
	columnstore.Result
	Found []columnstore.Problem `json:"found,omitempty"` // the first ten thousand
}

const maxImportFound = 10000

func (a *app) importDBRoots(ctx context.Context, sm *storageManager, o *importOptions, args []string) error {
	if c, err := net.DialTimeout("unix", "@storagemanager", time.Second); err == nil {
		return errors.Join(&statusError{errors.New("Storage Manager runs on this machine: stop ColumnStore first"), exitOwned}, c.Close())
	}
	names := o.dbroots
	if len(names) == 0 {
		all, err := sm.tree.Prefixes()
		if err != nil {
			return usage(fmt.Errorf("%w; name it with --metadata", err))
		}
		names = all
	}
	if len(names) == 0 {
		return usage(fmt.Errorf("%s has no DBRoot's metadata", sm.tree.Metadata))
	}
	if len(args) == 1 && len(names) != 1 {
		return usage(fmt.Errorf("one URL for %s (%s): choose one with --dbroot", count(len(names), "DBRoot"), strings.Join(names, ", ")))
	}
	results := []imported{}
	var all error
	for _, name := range names {
		r, err := a.importDBRoot(ctx, sm, o, name, args)
		if r != nil {
			results = append(results, *r)
		}
		if err != nil {
			all = err
			break
		}
	}
	if o.asJSON {
		if err := a.printJSON(results); err != nil {
			return err
		}
	}
	if all != nil {
		return all
	}
	for _, r := range results {
		if r.Left > 0 || r.Torn > 0 {
			return said(exitDamaged)
		}
	}
	return nil
}

// importDBRoot imports one DBRoot into its volume, which is made if need be.
func (a *app) importDBRoot(ctx context.Context, sm *storageManager, o *importOptions, name string, args []string) (*imported, error) {
	if _, err := os.Stat(filepath.Join(sm.tree.Metadata, name)); err != nil {
		return nil, usage(fmt.Errorf("metadata of %s: %w", name, err))
	}
	owned, err := sm.tree.Owned(name)
	if err != nil {
		return nil, localError(sm.tree.Metadata, err)
	}
	if owned && !o.acceptOwned {
		return nil, &statusError{fmt.Errorf("a node has %s, says OWNED in %s: stop ColumnStore on it; if it ended uncleanly, say --accept-owned", name, filepath.Join(sm.tree.Metadata, name)), exitOwned}
	}
	bucket := o.objects
	if bucket == "" {
		if bucket, err = sm.bucketURL(); err != nil {
			return nil, err
		}
	}
	u, err := a.importTarget(sm, name, args)
	if err != nil {
		return nil, err
	}
	v, err := a.openForImport(ctx, sm, o, u, bucket)
	if err != nil {
		return nil, err
	}
	r := &imported{DBRoot: name, URL: u.String()}
	requests, err := a.requests()
	if err == nil {
		var from objstore.Store
		if from, err = a.openBucket(ctx, bucket, requests); err == nil {
			err = a.runImport(ctx, v, sm, o, from, r)
		}
	}
	// A signal ends the work, not the commit of what it did.
	if cerr := v.Close(context.WithoutCancel(ctx)); cerr != nil {
		return r, errors.Join(err, cerr)
	}
	if err != nil || o.asJSON {
		return r, err
	}
	return r, a.say("%s is in %s: %s imported, %d there before, %s by reference, %s copied, %s merged; left out %d, orphans %d",
		name, u, count(r.Files, "file"), r.Skipped, count(r.Adopted, "object"), count(r.Copied, "object"), count(r.Journals, "journal"), r.Left, r.Orphans)
}

func (a *app) importTarget(sm *storageManager, name string, args []string) (objstore.URL, error) {
	if len(args) == 1 {
		return parseURL(args[0])
	}
	u, err := sm.volumeURL(name)
	if err == nil && u.Scheme == objstore.SchemeFile {
		if err := os.MkdirAll(filepath.Dir(u.Path), 0o755); err != nil {
			return u, localError(u.Path, err)
		}
	}
	return u, err
}

// openForImport opens the volume at u, which it makes if there is none.
func (a *app) openForImport(ctx context.Context, sm *storageManager, o *importOptions, u objstore.URL, bucket string) (*gateway.Volume, error) {
	s, err := a.openVolume(ctx, u)
	var doc *metadata.VolumeDoc
	if err == nil {
		doc, err = gateway.ReadVolumeDoc(ctx, s, u.String())
	}
	if errors.Is(err, gateway.ErrNoVolume) || errors.Is(err, objstore.ErrNoBucket) && u.Scheme == objstore.SchemeFile {
		f := gateway.FormatOptions{ObjectSize: sm.object.Bytes, Retention: 24 * time.Hour}
		if !o.copy {
			f.Adopted = &metadata.Adopted{URL: bucket}
		}
		if _, err = a.format(ctx, u, f); err == nil {
			if s, err = a.openVolume(ctx, u); err == nil {
				doc, err = gateway.ReadVolumeDoc(ctx, s, u.String())
			}
		}
	}
	if err != nil {
		return nil, err
	}
	switch {
	case o.copy:
	case doc.Adopted == nil:
		return nil, usage(fmt.Errorf("%s was not made to refer to another bucket's objects: import with --copy, or into a new volume", u))
	case doc.Adopted.URL != bucket:
		return nil, usage(fmt.Errorf("%s refers to objects in %s, and Storage Manager's are in %s: import with --copy, or into a new volume", u, doc.Adopted.URL, bucket))
	}
	state, err := a.volumeState(u, doc.ID)
	if err != nil {
		return nil, err
	}
	return gateway.Open(ctx, gateway.Options{
		Store: s, Keys: s.keys, URL: u.String(), FS: vfs.OS(), StateDir: state, OpenKV: openKV(quietLogger()),
		CacheBytes: sm.cache.Bytes, JournalBytes: 1 << 30, KeepFree: keepFree, RequireReleased: true, Owner: gateway.HostOwner(state), Logger: quietLogger(),
	})
}

func (a *app) runImport(ctx context.Context, v *gateway.Volume, sm *storageManager, o *importOptions, from objstore.Store, r *imported) error {
	bar := progress.Start(a.stderr, a.terminal, "import "+r.DBRoot, 0)
	im := columnstore.Import{
		Volume: v, Tree: sm.tree, Prefix: r.DBRoot, Bucket: from, Adopt: !o.copy, Parallel: o.parallel,
		Progress: func(now columnstore.Result) { bar.Set(now.Bytes, now.Bytes) },
		Problem: func(p columnstore.Problem) {
			if len(r.Found) < maxImportFound {
				r.Found = append(r.Found, p)
			}
			if !o.asJSON {
				a.note("%s", text(p.String()).shown())
			}
		},
	}
	if o.objects == "" {
		im.KeyPrefix = sm.objectPrefix()
	} else if strings.HasPrefix(o.objects, objstore.SchemeS3+":") {
		im.KeyPrefix = sm.keyPrefix
	}
	var err error
	r.Result, err = im.Run(ctx)
	bar.Done(err == nil)
	return err
}
