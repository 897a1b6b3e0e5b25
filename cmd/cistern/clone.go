package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// cloneOptions are the flags of `cistern clone`.
type cloneOptions struct {
	to          string
	replace     bool
	copy        bool
	detach      bool
	last        bool
	timeout     interval
	concurrency int
	bandwidth   config.Size
	progress    bool
	asJSON      bool
}

func (a *app) cloneCommand() *cobra.Command {
	o := cloneOptions{timeout: interval{min: time.Millisecond, max: 7 * 24 * time.Hour}, bandwidth: config.Size{Min: leastBandwidth}}
	c := &cobra.Command{
		Use: "clone <vol>[@point] [url]", Short: "Make a writable volume, or a local directory, of a volume as of a point", Args: cobra.RangeArgs(1, 2),
		Long: `Makes a new volume at a URL that begins as another one is, or was at a point. In
the same bucket it copies nothing: the two share what was there, whatever its
size, and each goes its own way from then on. Across buckets, or with --copy, all
that the new volume needs is copied. With --detach and a single URL a clone gets
copies of what it shares, so that its parent can go.

With --to it fills a local directory instead, which a database starts on as after
a power cut. What was interrupted goes on when the same command is run again.`,
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "fill this local directory, which is empty or new, instead of making a volume")
	f.BoolVar(&o.replace, "replace", false, "with --to: first delete what is in the directory")
	f.BoolVar(&o.copy, "copy", false, "copy everything although the new volume could share it")
	f.BoolVar(&o.detach, "detach", false, "the same; with one URL: copy what that clone shares")
	f.BoolVar(&o.last, "last-commit", false, "take the last commit as it is, without asking the mount to commit")
	f.Var(&o.timeout, "timeout", "how long to wait for the mount's commit (default: without limit)")
	f.IntVar(&o.concurrency, "concurrency", 16, "objects or files that are copied at a time")
	f.Var(&o.bandwidth, "bandwidth", "bytes a second, each way (default: no limit)")
	f.BoolVar(&o.progress, "progress", false, "tell on standard error how far each stage is, and show them at the end")
	f.BoolVar(&o.asJSON, "json", false, "one JSON document")
	c.ValidArgsFunction = completeVolume
	a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if err := o.check(args); err != nil {
			return usage(err)
		}
		return a.clone(ctx, &o, args)
	})
	c.AddCommand(a.cloneStatusCommand(), a.cloneListCommand())
	return c
}

// check finds what does not go together.
func (o *cloneOptions) check(args []string) error {
	switch {
	case o.to != "" && len(args) > 1:
		return errors.New("--to fills a directory: leave the second URL out")
	case o.to != "" && (o.copy || o.detach):
		return errors.New("--to makes no volume: --copy and --detach don't go with it")
	case o.to == "" && o.replace:
		return errors.New("--replace goes with --to: a volume is made in an empty prefix only")
	case o.to == "" && len(args) == 1 && !o.detach:
		return errors.New("say where to: a new volume's URL, or --to with a directory")
	case o.concurrency < 1 || o.concurrency > maxConcurrent:
		return fmt.Errorf("--concurrency %d: must be 1 to %d", o.concurrency, maxConcurrent)
	}
	return nil
}

// requests are the bounds that the flags set.
func (a *app) cloneRequests(o *cloneOptions) (requestOptions, error) {
	r, err := a.requests()
	r.uploads, r.downloads = o.concurrency, max(o.concurrency, r.downloads)
	r.bandwidth = objstore.BandwidthOptions{Upload: o.bandwidth.Bytes, Download: o.bandwidth.Bytes}
	return r, err
}

// cloned is what clone answers.
type cloned struct {
	Volume  string               `json:"volume,omitempty"`
	Target  string               `json:"target"`
	Source  string               `json:"source"`
	Commit  uint64               `json:"commit,omitempty"`
	Time    *time.Time           `json:"time,omitempty"` // of the commit
	Shared  bool                 `json:"shared"`         // with the source
	Resumed bool                 `json:"resumed,omitempty"`
	Copied  gateway.CopyProgress `json:"copied"`
	Seconds float64              `json:"seconds"`
	Stages  []cloneStage         `json:"stages"`
}

