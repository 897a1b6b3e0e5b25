package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cisternfs/cistern/internal/vfs"
)

// ownerFile is owner.json in the state directory: whose local state it is.
type ownerFile struct {
	Format  int      `json:"format"`
	Volume  string   `json:"volume"`        // the volume's id
	URL     string   `json:"url,omitempty"` // where it was mounted from last
	Journal string   `json:"journal"`       // the journal's random identity, in hex; empty before there is one
	Reigns  []string `json:"reigns"`        // ids whose journal is not redone yet, the current one last
	// Aside: the journal is another reign's past and moves out of the way, which
	// a mount that ended early may have done already.
	Aside bool   `json:"aside,omitempty"`
	Sum   string `json:"crc32c"` // of the document with eight zeros here

	found   bool // there was a file that could be read
	damaged bool // there was one that could not

	fs   vfs.FS
	path string
}

const (
	ownerFormat   = 1
	maxReigns     = 1000
	ownerFileName = "owner.json"
	damagedSuffix = ".damaged" // of an owner.json whose damage was accepted
)

func newOwner(f vfs.FS, dir string) *ownerFile {
	return &ownerFile{Format: ownerFormat, fs: f, path: filepath.Join(dir, ownerFileName)}
}

// loadOwner reads a state directory's owner.json; a missing one gives an empty
// one.
func loadOwner(f vfs.FS, dir string) (*ownerFile, error) {
	o := newOwner(f, dir)
	body, err := readFile(f, o.path, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.path, err)
	}
	o.found = true
	if err := json.Unmarshal(body, o); err != nil {
		return nil, ownerDamaged(o.path, err)
	}
	sum := o.Sum
	if !sumMatches(body, sum) {
		return nil, ownerDamaged(o.path, errors.New("its checksum does not match"))
	}
	if o.Format > ownerFormat {
		return nil, fmt.Errorf("%w: %s has format %d", ErrNewerFormat, o.path, o.Format)
	}
	if again, err := o.encode(); err != nil || o.Sum != sum || !bytes.Equal(again, body) {
		return nil, ownerDamaged(o.path, errors.New("its checksum does not match"))
	}
	return o, nil
}

// StateVolume returns the id of the volume whose local state a directory holds; empty
// when it has no owner.json, or a damaged one, which a mount with that directory
// judges. Errors: ErrNewerFormat, those of the disk.
func StateVolume(f vfs.FS, dir string) (string, error) {
	o, err := loadOwner(f, dir)
	if errors.Is(err, ErrDamaged) {
		return "", nil // a flipped bit of the id must not make it another volume's
	}
	if err != nil {
		return "", err
	}
	return o.Volume, nil
}

func ownerDamaged(path string, why error) error {
	return fmt.Errorf("%w: %s can't be read (%w), which says whose the journal beside it is: bring it back, or mount with --accept-lost-journal to set the journal aside for `cistern salvage` and go on from the last commit", ErrDamaged, path, why)
}

// encode returns the document with its checksum, which it also puts into o.
func (o *ownerFile) encode() ([]byte, error) {
	body, err := encodeSummed(o, &o.Sum)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o.path, err)
	}
	return body, nil
}

// save makes the file durable: whole, or as it was.
func (o *ownerFile) save() error {
	body, err := o.encode()
	if err != nil {
		return err
	}
	return writeFile(o.fs, o.path, body)
}

func (o *ownerFile) has(reign string) bool { return slices.Contains(o.Reigns, reign) }

func (o *ownerFile) current() string { return o.Reigns[len(o.Reigns)-1] }

// readOwner reads owner.json, and refuses another volume's state directory.
func (v *Volume) readOwner() error {
	o, err := loadOwner(v.fs, v.opt.StateDir)
	if errors.Is(err, ErrDamaged) && v.opt.AcceptLostJournal {
		v.log.Warn("damage of owner.json was accepted: whose journal is there is not known", "error", err)
		o, err = newOwner(v.fs, v.opt.StateDir), nil
		o.damaged = true
	}
	if err != nil {
		return err
	}
	if o.Volume != "" && o.Volume != v.doc.ID {
		return fmt.Errorf("state directory %s belongs to volume %s, and %s is volume %s: choose another with --state, or delete it if that volume is gone", v.opt.StateDir, o.Volume, v.opt.URL, v.doc.ID)
	}
	v.owner = o
	return nil
}

// reign gives this mount an id and makes it durable before the lease names it.
func (v *Volume) reign() error {
	o := v.owner
	if err := v.unowned(o); err != nil {
		return err
	}
	if o.damaged { // somebody may still read in it whose the journal was
		if err := v.fs.Rename(o.path, o.path+damagedSuffix); err != nil {
			return fmt.Errorf("keep the damaged %s: %w", o.path, err)
		}
	}
	id, err := v.randomHex(16)
	if err != nil {
		return err
	}
	o.Volume, o.URL = v.doc.ID, v.opt.URL
	o.Reigns = append(o.Reigns, id)
	if len(o.Reigns) > maxReigns {
		return fmt.Errorf("state directory %s: mounted %d times without its journal being redone; something is wrong with the volume: see the log", v.opt.StateDir, len(o.Reigns))
	}
	return o.save()
}

// unowned looks for a journal beside a missing owner.json: the file is durable
// before there is a journal, so it was lost, and with it whose the journal is.
func (v *Volume) unowned(o *ownerFile) error {
	if o.found {
		return nil
	}
	dir := filepath.Join(v.opt.StateDir, "journal")
	list, err := v.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(list) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	if !v.opt.AcceptLostJournal {
		return fmt.Errorf("%w: %s is there and %s is not, which says whose it is: bring it back, or mount with --accept-lost-journal to set the journal aside", ErrLostJournal, dir, o.path)
	}
	// Its identity is not known: a new one names the place where it is kept.
	if o.Journal, err = v.randomHex(16); err != nil {
		return err
	}
	o.Aside = true
	return nil
}

// makeDir makes a directory and its missing parents, durably.
func makeDir(f vfs.FS, dir string) error {
	var missing []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := f.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		missing = append(missing, filepath.Dir(d))
	}
	if err := f.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	if len(missing) == 0 {
		missing = append(missing, filepath.Dir(filepath.Clean(dir))) // it may be there and not be durable
	}
	for _, d := range missing {
		if err := f.SyncDir(d); err != nil {
			return fmt.Errorf("sync %s: %w", d, err)
		}
	}
	return nil
}

// readFile reads a small file.
func readFile(f vfs.FS, name string, limit int64) ([]byte, error) {
	h, err := f.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	size, err := h.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("file of %d bytes is larger than expected", size)
	}
	body := make([]byte, size)
	if n, err := h.ReadAt(body, 0); n < len(body) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return body, nil
}

// writeFile replaces a small file durably.
func writeFile(f vfs.FS, name string, body []byte) error {
	tmp := name + ".new"
	h, err := f.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	_, err = h.WriteAt(body, 0)
	if err == nil {
		err = h.Sync()
	}
	if cerr := h.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = f.Rename(tmp, name)
	}
	if err == nil {
		err = f.SyncDir(filepath.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
