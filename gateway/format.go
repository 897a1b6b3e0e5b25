package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// FormatOptions describe a new volume.
type FormatOptions struct {
	Store      objstore.Store
	URL        string
	ObjectSize int64             // bytes, default 5 MiB; 4 KiB to 64 MiB
	QuotaBytes int64             // 0: none
	Retention  time.Duration     // in whole seconds; 0: what is replaced goes with the next collection
	UID, GID   uint32            // of the top directory
	Compress   string            // blocks: empty or none, lz4 or zstd
	Keys       *Keys             // encrypts the volume with its first key; nil: it is not encrypted
	PlainNames bool              // of an encrypted volume: leave documents, and the paths in keys, as they are
	Adopted    *metadata.Adopted // where the objects are that the volume may take over by reference; nil: nowhere
	Now        func() time.Time
	Rand       io.Reader
	Owner      metadata.Owner
}

// Format makes an empty volume in a store and returns its identity. The prefix
// must be empty: ErrExist when it holds a volume or anything else.
func Format(ctx context.Context, o FormatOptions) (*metadata.VolumeDoc, error) {
	method, err := o.complete()
	if err != nil {
		return nil, err
	}
	if err := formatTarget(ctx, o.Store, o.URL); err != nil {
		return nil, err
	}
	doc, err := o.document(method)
	if err != nil {
		return nil, err
	}
	o.Store = unlock(o.Store, doc, o.Keys)
	if err := formatWrite(ctx, o, doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// complete sets the defaults, and says what is wrong.
func (o *FormatOptions) complete() (blockcodec.Method, error) {
	if o.ObjectSize == 0 {
		o.ObjectSize = 5 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	method, err := blockcodec.ParseMethod(o.Compress)
	switch {
	case err != nil:
		return method, fmt.Errorf("%w: %w", ErrInvalid, err)
	case o.ObjectSize < minObjectSize || o.ObjectSize > maxObjectSize || o.ObjectSize%4096 != 0:
		return method, fmt.Errorf("%w: object size %d: must be 4 KiB to 64 MiB and a multiple of 4 KiB", ErrInvalid, o.ObjectSize)
	case o.QuotaBytes < 0 || o.Retention < 0:
		return method, fmt.Errorf("%w: quota and retention can't be negative", ErrInvalid)
	case o.Retention%time.Second != 0:
		return method, fmt.Errorf("%w: retention %v: give whole seconds", ErrInvalid, o.Retention)
	case o.PlainNames && o.Keys.First() == nil:
		return method, fmt.Errorf("%w: names are readable in a volume that is not encrypted: give a key, or leave that out", ErrInvalid)
	}
	return method, nil
}

// document makes the volume's identity.
func (o *FormatOptions) document(method blockcodec.Method) (*metadata.VolumeDoc, error) {
	id, err := uuid.NewRandomFromReader(o.Rand)
	if err != nil {
		return nil, fmt.Errorf("random numbers: %w", err)
	}
	settings := metadata.Settings{QuotaBytes: o.QuotaBytes, RetentionSec: int64(o.Retention / time.Second)}
	doc := &metadata.VolumeDoc{ID: id.String(), ObjectSize: o.ObjectSize, Created: o.Now().UnixNano(), PlainNames: o.PlainNames, Adopted: o.Adopted}
	if method != blockcodec.None {
		doc.Compress = method.String()
	}
	if k := o.Keys.First(); k != nil {
		doc.Key, settings.Keys = k.Name(), k.Name()
	}
	doc.Settings = settings
	if doc.Compress != "" || doc.Key != "" {
		doc.Incompat = append(doc.Incompat, metadata.FeatureFrames)
	}
	if doc.EncryptsDocuments() {
		doc.Incompat = append(doc.Incompat, metadata.FeatureDocuments)
	}
	if doc.Adopted != nil {
		doc.Incompat = append(doc.Incompat, metadata.FeatureAdopted)
	}
	return doc, nil
}

// formatWrite writes the lease, the first commit and then the identity, and releases
// the lease.
func formatWrite(ctx context.Context, o FormatOptions, doc *metadata.VolumeDoc) error {
	var random [24]byte
	if _, err := io.ReadFull(o.Rand, random[:]); err != nil {
		return fmt.Errorf("random numbers: %w", err)
	}
	now, reign := doc.Created, hex.EncodeToString(random[:16])
	lease := metadata.Lease{Epoch: 1, Reign: reign, Owner: o.Owner, Nonce: hex.EncodeToString(random[16:]), DurationMS: 15000}
	version, err := formatPut(ctx, o, metadata.LeaseKey, metadata.EncodeLease(&lease))
	if err != nil {
		return err
	}
	first := metadata.Commit{
		CommitID: metadata.CommitID{Epoch: 1, N: 1}, Time: now, Writer: o.Owner.Host, Reign: reign, Settings: &doc.Settings,
		Totals: metadata.Totals{Inodes: 1, NextInode: metadata.RootInode + 1},
		Inodes: []metadata.Inode{{
			ID: metadata.RootInode, Mode: modeDir | 0o755, UID: o.UID, GID: o.GID, Nlink: 2, Parent: metadata.RootInode,
			Atime: now, Mtime: now, Ctime: now, Btime: now,
		}},
	}
	if _, err := formatPut(ctx, o, metadata.CommitKey(first.CommitID), metadata.EncodeCommit(&first)); err != nil {
		return err
	}
	if _, err := formatPut(ctx, o, metadata.VolumeKey, metadata.EncodeVolume(doc)); err != nil {
		return err
	}
	lease.Released, lease.Hint = true, first.CommitID
	if _, err := objstore.CompareAndSwap(ctx, o.Store, metadata.LeaseKey, version, metadata.EncodeLease(&lease)); err != nil {
		return storeError("release the lease", err)
	}
	return nil
}

func formatPut(ctx context.Context, o FormatOptions, key string, body []byte) (objstore.Version, error) {
	err := objstore.Create(ctx, o.Store, key, body)
	if errors.Is(err, objstore.ErrConditionFailed) {
		return "", fmt.Errorf("%w: somebody else is formatting %s at the same time", ErrExist, o.URL)
	}
	if err != nil {
		return "", storeErrorAt("write", key, err)
	}
	info, err := o.Store.Head(ctx, key)
	if err != nil {
		return "", storeErrorAt("read back", key, err)
	}
	return info.Version, nil
}

// formatTarget refuses a prefix that is not empty.
func formatTarget(ctx context.Context, s objstore.Store, url string) error {
	list, err := objstore.FirstKeys(ctx, s, 5)
	if err != nil {
		return storeErrorAt("list", url, err)
	}
	if len(list) == 0 {
		return nil
	}
	for _, i := range list {
		if i.Key == metadata.VolumeKey {
			return fmt.Errorf("%w: %s is a volume already; `cistern destroy` deletes one", ErrExist, url)
		}
	}
	if _, err := s.Head(ctx, metadata.VolumeKey); err == nil {
		return fmt.Errorf("%w: %s is a volume already; `cistern destroy` deletes one", ErrExist, url)
	}
	if _, err := s.Head(ctx, metadata.LeaseKey); err == nil {
		return fmt.Errorf("%w: %s holds a volume whose format did not end; unless it is under way, `cistern destroy --yes --takeover` clears it", ErrExist, url)
	}
	if inner := InnerVolume(ctx, s, list[0].Key); inner != "" {
		return fmt.Errorf("%w: %s is not empty (it holds %s, of the volume in %s): choose an empty prefix", ErrExist, url, list[0].Key, inner)
	}
	return fmt.Errorf("%w: %s is not empty (it holds %s): choose an empty prefix", ErrExist, url, list[0].Key)
}

// maxInner is how many prefixes of a key are looked at for a volume's.
const maxInner = 32

// InnerVolume returns which part of a key, from its beginning and without a slash at
// its end, is the prefix of a volume in s; empty when none is known to be. It takes a
// request for each slash in the key.
func InnerVolume(ctx context.Context, s objstore.Store, key string) string {
	for i, n := 0, 0; n < maxInner; n++ {
		next := strings.IndexByte(key[i:], '/')
		if next < 0 {
			break
		}
		i += next + 1
		if _, err := ReadVolumeDoc(ctx, objstore.WithPrefix(s, key[:i]), ""); err == nil || errors.Is(err, ErrNewerFormat) {
			return key[:i-1]
		}
	}
	return ""
}

// HostOwner says who this process is.
func HostOwner(stateDir string) metadata.Owner {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return metadata.Owner{Host: host, PID: os.Getpid(), StateDir: stateDir, Started: time.Now().UnixNano()}
}