// Why stages of MySQL's plugin have nothing to do here.
const (
	whyMoment   = "a commit is the volume at one moment: nothing changes behind what was copied"
	whyShares   = "the clone shares what the source has"
	whyDurable  = "the store makes each object durable before it answers"
	whyRestart  = "the command starts no server"
	whyRecovery = "a server recovers when it is started on the clone, as after a power cut"
)

func (a *app) clone(ctx context.Context, o *cloneOptions, args []string) error {
	begun := time.Now()
	var out cloned
	var t *cloneTask
	var err error
	switch {
	case o.to != "":
		t, err = a.cloneToDir(ctx, o, args[0], &out)
	case len(args) == 1:
		t, err = a.cloneDetach(ctx, o, args[0], &out)
	default:
		t, err = a.cloneToURL(ctx, o, args[0], args[1], &out)
	}
	if t != nil {
		err = t.end(ctx, err)
		s := t.status()
		out.Stages = s.Stages
		if o.progress && !o.asJSON {
			err = errors.Join(err, a.writeClone(&s))
		}
	}
	if err != nil {
		return err
	}
	out.Seconds = time.Since(begun).Seconds()
	if o.asJSON {
		return a.printJSON(out)
	}
	return a.sayCloned(&out)
}

func (a *app) sayCloned(out *cloned) error {
	took := time.Duration(out.Seconds * float64(time.Second)).Round(10 * time.Millisecond)
	how := "it shares what was there"
	if !out.Shared {
		how = fmt.Sprintf("%s in %s copied", size(out.Copied.DoneBytes), count(out.Copied.DoneThings, "part"))
		if out.Copied.Found > 0 {
			how += fmt.Sprintf(", %d of them by an earlier attempt", out.Copied.Found)
		}
	}
	if out.Commit == 0 {
		return a.say("%s stands alone: %s, in %s", out.Target, how, took)
	}
	return a.say("%s is a clone of commit %d of %s: %s, in %s", out.Target, out.Commit, out.Source, how, took)
}

// cloneSource opens what is cloned and finds the commit: the present of a mount
// on this machine is committed first.
func (a *app) cloneSource(ctx context.Context, o *cloneOptions, arg string) (*store, target, uint64, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return nil, t, 0, err
	}
	if t.follows { // what is meant is the writer's present
		t = target{url: t.url}
	}
	var n uint64
	if t.point == "" && !o.last {
		c, err := a.owner(ctx, t)
		if err != nil {
			return nil, t, 0, err
		}
		if c != nil {
			id, err := a.syncMount(ctx, &remote{c: c}, t, o.timeout.d)
			if err != nil {
				return nil, t, 0, err
			}
			n = id.N
		} else if t.mount != "" {
			a.note("the process that served %s is gone: this is the last commit in %s", t.mount, t.url)
		}
	}
	r, err := a.cloneRequests(o)
	if err != nil {
		return nil, t, 0, err
	}
	s, err := a.openVolumeWith(ctx, t.url, nil, r)
	if err != nil {
		return nil, t, 0, err
	}
	if t.point != "" {
		n, err = resolvePoint(ctx, s, t)
	} else if n == 0 {
		err = a.noteOwner(ctx, s, t.url.String())
	}
	return s, t, n, err
}

// sameBucket says whether a clone at one URL can share with a volume at another:
// whoever reads the one can read the other.
func sameBucket(a, b objstore.URL) bool { return a.Scheme == b.Scheme && a.Bucket == b.Bucket }

