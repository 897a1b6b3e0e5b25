package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore"
)

// salvageOptions are what `cistern salvage` was told.
type salvageOptions struct {
	state    string
	to       string
	journal  string
	noBucket bool
	list     bool
	discard  bool
	yes      bool
	asJSON   bool
}

func (a *app) salvageCommand() *cobra.Command {
	o := &salvageOptions{}
	c := &cobra.Command{
		Use: "salvage <state directory>", Short: "Show or bring back what a replaced writer had and the bucket has not", Args: cobra.ExactArgs(1),
		Long: `Lists what a mount that another writer replaced had acknowledged after its last
commit: which files, which bytes of them, and which names it had changed. With
--to it brings the files back into a directory, as that mount saw them: from the
journal and the cache that were set aside, over the commit that they build on.
Without the bucket it brings back the bytes that were written; ranges/<inode>.json
says then which bytes of a file are real.

It changes nothing in the state directory. --discard deletes what was set aside.
Damage is said, all else is brought back, and the exit status is 4.`,
	}
	f := c.Flags()
	f.BoolVar(&o.list, "list", false, "list only, which is what it does without --to and --discard")
	f.StringVar(&o.to, "to", "", "bring the files back into this directory, which is new or empty")
	f.StringVar(&o.journal, "journal", "", "only the journal of this id")
	f.BoolVar(&o.noBucket, "no-bucket", false, "don't ask the bucket")
	f.BoolVar(&o.discard, "discard", false, "delete what was set aside")
	f.BoolVar(&o.yes, "yes", false, "with --discard: don't ask")
	f.BoolVar(&o.asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		o.state = args[0]
		switch given := map[bool]int{true: 1}; {
		case given[o.list]+given[o.to != ""]+given[o.discard] > 1:
			return usage(errors.New("--list, --to and --discard: choose one"))
		case o.yes && !o.discard:
			return usage(errors.New("--yes: it goes with --discard only"))
		}
		return a.salvage(ctx, o)
	})
}

func (a *app) salvage(ctx context.Context, o *salvageOptions) error {
	asides, unlock, err := findAsides(o)
	if err != nil {
		return err
	}
	defer unlock()
	if o.discard {
		return a.discard(o, asides)
	}
	if o.to != "" {
		if err := emptyDirectory(o.to); err != nil {
			return err
		}
	}
	reports := []*gateway.SalvageReport{}
	damaged := false
	for _, x := range asides {
		r, err := a.salvageOne(ctx, o, x)
		if err != nil {
			return err
		}
		reports = append(reports, r)
		damaged = damaged || len(r.Damage) > 0
		for _, f := range r.Files {
			damaged = damaged || len(f.Problem) > 0
		}
	}
	if o.asJSON {
		if err := a.printJSON(reports); err != nil {
			return err
		}
	} else if len(reports) == 0 {
		if err := a.say("nothing was set aside in %s", o.state); err != nil {
			return err
		}
	}
	if damaged {
		a.note("not everything could be brought back: see what is called damage or a problem")
		return said(exitDamaged)
	}
	return nil
}

// findAsides lists what there is to salvage, and keeps mounts off the state
// directory's own journal until unlock. One that is in use is not listed.
func findAsides(o *salvageOptions) (asides []gateway.Aside, unlock func(), err error) {
	all, err := gateway.Asides(vfs.OS(), o.state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, usage(fmt.Errorf("%s: no such state directory", o.state))
	}
	if err != nil {
		return nil, nil, err
	}
	if len(all) == 0 {
		if _, err := os.Stat(filepath.Join(o.state, ownerName)); errors.Is(err, fs.ErrNotExist) {
			return nil, nil, usage(fmt.Errorf("%s is no mount's state directory: it has no %s; `cistern status` names a mount's", o.state, ownerName))
		}
	}
	unlock = func() {}
	for _, x := range all {
		if o.journal != "" && x.ID != o.journal {
			continue
		}
		if x.InPlace {
			l, lerr := vfs.OS().Lock(filepath.Join(o.state, "lock"))
			if errors.Is(lerr, vfs.ErrLocked) && (len(all) > 1 || o.discard) && o.journal == "" {
				continue // a mount goes on there, and what was set aside is beside it
			}
			if lerr != nil {
				return nil, nil, fmt.Errorf("the journal in %s is in use by a mount: unmount it first: %w", o.state, lerr)
			}
			unlock = func() { l.Close() } // releases the lock whatever it returns
		}
		asides = append(asides, x)
	}
	if o.journal != "" && len(asides) == 0 {
		return nil, nil, usage(fmt.Errorf("%s holds no journal %s", o.state, o.journal))
	}
	return asides, unlock, nil
}

