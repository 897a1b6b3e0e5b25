package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// cloneMark is the file that says, in a directory that is being filled, of what:
// it goes when everything is durable. A file that has its size and its time of
// change is whole, since the time is set last; after a crash of the machine, which
// may have kept the one without the other, none is believed.
const cloneMark = ".cistern-clone"

// cloneMarkNew is the mark while it is written: it takes the mark's name whole.
const cloneMarkNew = cloneMark + ".new"

// cloneMarkDoc is what is in it.
type cloneMarkDoc struct {
	Source string `json:"source"`
	Volume string `json:"volume"`
	Commit uint64 `json:"commit"`
	Boot   string `json:"boot"` // of the machine
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // then nothing is believed
	}
	return strings.TrimSpace(string(b))
}

// cloneToDir fills a local directory.
func (a *app) cloneToDir(ctx context.Context, o *cloneOptions, from string, out *cloned) (*cloneTask, error) {
	s, t, n, err := a.cloneSource(ctx, o, from)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.to)
	if err != nil {
		return nil, localError(o.to, err)
	}
	why := map[string]string{stagePages: whyMoment, stageRedo: whyMoment, stageRestart: whyRestart, stageRecovery: whyRecovery}
	if !o.replace {
		why[stageDrop] = "--replace was not given"
	}
	begun := false
	if t.point == "" && !o.replace {
		if m, found := readCloneMark(dir); found && m.Source == t.url.String() && m.Commit != n {
			a.note("an earlier run had begun with commit %d: the copy goes on at that one", m.Commit)
			n, begun = m.Commit, true
		}
	}
	pin, err := a.pinClone(ctx, s, t, n, dir)
	if begun && (errors.Is(err, gateway.ErrCollected) || errors.Is(err, gateway.ErrNotExist)) {
		err = fmt.Errorf("%s holds the beginning of a copy that can't be gone on with, --replace begins anew: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	var kept sync.WaitGroup
	kept.Go(func() { pin.Keep(keep, quietLogger()) })
	defer func() {
		stop()
		kept.Wait()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), unpinWait)
		defer cancel()
		_ = pin.Release(end) // it ends by itself
	}()
	task, err := a.startClone(t.given(), dir, o.progress, why)
	if err != nil {
		return task, err
	}
	task.commit(pin.Commit().N)
	info, err := gateway.FindCommit(ctx, s, pin.Commit().N, t.url.String())
	if err != nil {
		return task, err
	}
	kv, index, err := viewKV(&info)
	if err != nil {
		return task, err
	}
	gv, err := gateway.OpenView(ctx, gateway.ViewOptions{Store: s, Keys: s.keys, URL: t.url.String(), KV: kv, Commit: info.ID.N, Fetches: s.requests.downloads})
	if err != nil {
		return task, errors.Join(err, kv.Close(), index.remove())
	}
	v := &view{View: gv, dir: index}
	f := &filler{a: a, v: gv, dir: dir, parallel: o.concurrency, task: task, mark: cloneMarkDoc{t.url.String(), gv.Doc().ID, info.ID.N, bootID()}}
	err = errors.Join(f.run(ctx, o.replace), v.close())
	at := time.Unix(0, info.Time).UTC()
	*out = cloned{Target: dir, Source: t.url.String(), Commit: info.ID.N, Time: &at, Resumed: f.resumed, Copied: f.done}
	return task, err
}

// pinClone keeps the commit while it is copied.
func (a *app) pinClone(ctx context.Context, s *store, t target, n uint64, dir string) (*gateway.Pin, error) {
	host := gateway.HostOwner("")
	return gateway.PinCommit(ctx, gateway.PinOptions{
		Store: s, URL: t.url.String(), Kind: gateway.PinMount, Name: "clone-to-" + host.Host, Commit: n, Lifetime: pinLifetime,
		Holder: fmt.Sprintf("%s, process %d, clone to %s", host.Host, host.PID, text(dir).shown()),
	})
}

// filler fills a directory from a view.
type filler struct {
	a        *app
	v        *gateway.View
	dir      string
	parallel int
	task     *cloneTask
	mark     cloneMarkDoc
	top      *os.File // the directory, open all the time, so that no error of its file system is missed
	believe  bool     // files that are there and look whole are
	resumed  bool

	dirs  []fillNode // parents before what is in them
	files []fillNode
	links []fillLink
	done  gateway.CopyProgress
	mu    sync.Mutex // guards done while files are copied
}

type fillNode struct {
	path string
	n    *gateway.Inode
}

// fillLink is a further name of a file.
type fillLink struct{ path, of string }

func (f *filler) run(ctx context.Context, replace bool) error {
	defer func() {
		if f.top != nil {
			f.top.Close() // only read
		}
	}()
	if err := f.begin(replace); err != nil {
		return err
	}
	err := f.task.run(stageFiles, func() error {
		if err := f.tree(ctx); err != nil {
			return err
		}
		if err := f.copyFiles(ctx); err != nil {
			return err
		}
		return f.rest(ctx)
	})
	if err != nil {
		return err
	}
	return f.task.run(stageSync, f.sync)
}