func (a *app) cloneToURL(ctx context.Context, o *cloneOptions, from, to string, out *cloned) (*cloneTask, error) {
	u, err := parseURL(to)
	if err != nil {
		return nil, err
	}
	s, t, n, err := a.cloneSource(ctx, o, from)
	if err != nil {
		return nil, err
	}
	if u == t.url {
		return nil, usage(fmt.Errorf("%s is the volume itself: give the clone another URL", u))
	}
	copies := o.copy || o.detach || !sameBucket(t.url, u)
	target, r, err := a.cloneTarget(ctx, o, u, copies)
	if err != nil {
		return nil, err
	}
	if t.point == "" {
		if n, err = a.begunClone(ctx, target, t.url, n); err != nil {
			return nil, err
		}
	}
	why := map[string]string{
		stageDrop: "a volume is made in an empty prefix only", stagePages: whyMoment, stageRedo: whyMoment,
		stageSync: whyDurable, stageRestart: whyRestart, stageRecovery: whyRecovery,
	}
	if !copies {
		why[stageFiles] = whyShares
	}
	task, err := a.startClone(t.given(), u.String(), o.progress, why)
	if err != nil {
		return task, err
	}
	g := gateway.CloneOptions{
		Source: s, SourceURL: t.url.String(), Commit: n, Target: target, TargetURL: u.String(), Keys: s.keys, Open: a.opener(r),
	}
	var info *gateway.CloneInfo
	run := func() error {
		info, err = gateway.Clone(ctx, g)
		return cloneError(err)
	}
	if copies {
		var done func() error
		if g.Copy, done, err = a.copyOptions(ctx, o, task, s, t.url, n, u); err != nil {
			return task, err
		}
		err = errors.Join(task.run(stageFiles, run), done())
	} else {
		err = run()
	}
	if err != nil {
		return task, err
	}
	task.commit(info.Commit.N)
	*out = cloned{
		Volume: info.Doc.ID, Target: u.String(), Source: t.url.String(), Commit: info.Commit.N, Time: &info.Time,
		Shared: !copies, Resumed: info.Resumed, Copied: info.Copied,
	}
	return task, nil
}

// begunClone is the commit at which an earlier run had begun to clone the present of
// the same volume: the present of a volume that changes is another one each time,
// and what was copied is of that one. n when there was none.
func (a *app) begunClone(ctx context.Context, target *store, from objstore.URL, n uint64) (uint64, error) {
	claim, err := gateway.ReadClaim(ctx, target)
	if err != nil || claim == nil || claim.Parent().URL != from.String() {
		return n, err
	}
	if _, err := target.Head(ctx, metadata.VolumeKey); !errors.Is(err, objstore.ErrNotExist) {
		return n, nil // it is complete, which is told of later
	}
	if at := claim.Base().N; at != n {
		a.note("an earlier run had begun with commit %d: the clone goes on at that one", at)
		n = at
	}
	return n, nil
}

// cloneError makes what the user can mend one of usage.
func cloneError(err error) error {
	if errors.Is(err, gateway.ErrExist) || errors.Is(err, gateway.ErrInvalid) || errors.Is(err, gateway.ErrKey) || errors.Is(err, gateway.ErrNotSupport) {
		return usage(err)
	}
	return err
}

// cloneTarget opens the prefix in which a volume is to be made. A store that the
// source is not in has to pass the probe first.
func (a *app) cloneTarget(ctx context.Context, o *cloneOptions, u objstore.URL, copies bool) (*store, requestOptions, error) {
	r, err := a.cloneRequests(o)
	if err != nil {
		return nil, r, err
	}
	if err := a.refuseNested(ctx, u); err != nil {
		return nil, r, err
	}
	s, err := a.openStoreWith(ctx, u, true, nil, r)
	if err != nil || !copies {
		return s, r, err
	}
	if err := refuseForeignKeys(ctx, s, u); err != nil {
		return nil, r, err
	}
	page, err := objstore.FirstKeys(ctx, s, 1)
	if err != nil {
		return nil, r, fmt.Errorf("look whether %s is empty: %w", u, err)
	}
	if len(page) == 0 {
		err = objstore.Probe(ctx, s.bare())
	}
	return s, r, err
}