// emptyDirectory makes a directory, or makes sure that it is empty.
func emptyDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return usage(localError(dir, err))
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return usage(localError(dir, err))
	}
	if len(list) > 0 {
		return usage(fmt.Errorf("%s is not empty: name a new directory", dir))
	}
	return nil
}

func (a *app) salvageOne(ctx context.Context, o *salvageOptions, x gateway.Aside) (r *gateway.SalvageReport, err error) {
	a.sweepTemp()
	kv, tmp, err := tempKV(salvagePrefix)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tmp.remove()) }()
	keys, err := a.keyRing()
	if err != nil {
		return nil, errors.Join(err, kv.Close())
	}
	opt := gateway.SalvageOptions{FS: vfs.OS(), Aside: x, Keys: keys, KV: kv}
	if !o.noBucket {
		opt.Open = func(ctx context.Context, url string) (objstore.Store, error) {
			u, err := objstore.ParseURL(url)
			if err != nil {
				return nil, err
			}
			s, err := a.openVolume(ctx, u)
			if err != nil {
				return nil, err // not s: a nil pointer in an interface is not nil
			}
			return s, nil
		}
	}
	s, err := gateway.OpenSalvage(ctx, opt)
	if errors.Is(err, gateway.ErrKey) {
		err = usage(fmt.Errorf("%w; --no-bucket shows without it what was written", err))
	}
	if err != nil {
		return nil, errors.Join(err, kv.Close())
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r = s.Report()
	if !r.BaseRead && !o.noBucket {
		a.note("%s: only the bytes that were written are known: %s", x.ID, r.BaseWhy)
	}
	if o.to != "" {
		d := &salvageDir{root: filepath.Join(o.to, x.ID)}
		if err := s.Extract(ctx, d); err != nil {
			return r, err
		}
		if err := d.describe(r); err != nil {
			return r, err
		}
	}
	if o.asJSON {
		return r, nil
	}
	return r, a.tellSalvage(o, r)
}

