package columnstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"unicode/utf8"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/objstore"
)

const (
	typeMask = syscall.S_IFMT
	typeDir  = syscall.S_IFDIR

	// FingerprintAttr is the extended attribute that says what a file was imported
	// from.
	FingerprintAttr = "user.cistern.import"

	writePiece = 1 << 20
)

// unfit is what keeps one file out of the volume and nothing else.
type unfit struct {
	key    string
	reason string
}

func (u *unfit) Error() string { return u.reason }

func ownerOf(f storagemanager.File) gateway.Owner {
	if st, ok := f.Info.Sys().(*syscall.Stat_t); ok {
		return gateway.Owner{UID: st.Uid, GID: st.Gid}
	}
	return gateway.Owner{}
}

// file imports one file, or tells why not. The error is one that ends the import.
func (r *run) file(ctx context.Context, j job) error {
	one := &fileRun{run: r, job: j, ctx: ctx}
	err := one.do()
	var u *unfit
	if errors.As(err, &u) {
		r.problem(Problem{Path: j.file.Path, Key: u.key, Reason: u.reason, Left: true})
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", j.file.Path, err)
	}
	if r.Progress != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Progress(r.r)
	}
	return nil
}

// fileRun is the import of one file.
type fileRun struct {
	*run
	job      job
	ctx      context.Context
	meta     *storagemanager.Meta
	journals map[string]*storagemanager.JournalFile // by key; without those that are not there
	sum      string                                 // fingerprint
	done     Result                                 // what this file adds
}

