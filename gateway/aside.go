package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// asideDoc is aside.json, beside a journal that is set aside or about to be: what
// the journal builds on, which its own files don't tell.
type asideDoc struct {
	Format     int               `json:"format"`
	Volume     string            `json:"volume"`
	URL        string            `json:"url"`
	ObjectSize int64             `json:"object_size"`
	Journal    string            `json:"journal"`            // its identity, in hex
	Reason     string            `json:"reason"`             // for people
	Base       metadata.CommitID `json:"base"`               // its writer's last commit that is known; 0: none is
	BaseLSN    uint64            `json:"base_lsn,omitempty"` // up to here the bucket has the journal's records
	Sum        string            `json:"crc32c"`             // of the document with eight zeros here
}

const (
	asideFormat   = 1
	asideFileName = "aside.json"
	noSum         = "00000000"
)

// encodeSummed encodes a document whose last field is its checksum, which it
// also puts into sum.
func encodeSummed(doc any, sum *string) ([]byte, error) {
	*sum = noSum
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	*sum = fmt.Sprintf("%08x", checksum(body))
	copy(body[bytes.LastIndex(body, []byte(noSum)):], *sum)
	return append(body, '\n'), nil
}

// sumMatches says whether a document of encodeSummed has the checksum that it names.
func sumMatches(body []byte, sum string) bool {
	at := bytes.LastIndex(body, []byte(sum))
	if len(sum) != len(noSum) || at < 0 {
		return false
	}
	plain := bytes.Clone(bytes.TrimSuffix(body, []byte("\n")))
	copy(plain[at:], noSum)
	return fmt.Sprintf("%08x", checksum(plain)) == sum
}

// loadAside reads the document in a directory, or returns nil when there is none.
func loadAside(f vfs.FS, dir string) (*asideDoc, error) {
	path := filepath.Join(dir, asideFileName)
	body, err := readFile(f, path, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	d := &asideDoc{}
	if err := json.Unmarshal(body, d); err != nil {
		return nil, fmt.Errorf("%w: %s can't be read: %w", ErrDamaged, path, err)
	}
	if d.Format > asideFormat {
		return nil, fmt.Errorf("%w: %s has format %d", ErrNewerFormat, path, d.Format)
	}
	sum := d.Sum
	if again, err := encodeSummed(d, &d.Sum); err != nil || d.Sum != sum || !bytes.Equal(again, body) {
		return nil, fmt.Errorf("%w: %s: its checksum does not match", ErrDamaged, path)
	}
	return d, nil
}

// noteAside writes what this state directory's journal builds on, before it is
// set aside.
func (v *Volume) noteAside(reason string, base metadata.CommitID, lsn uint64) error {
	d := &asideDoc{
		Format: asideFormat, Volume: v.doc.ID, URL: v.opt.URL, ObjectSize: v.objectSize,
		Journal: v.owner.Journal, Reason: reason, Base: base, BaseLSN: lsn,
	}
	body, err := encodeSummed(d, &d.Sum)
	if err != nil {
		return err
	}
	return writeFile(v.fs, filepath.Join(v.opt.StateDir, asideFileName), body)
}

// baseOf returns the last commit of a journal whose newest epoch is given: from
// the bucket, or, when collection has taken that, from what the local index had.
func (v *Volume) baseOf(ctx context.Context, epoch uint64) (metadata.CommitID, uint64, error) {
	e, err := pathReader{v.store}.someCommit(ctx, epoch, metadata.CommitID{})
	local := v.found
	if local.Epoch > epoch {
		local = metadata.Head{} // brought forward by a mount that ended early
	}
	switch {
	case err == nil && e.id.N >= local.N:
		return e.id, e.commit.LastLSN, nil
	case err == nil || isDamage(err):
		return local.CommitID, local.LastLSN, nil
	}
	return local.CommitID, 0, err
}

// keptForSalvage tells whoever lost the volume where on this machine lies what the
// bucket has not.
func (v *Volume) keptForSalvage() string {
	return "what this mount acknowledged and the bucket has not is kept for `cistern salvage " + v.opt.StateDir + "`"
}

// asideAtClose sets the journal of a fenced mount aside when it holds what the
// bucket has not, and returns where it is; else it is forgotten. The journal and
// the cache are closed.
func (v *Volume) asideAtClose(reason error) (aside string, err error) {
	if !v.clean() {
		v.mu.RLock()
		head := v.head
		v.mu.RUnlock()
		if err := v.noteAside(reason.Error(), head.CommitID, head.LastLSN); err != nil {
			return "", err
		}
		v.owner.Aside = true
		if err := v.owner.save(); err != nil {
			return "", err
		}
		if aside, err = v.setAside(); err != nil {
			return "", err
		}
	}
	// The next mount begins a journal, and finds none that could be lost.
	v.owner.Journal, v.owner.Aside = "", false
	return aside, v.owner.save()
}

// errSetAside: the journal must be set aside before the volume can be opened.
var errSetAside = errors.New("journal is to be set aside")

// asideFrom is asideNext for a journal that is known to build on the volume's last
// commit.
func (v *Volume) asideFrom(reason string) error {
	if err := v.noteAside(reason, v.head.CommitID, v.head.LastLSN); err != nil {
		return err
	}
	return v.asideNext()
}

// asideWith is asideNext for a journal of which it is known what it builds on.
func (v *Volume) asideWith(ctx context.Context, epoch uint64, reason string) error {
	base, lsn, err := v.baseOf(ctx, epoch)
	if err != nil {
		return err
	}
	if err := v.noteAside(reason, base, lsn); err != nil {
		return err
	}
	return v.asideNext()
}

// asideNext makes the next attempt to open the volume set the journal aside.
// owner.json says so first: a mount that dies in between must not look like a
// lost journal, nor redo it after all.
func (v *Volume) asideNext() error {
	v.owner.Aside = true
	if err := v.owner.save(); err != nil {
		return err
	}
	return errSetAside
}

// setAside moves a journal that must not be redone here out of the way, and
// with it the cache, whose files hold what its references point at. It returns
// the directory that has them.
func (v *Volume) setAside() (to string, err error) {
	// The name is the same at every attempt, so that the two stay together.
	name := v.owner.Journal
	if name == "" {
		name = fmt.Sprintf("unowned-%d", v.lease.doc.Epoch)
	}
	to = filepath.Join(v.opt.StateDir, "quarantine", name)
	if err := makeDir(v.fs, to); err != nil {
		return "", err
	}
	for _, name := range []string{"journal", "cache", asideFileName} {
		from := filepath.Join(v.opt.StateDir, name)
		if _, err := v.fs.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue // there is nothing to keep
		} else if err != nil {
			return "", fmt.Errorf("set %s aside: %w", from, err) // a new journal would take its place
		}
		if _, err := v.fs.Stat(filepath.Join(to, name)); err == nil {
			continue // moved by an earlier attempt, which began a new one
		}
		if err := v.fs.Rename(from, filepath.Join(to, name)); err != nil {
			return "", fmt.Errorf("set %s aside: %w", from, err)
		}
	}
	for _, d := range []string{to, v.opt.StateDir} {
		if err := v.fs.SyncDir(d); err != nil {
			return "", fmt.Errorf("sync %s: %w", d, err)
		}
	}
	v.log.Warn("journal and cache were set aside: `cistern salvage` shows what only they have, and brings it back as files", "state", v.opt.StateDir, "directory", to)
	return to, nil
}