// copyOptions are those of a copy whose progress a task shows. The function gives back
// what the index took on the local disk.
func (a *app) copyOptions(ctx context.Context, o *cloneOptions, task *cloneTask, s *store, u objstore.URL, n uint64, to objstore.URL) (*gateway.CopyOptions, func() error, error) {
	info, err := gateway.FindCommit(ctx, s, n, u.String())
	if err != nil {
		return nil, nil, err
	}
	kv, dir, err := viewKV(&info)
	if err != nil {
		return nil, nil, err
	}
	served, err := a.serverCopy(ctx, to)
	if err != nil {
		return nil, nil, errors.Join(err, kv.Close(), dir.remove())
	}
	if o.bandwidth.Bytes > 0 {
		served = nil // what the store copies by itself nobody can hold back
	}
	return &gateway.CopyOptions{
		KV: kv, Parallel: o.concurrency, Logger: quietLogger(), Server: served,
		Progress: func(p gateway.CopyProgress) {
			task.moved(stageFiles, func(st *cloneStage) {
				st.Bytes, st.Done, st.Things, st.Finished = p.Bytes, p.DoneBytes, p.Things, p.DoneThings
			})
		},
	}, dir.remove, nil
}

// serverCopyWait bounds one copy that a store makes by itself.
const serverCopyWait = 2 * time.Minute

// serverCopy returns how the store at a URL copies bodies by itself; nil when it
// can't.
func (a *app) serverCopy(ctx context.Context, to objstore.URL) (func(ctx context.Context, fromURL, key string, size int64) error, error) {
	bucket, err := a.providers()[to.Scheme].open(ctx, to)
	if err != nil {
		return nil, err
	}
	c, ok := bucket.(objstore.Copier)
	if !ok {
		return nil, nil
	}
	return func(ctx context.Context, fromURL, key string, size int64) error {
		from, err := objstore.ParseURL(fromURL)
		if err != nil {
			return err
		}
		if from.Scheme != to.Scheme {
			return fmt.Errorf("from %s to %s: %w", from.Scheme, to.Scheme, errors.ErrUnsupported)
		}
		ctx, cancel := context.WithTimeout(ctx, serverCopyWait)
		defer cancel()
		return c.CopyFrom(ctx, to.Prefix()+key, size, from.Bucket, from.Prefix()+key)
	}, nil
}

// cloneDetach copies what a clone shares.
func (a *app) cloneDetach(ctx context.Context, o *cloneOptions, arg string, out *cloned) (*cloneTask, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return nil, err
	}
	if t.point != "" && !t.follows {
		return nil, usage(fmt.Errorf("%s: only a whole clone can be detached", t.given()))
	}
	r, err := a.cloneRequests(o)
	if err != nil {
		return nil, err
	}
	s, err := a.openVolumeWith(ctx, t.url, nil, r)
	if err != nil {
		return nil, err
	}
	raw, err := a.openStoreWith(ctx, t.url, false, nil, r)
	if err != nil {
		return nil, err
	}
	task, err := a.startClone(t.url.String(), t.url.String(), o.progress, map[string]string{
		stageDrop: "nothing is replaced", stagePages: whyMoment, stageRedo: whyMoment, stageSync: whyDurable, stageRestart: whyRestart, stageRecovery: whyRecovery,
	})
	if err != nil {
		return task, err
	}
	copies, done, err := a.copyOptions(ctx, o, task, s, t.url, 0, t.url)
	if err != nil {
		return task, err
	}
	err = task.run(stageFiles, func() error {
		out.Copied, err = gateway.Detach(ctx, gateway.DetachOptions{Store: raw.Store, URL: t.url.String(), Keys: s.keys, Open: a.opener(r), Copy: *copies})
		return cloneError(err)
	})
	out.Target, out.Source = t.url.String(), t.url.String()
	return task, errors.Join(err, done())
}

func (a *app) cloneStatusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Show the clones that this user made, the latest first", Args: cobra.NoArgs,
		Long: `Shows the latest clone of this user on this machine, running or ended, with its
stages; with --json all that are remembered.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document: all clones that are remembered")
	return a.command(c, func(context.Context, *cobra.Command, []string) error {
		list, err := a.clones()
		switch {
		case err != nil:
			return err
		case asJSON:
			return a.printJSON(list)
		case len(list) == 0:
			return a.say("no clones")
		}
		return a.writeClone(&list[0])
	})
}
