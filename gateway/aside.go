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