// tellSalvage shows a report to people.
func (a *app) tellSalvage(o *salvageOptions, r *gateway.SalvageReport) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("journal %s of %s: %s in %s", r.ID, r.URL, count(int64(r.Records), "record"), r.Dir)
	if r.InPlace {
		line("  not set aside: the next mount with this state directory brings it to the bucket, unless another owner has written there since")
	}
	if r.Reason != "" {
		line("  set aside because %s", r.Reason)
	}
	if r.Base != nil {
		line("  after commit %s", r.Base)
	}
	for _, f := range r.Files {
		state := "whole"
		switch {
		case f.Gone:
			state = "has no name any more"
		case len(f.Missing) > 0:
			state = count(int64(len(f.Missing)), "range") + " missing"
		case !f.Whole && r.BaseRead:
			state = "later writes may be lost"
		case !f.Whole:
			state = "ranges only"
		}
		line("  file %s: %s of %s in %s, %s of size, %s, %s to %s", text(f.Path).shown(), count(int64(f.Writes), "write"), size(f.Bytes), count(int64(len(f.Ranges)), "range"),
			size(f.Size), state, moment(f.First), moment(f.Last))
		for _, p := range f.Problem {
			line("    problem: %s", p)
		}
	}
	for _, op := range r.Operations {
		tail := ""
		if op.To != "" {
			tail = " → " + text(op.To).shown()
		}
		if op.Size != nil {
			tail += fmt.Sprintf(" to %d bytes", *op.Size)
		}
		if op.Skipped != "" {
			tail += " (does not fit: " + op.Skipped + ")"
		}
		line("  %s %s%s", op.Op, text(op.Path).shown(), tail)
	}
	if r.MoreOps > 0 {
		line("  %d more operations are not listed", r.MoreOps)
	}
	for _, d := range r.Torn {
		line("  torn: %s", d)
	}
	for _, d := range r.Damage {
		line("  damage: %s", d)
	}
	if o.to != "" {
		line("  brought back into %s", filepath.Join(o.to, r.ID))
	}
	return a.say("%s", strings.TrimSuffix(b.String(), "\n"))
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// discard deletes what was set aside. The state directory's own journal is
// nobody's to delete: a mount judges it.
func (a *app) discard(o *salvageOptions, asides []gateway.Aside) error {
	var gone []string
	for _, x := range asides {
		if !x.InPlace {
			gone = append(gone, x.Dir)
		}
	}
	if len(gone) == 0 {
		return a.say("nothing was set aside in %s", o.state)
	}
	if !o.yes {
		if err := a.confirm(fmt.Sprintf("This deletes for good what only these have: %s. Type yes to go on:", strings.Join(gone, ", ")), "yes"); err != nil {
			return err
		}
	}
	for _, dir := range gone {
		if err := os.RemoveAll(dir); err != nil {
			return localError(dir, err)
		}
		if err := a.say("%s is deleted", dir); err != nil {
			return err
		}
	}
	return nil
}

// salvageDir is the directory that an extraction goes into:
//
//	files/<path>          the files
//	ranges/<inode>.json   of each file that is not whole: which bytes are real
//	report.json
type salvageDir struct{ root string }

// File implements gateway.SalvageSink.
func (d *salvageDir) File(f *gateway.SalvagedFile, mode uint32, mtime int64) (io.WriteCloser, error) {
	path := f.Path
	if !filepath.IsLocal(path) {
		path = "inode-" + strconv.FormatUint(uint64(f.Inode), 10)
	}
	path = filepath.Join(d.root, "files", path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, localError(filepath.Dir(path), err)
	}
	h, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, localError(path, err)
	}
	return &salvagedFile{f: h, size: f.Size, mode: fs.FileMode(mode & 0o777), mtime: time.Unix(0, mtime)}, nil
}

// salvagedFile is a file that is being brought back; zeros are left out of it.
type salvagedFile struct {
	f     *os.File
	off   int64
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

// Write implements io.Writer.
func (s *salvagedFile) Write(p []byte) (int, error) {
	for i := range p {
		if p[i] != 0 {
			if _, err := s.f.WriteAt(p, s.off); err != nil {
				return 0, localError(s.f.Name(), err)
			}
			break
		}
	}
	s.off += int64(len(p))
	return len(p), nil
}

// Close implements io.Closer.
func (s *salvagedFile) Close() error {
	err := s.f.Truncate(s.size)
	if err == nil {
		err = s.f.Chmod(s.mode)
	}
	if err == nil {
		err = s.f.Sync()
	}
	if cerr := s.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chtimes(s.f.Name(), s.mtime, s.mtime)
	}
	if err != nil {
		return localError(s.f.Name(), err)
	}
	return nil
}

// describe writes the report, and beside it which bytes of a file are real. Then all
// of it is durable, names too: what it was made of may be discarded next.
func (d *salvageDir) describe(r *gateway.SalvageReport) error {
	for _, f := range r.Files {
		if f.Gone || f.Whole {
			continue
		}
		if err := d.write(filepath.Join("ranges", fmt.Sprintf("%d.json", f.Inode)), f); err != nil {
			return err
		}
	}
	if err := d.write("report.json", r); err != nil {
		return err
	}
	return syncFS(d.root)
}

func (d *salvageDir) write(name string, v any) error {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	path := filepath.Join(d.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return localError(filepath.Dir(path), err)
	}
	if err := os.WriteFile(path, append(body, '\n'), 0o600); err != nil {
		return localError(path, err)
	}
	return nil
}