// begin makes the directory, or finds it empty or with an earlier attempt in it.
func (f *filler) begin(replace bool) error {
	if f.dir == "/" {
		return usage(errors.New("--to /: name a directory of its own"))
	}
	if _, ok, err := findMount(f.dir); err != nil || ok {
		return errors.Join(err, usage(fmt.Errorf("%s is a volume's mount: name a plain directory", f.dir)))
	}
	if err := f.apart(); err != nil {
		return err
	}
	below, err := mountBelow(f.dir)
	if err != nil {
		return err
	}
	if below != "" {
		return usage(fmt.Errorf("something is mounted on %s, below %s: unmount it, or name another directory", text(below).shown(), f.dir))
	}
	if err := os.Mkdir(f.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return usage(localError(f.dir, err))
	}
	if f.top, err = os.Open(f.dir); err != nil {
		return usage(localError(f.dir, err))
	}
	list, err := f.top.ReadDir(-1)
	if err != nil {
		return usage(localError(f.dir, err))
	}
	if !replace {
		// All that an attempt has left that ended while it wrote its mark.
		list = slices.DeleteFunc(list, func(e os.DirEntry) bool { return e.Name() == cloneMarkNew })
	}
	slices.SortFunc(list, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	old, found := readCloneMark(f.dir)
	same := found && old.Volume == f.mark.Volume && old.Commit == f.mark.Commit
	switch {
	case replace:
		if err := f.task.run(stageDrop, func() error { return f.drop(list) }); err != nil {
			return err
		}
	case same:
		f.resumed, f.believe = true, f.mark.Boot != "" && old.Boot == f.mark.Boot
	case found:
		return usage(fmt.Errorf("%s holds the beginning of a clone of %s@%d: go on with that one, or say --replace", f.dir, old.Source, old.Commit))
	case len(list) > 0:
		return usage(fmt.Errorf("%s is not empty (it holds %s): choose an empty directory, or say --replace", f.dir, text(list[0].Name()).shown()))
	}
	return f.writeMark()
}

// apart refuses a directory in which a volume of this clone lies, or which lies in one.
func (f *filler) apart() error {
	urls := []string{f.mark.Source}
	for _, a := range f.v.Doc().Ancestors {
		urls = append(urls, a.URL)
	}
	if o := f.v.Doc().Adopted; o != nil {
		urls = append(urls, o.URL)
	}
	dir := realPath(f.dir)
	for _, x := range urls {
		u, err := objstore.ParseURL(x)
		if err != nil || u.Scheme != objstore.SchemeFile {
			continue
		}
		if bucket := realPath(u.Path); within(dir, bucket) || within(bucket, dir) {
			return usage(fmt.Errorf("%s and the volume at %s lie in each other: name a directory elsewhere", f.dir, x))
		}
	}
	return nil
}

// realPath is a path without symbolic links, as far as it exists.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(realPath(parent), filepath.Base(path))
	}
	return path
}

// readCloneMark returns what an earlier attempt has begun in a directory, if it did.
func readCloneMark(dir string) (cloneMarkDoc, bool) {
	var d cloneMarkDoc
	body, err := os.ReadFile(filepath.Join(dir, cloneMark))
	return d, err == nil && json.Unmarshal(body, &d) == nil
}

// writeMark writes the mark whole and makes it durable, before the first file: a
// copy that a crash has cut short never looks complete.
func (f *filler) writeMark() error {
	body, err := json.Marshal(f.mark)
	if err != nil {
		return fmt.Errorf("mark of the clone: %w", err)
	}
	path := filepath.Join(f.dir, cloneMarkNew)
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return localError(path, err)
	}
	_, err = out.Write(append(body, '\n'))
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(path, filepath.Join(f.dir, cloneMark))
	}
	if err == nil {
		err = f.top.Sync()
	}
	if err != nil {
		return localError(path, err)
	}
	return nil
}

// drop deletes what the directory holds.
func (f *filler) drop(list []os.DirEntry) error {
	for i, e := range list {
		path := filepath.Join(f.dir, e.Name())
		if err := os.RemoveAll(path); err != nil {
			return localError(path, err)
		}
		f.task.moved(stageDrop, func(s *cloneStage) { s.Things, s.Finished = int64(len(list)), int64(i+1) })
	}
	return nil
}

// tree makes the directories and finds the files.
func (f *filler) tree(ctx context.Context) error {
	first := map[gateway.InodeID]string{}
	root, err := f.v.Inode(metadata.RootInode)
	if err != nil {
		return err
	}
	f.dirs = []fillNode{{f.dir, root}}
	for i := 0; i < len(f.dirs); i++ {
		if ctx.Err() != nil {
			return gateway.ErrInterrupted
		}
		if err := f.directory(f.dirs[i], first); err != nil {
			return err
		}
	}
	f.task.moved(stageFiles, func(s *cloneStage) { s.Things, s.Bytes = f.done.Things, f.done.Bytes })
	return nil
}

func (f *filler) directory(d fillNode, first map[gateway.InodeID]string) error {
	var names []metadata.Dentry
	if err := f.v.Names(d.n.ID, func(e metadata.Dentry) bool { names = append(names, e); return true }); err != nil {
		return err
	}
	slices.SortFunc(names, func(a, b metadata.Dentry) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range names {
		path := filepath.Join(d.path, e.Name)
		if d.n.ID == metadata.RootInode && (e.Name == cloneMark || e.Name == cloneMarkNew) {
			return fmt.Errorf("the volume has a file %s at its top, which would hide that the copy is not complete: rename it", e.Name)
		}
		n, err := f.v.Inode(e.Inode)
		if err != nil {
			return err
		}
		switch {
		case n.Mode&typeMask == typeDir:
			if err := os.Mkdir(path, 0o700); err != nil && !f.isDir(path) {
				return localError(path, err)
			}
			f.dirs = append(f.dirs, fillNode{path, n})
			continue
		case first[n.ID] != "":
			f.links = append(f.links, fillLink{path, first[n.ID]})
			continue
		}
		if n.Nlink > 1 {
			first[n.ID] = path
		}
		f.files = append(f.files, fillNode{path, n})
		f.done.Things++
		if n.Mode&typeMask == typeReg {
			f.done.Bytes += n.Alloc
		}
	}
	return nil
}

func (f *filler) isDir(path string) bool {
	st, err := os.Lstat(path)
	return f.resumed && err == nil && st.IsDir()
}