func (f *fileRun) do() (err error) {
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.read(); err != nil {
		return err
	}
	there, err := f.there()
	if there || err != nil {
		return err
	}
	n, err := f.Volume.Tmpfile(f.ctx, f.job.parent, f.FileMode, ownerOf(f.job.file))
	if err != nil {
		return err
	}
	// Without a name it goes with the last reference.
	defer f.Volume.Forget(n.ID, 1)
	if err := f.fill(n.ID); err != nil {
		return err
	}
	linked, err := f.Volume.Link(f.ctx, n.ID, f.job.parent, path.Base(f.job.file.Path))
	if err != nil {
		return err
	}
	f.Volume.Forget(linked.ID, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.r.Files++
	f.r.Bytes += f.meta.Size()
	f.r.Adopted += f.done.Adopted
	f.r.Copied += f.done.Copied
	f.r.CopiedBytes += f.done.CopiedBytes
	f.r.FromCache += f.done.FromCache
	f.r.Journals += f.done.Journals
	f.r.Changes += f.done.Changes
	return nil
}

func (f *fileRun) close() error {
	var all error
	for _, j := range f.journals {
		all = errors.Join(all, j.Close())
	}
	return all
}

// read reads the metadata and the journals and takes their fingerprint.
func (f *fileRun) read() error {
	meta, body, err := storagemanager.ReadMeta(f.job.file.Meta)
	if errors.Is(err, storagemanager.ErrDamaged) {
		return &unfit{reason: "its metadata is " + err.Error()}
	}
	if err != nil {
		return err
	}
	f.meta, f.journals = meta, map[string]*storagemanager.JournalFile{}
	f.mu.Lock()
	for _, o := range meta.Objects {
		f.used[o.Key] = true
	}
	f.mu.Unlock()
	h := sha256.New()
	h.Write(body)
	for _, o := range meta.Objects {
		jf, err := f.Tree.OpenJournal(f.Prefix, o.Key)
		if errors.Is(err, storagemanager.ErrDamaged) {
			return &unfit{key: o.Key, reason: err.Error()}
		}
		if err != nil {
			return err
		}
		if jf == nil {
			continue
		}
		f.journals[o.Key] = jf
		fmt.Fprintf(h, "%s %d\n", o.Key, jf.Size)
		if _, err := io.Copy(h, io.NewSectionReader(jf, 0, jf.Size)); err != nil {
			return fmt.Errorf("journal of %s: %w", o.Key, err)
		}
	}
	f.sum = hex.EncodeToString(h.Sum(nil))
	return nil
}

// there says whether the volume has the file already.
func (f *fileRun) there() (bool, error) {
	n, err := f.Volume.Lookup(f.ctx, f.job.parent, path.Base(f.job.file.Path))
	if errors.Is(err, gateway.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Volume.Forget(n.ID, 1)
	was, err := f.Volume.GetXattr(f.ctx, n.ID, FingerprintAttr)
	switch {
	case errors.Is(err, gateway.ErrNoXattr):
		return false, &unfit{reason: "the volume has a file of this name that was not imported"}
	case err != nil:
		return false, err
	case string(was) != f.sum:
		return false, &unfit{reason: "it was imported before, and has changed in Storage Manager since: stop Storage Manager, and remove the volume's file to import it again"}
	}
	f.mu.Lock()
	f.r.Skipped++
	f.mu.Unlock()
	return true, nil
}

// fill gives the new file its bytes, its size, its time and its fingerprint.
func (f *fileRun) fill(ino gateway.InodeID) error {
	h, err := f.Volume.Open(f.ctx, ino)
	if err != nil {
		return err
	}
	defer h.Close() // gives a reference back and can't fail
	for i := range f.meta.Objects {
		next := int64(-1)
		if i+1 < len(f.meta.Objects) {
			next = f.meta.Objects[i+1].Offset
		}
		if err := f.object(h, f.meta.Objects[i], next); err != nil {
			return err
		}
	}
	size, mtime := f.meta.Size(), f.job.file.Info.ModTime().UnixNano()
	if _, err := f.Volume.SetAttr(f.ctx, ino, gateway.SetAttr{Size: &size}); err != nil {
		return err
	}
	if err := f.Volume.SetXattr(f.ctx, ino, FingerprintAttr, []byte(f.sum), 0); err != nil {
		return err
	}
	_, err = f.Volume.SetAttr(f.ctx, ino, gateway.SetAttr{Mtime: &mtime, Atime: &mtime})
	return err
}

// object puts one object, with its journal over it, into the file. next is where
// the file's next object begins; -1: there is none.
func (f *fileRun) object(h *gateway.Handle, o storagemanager.Object, next int64) error {
	data, inBucket, err := f.body(o)
	if err != nil {
		return err
	}
	j := f.journals[o.Key]
	stored := int64(len(data))
	adopt := f.Adopt && inBucket && stored > 0 && stored <= f.Volume.ObjectSize() && o.Offset%f.Volume.ObjectSize() == 0 &&
		(next < 0 || o.Offset+stored <= next) && utf8.ValidString(o.Key) && f.take(o.Key)
	if adopt {
		if err := h.Adopt(f.ctx, o.Offset, f.KeyPrefix+o.Key, data); err != nil {
			return err
		}
		f.done.Adopted++
		if stored > o.Length {
			if err := h.Fallocate(f.ctx, gateway.FallocPunchHole|gateway.FallocKeepSize, o.Offset+o.Length, stored-o.Length); err != nil {
				return err
			}
		}
	} else {
		data = data[:min(stored, o.Length)]
		if err := f.write(h, data, o.Offset); err != nil {
			return err
		}
		f.done.Copied++
		f.done.CopiedBytes += int64(len(data))
	}
	if j == nil {
		return nil
	}
	return f.merge(h, o, j)
}

// take says whether this file may adopt an object: whoever asks first.
func (f *fileRun) take(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.took[key] {
		return false
	}
	f.took[key] = true
	return true
}

// merge writes a journal's changes over an object.
func (f *fileRun) merge(h *gateway.Handle, o storagemanager.Object, j *storagemanager.JournalFile) error {
	f.done.Journals++
	if j.Torn > 0 {
		f.mu.Lock()
		f.r.Torn++
		f.mu.Unlock()
		f.problem(Problem{Path: f.job.file.Path, Key: o.Key, Reason: fmt.Sprintf("the last %d bytes of its journal are torn (%s): what Storage Manager had there is lost", j.Torn, j.Why)})
	}
	for _, e := range j.Entries {
		n := min(e.Length, o.Length-e.Offset)
		if n <= 0 {
			continue // behind the end, from before a truncate
		}
		buf := make([]byte, n)
		if _, err := j.ReadAt(buf, e.At); err != nil {
			return fmt.Errorf("journal of %s: %w", o.Key, err)
		}
		if err := f.write(h, buf, o.Offset+e.Offset); err != nil {
			return err
		}
		f.done.Changes++
	}
	return nil
}

func (f *fileRun) write(h *gateway.Handle, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := h.Write(f.ctx, p[:min(len(p), writePiece)], off, gateway.WriteFlags{})
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// body reads a whole object, from the bucket or else from Storage Manager's cache.
func (f *fileRun) body(o storagemanager.Object) (data []byte, inBucket bool, err error) {
	if size, ok := f.listed[o.Key]; ok {
		data, _, err = objstore.ReadAll(f.ctx, f.Bucket, f.KeyPrefix+o.Key, storagemanager.MaxObject)
		switch {
		case err == nil && int64(len(data)) == size:
			return data, true, nil
		case err == nil:
			return nil, false, &unfit{o.Key, fmt.Sprintf("the object has %d bytes, and the listing said %d: Storage Manager must not run during the import", len(data), size)}
		case errors.Is(err, objstore.ErrDamaged), errors.Is(err, objstore.ErrTooLarge):
			return nil, false, &unfit{o.Key, err.Error()}
		case !errors.Is(err, objstore.ErrNotExist):
			return nil, false, fmt.Errorf("read object %s: %w", o.Key, err)
		}
	}
	if name := f.Tree.CachePath(f.Prefix, o.Key); name != "" {
		data, err = os.ReadFile(name)
		if err == nil {
			f.done.FromCache++
			return data, false, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENAMETOOLONG) {
			return nil, false, fmt.Errorf("cached object: %w", err)
		}
	}
	f.mu.Lock()
	f.r.Missing++
	f.mu.Unlock()
	return nil, false, &unfit{o.Key, "the object is missing, in the bucket and in Storage Manager's cache"}
}
