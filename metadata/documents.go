package metadata

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Owner says which process holds a lease, for people and for the owner itself.
type Owner struct {
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	StateDir string `json:"state,omitempty"`
	Started  int64  `json:"-"` // nanoseconds since 1970
}

// Lease is who may write to a volume: the only document that is overwritten.
// A contender compares nonces on its own clock; nothing in it is a wall time that
// anyone decides by.
type Lease struct {
	Epoch      uint64
	Reign      string
	Owner      Owner
	Nonce      string // new at every write
	DurationMS int64
	Released   bool
	Hint       CommitID // a recent commit, where a search for the head may begin
}

type ownerDoc struct {
	Owner
	StateDir text `json:"state,omitempty"`
	Started  snum `json:"started,omitempty"`
}

type leaseDoc struct {
	docHead
	Epoch      num      `json:"epoch"`
	Reign      string   `json:"reign"`
	Owner      ownerDoc `json:"owner"`
	Nonce      string   `json:"nonce"`
	DurationMS int64    `json:"duration_ms"`
	Released   bool     `json:"released,omitempty"`
	Hint       *idDoc   `json:"hint,omitempty"`
}

type idDoc struct {
	Epoch num `json:"epoch"`
	N     num `json:"n"`
}

func newIDDoc(id CommitID) *idDoc {
	if id == (CommitID{}) {
		return nil
	}
	return &idDoc{Epoch: num(id.Epoch), N: num(id.N)}
}

func (d *idDoc) id() CommitID {
	if d == nil {
		return CommitID{}
	}
	return CommitID{Epoch: uint64(d.Epoch), N: uint64(d.N)}
}

// EncodeLease returns the lease's document.
func EncodeLease(l *Lease) []byte {
	return sealDoc(leaseDoc{
		docHead: docHead{Kind: "lease", V: formatVersion}, Epoch: num(l.Epoch), Reign: l.Reign,
		Owner: ownerDoc{Owner: l.Owner, StateDir: text(l.Owner.StateDir), Started: snum(l.Owner.Started)},
		Nonce: l.Nonce, DurationMS: l.DurationMS, Released: l.Released, Hint: newIDDoc(l.Hint),
	})
}

// DecodeLease verifies and reads a lease's document: ErrDamaged, ErrNewerFormat.
func DecodeLease(body []byte) (*Lease, error) {
	var d leaseDoc
	if err := openDoc(body, "lease", &d); err != nil {
		return nil, err
	}
	if d.DurationMS < 0 {
		return nil, damaged("lease", "a duration of %d ms", d.DurationMS)
	}
	l := &Lease{
		Epoch: uint64(d.Epoch), Reign: d.Reign, Owner: d.Owner.Owner, Nonce: d.Nonce,
		DurationMS: d.DurationMS, Released: d.Released, Hint: d.Hint.id(),
	}
	l.Owner.StateDir, l.Owner.Started = string(d.Owner.StateDir), int64(d.Owner.Started)
	return l, nil
}

// VolumeDoc is a volume's identity, written once when it is formatted.
type VolumeDoc struct {
	ID         string // uuid
	Name       string
	Format     int
	Compat     []string // what any release may ignore
	ROCompat   []string // who doesn't know one of these may read, not write
	Incompat   []string // who doesn't know one of these must keep off
	ObjectSize int64    // bytes of a slot
	Created    int64    // nanoseconds since 1970
	Settings   Settings // the first ones
	Compress   string   // how blocks are compressed: empty, lz4 or zstd
	Key        string   // name of the first encryption key; empty: nothing is encrypted
	PlainNames bool     // of an encrypted volume: documents and the paths in keys are not
	Adopted    *Adopted // where adopted objects lie; nil: there are none

	// Ancestors are what a clone shares its past with, the nearest last.
	Ancestors []Ancestor
}

// Adopted is the bucket whose objects a volume took over by reference. It deletes
// none of them.
type Adopted struct {
	URL string // of the whole bucket: s3://bucket, gs://bucket or file:///dir
}

// EncryptsDocuments says whether commits and manifests are encrypted.
func (v *VolumeDoc) EncryptsDocuments() bool { return v.Key != "" && !v.PlainNames }

// Features of a volume that a release must know to read it.
const (
	FeatureFrames    = "frames"              // blocks and extents may be frames
	FeatureDocuments = "encrypted-documents" // commits and manifests are encrypted
	FeatureAdopted   = "adopted-objects"     // slots may start from objects outside the volume
	FeatureAncestors = "ancestors"           // keys of earlier commits are other volumes'
)

type settingsDoc struct {
	QuotaBytes   snum   `json:"quota,omitempty"`
	RetentionSec snum   `json:"retention,omitempty"`
	Keys         string `json:"keys,omitempty"`
}

type volumeDoc struct {
	docHead
	ID         string      `json:"id"`
	Name       text        `json:"name,omitempty"`
	Compat     []string    `json:"compat,omitempty"`
	ROCompat   []string    `json:"ro_compat,omitempty"`
	Incompat   []string    `json:"incompat,omitempty"`
	ObjectSize int64       `json:"object_size"`
	Created    snum        `json:"created"`
	Settings   settingsDoc `json:"settings"`
	Compress   string      `json:"compress,omitempty"`
	Key        string      `json:"key,omitempty"`
	PlainNames bool        `json:"plain_names,omitempty"`
	Adopted    *adoptedDoc `json:"adopted,omitempty"`

	Ancestors []ancestorDoc `json:"ancestors,omitempty"`
}

type adoptedDoc struct {
	URL text `json:"url"`
}

func newAdoptedDoc(a *Adopted) *adoptedDoc {
	if a == nil {
		return nil
	}
	return &adoptedDoc{URL: text(a.URL)}
}

func (d *adoptedDoc) adopted() *Adopted {
	if d == nil {
		return nil
	}
	return &Adopted{URL: string(d.URL)}
}

// knownROCompat and knownIncompat list the flags that this release knows.
func knownROCompat() []string { return nil }
func knownIncompat() []string {
	return []string{FeatureFrames, FeatureDocuments, FeatureAdopted, FeatureAncestors}
}

// EncodeVolume returns the volume's document; Format 0 means the current one.
func EncodeVolume(v *VolumeDoc) []byte {
	format := v.Format
	if format == 0 {
		format = formatVersion
	}
	return sealDoc(volumeDoc{
		docHead: docHead{Kind: "volume", V: format}, ID: v.ID, Name: text(v.Name),
		Compat: v.Compat, ROCompat: v.ROCompat, Incompat: v.Incompat, ObjectSize: v.ObjectSize,
		Created: snum(v.Created), Settings: newSettingsDoc(v.Settings),
		Compress: v.Compress, Key: v.Key, PlainNames: v.PlainNames, Adopted: newAdoptedDoc(v.Adopted),
		Ancestors: newAncestorDocs(v.Ancestors),
	})
}

// DecodeVolume verifies and reads a volume's document. ErrNewerFormat names a
// higher format, or the incompatible features that this release does not know.
func DecodeVolume(body []byte) (*VolumeDoc, error) {
	var d volumeDoc
	if err := openDoc(body, "volume", &d); err != nil {
		return nil, err
	}
	if u := unknown(d.Incompat, knownIncompat()); u != "" {
		return nil, fmt.Errorf("the volume uses features that this release does not know (%s): %w", u, ErrNewerFormat)
	}
	if d.ObjectSize <= 0 || d.ObjectSize > maxSlotSize {
		return nil, damaged("volume", "an object size of %d bytes", d.ObjectSize)
	}
	list, err := ancestors(d.Ancestors)
	if err != nil {
		return nil, err
	}
	return &VolumeDoc{
		ID: d.ID, Name: string(d.Name), Format: d.V, Compat: d.Compat, ROCompat: d.ROCompat, Incompat: d.Incompat,
		ObjectSize: d.ObjectSize, Created: int64(d.Created), Settings: d.Settings.settings(),
		Compress: d.Compress, Key: d.Key, PlainNames: d.PlainNames, Adopted: d.Adopted.adopted(), Ancestors: list,
	}, nil
}

// Writable returns ErrNewerFormat with the reason when this release may only
// read the volume.
func (v *VolumeDoc) Writable() error {
	if u := unknown(v.ROCompat, knownROCompat()); u != "" {
		return fmt.Errorf("the volume can only be mounted read-only, it uses features that this release does not know (%s): %w", u, ErrNewerFormat)
	}
	return nil
}

func unknown(flags, known []string) string {
	var u []string
	for _, f := range flags {
		if !slices.Contains(known, f) {
			u = append(u, f)
		}
	}
	return strings.Join(u, ", ")
}

func newSettingsDoc(s Settings) settingsDoc {
	return settingsDoc{QuotaBytes: snum(s.QuotaBytes), RetentionSec: snum(s.RetentionSec), Keys: s.Keys}
}

func (d settingsDoc) settings() Settings {
	return Settings{QuotaBytes: int64(d.QuotaBytes), RetentionSec: int64(d.RetentionSec), Keys: d.Keys}
}

// Pin keeps a commit alive. Anyone may write one, without the lease.
type Pin struct {
	Kind   string // snapshot, clone or mount
	Name   string // as it was given; the key shows an edited form
	Commit CommitID
	Holder string // for people
	Expiry int64  // nanoseconds since 1970 by the clock of who wrote it; 0: never
	// Lifetime is how long it counts from when the store got it, so that nobody's
	// clock decides; 0: until Expiry.
	Lifetime time.Duration

	// What lists show without reading the commit; a pin may lack all of it.
	Created int64             // nanoseconds since 1970
	Time    int64             // of the commit, nanoseconds since 1970
	Totals  Totals            // of the commit
	Tags    map[string]string // of a snapshot
	// Database is where a server that starts on a snapshot goes on; nil: nobody looked.
	Database *PinDatabase
}

// PinDatabase is the end of the binary log of the database directory that a commit has.
type PinDatabase struct {
	Dir    string // of the data, from the top
	Server string // its version
	File   string // the last binary log
	Offset int64  // in it, behind the last whole group
	GTID   string // the position up to there
}

type pinDatabaseDoc struct {
	Dir    text   `json:"dir"`
	Server text   `json:"server"`
	File   text   `json:"file"`
	Offset snum   `json:"offset"`
	GTID   string `json:"gtid"`
}

func newPinDatabaseDoc(d *PinDatabase) *pinDatabaseDoc {
	if d == nil {
		return nil
	}
	return &pinDatabaseDoc{text(d.Dir), text(d.Server), text(d.File), snum(d.Offset), d.GTID}
}

func (d *pinDatabaseDoc) database() *PinDatabase {
	if d == nil {
		return nil
	}
	return &PinDatabase{string(d.Dir), string(d.Server), string(d.File), int64(d.Offset), d.GTID}
}

type pinDoc struct {
	docHead
	PinKind string `json:"pin"`
	Name    text   `json:"name,omitempty"`
	Commit  *idDoc `json:"commit"`
	Holder  text   `json:"holder,omitempty"`
	Expiry  snum   `json:"expiry,omitempty"`

	// Releases that know nothing of these read the pin all the same.
	Lifetime snum            `json:"lifetime,omitempty"`
	Created  snum            `json:"created,omitempty"`
	Time     snum            `json:"time,omitempty"`
	Used     snum            `json:"used,omitempty"`
	Inodes   num             `json:"inodes,omitempty"`
	Tags     map[string]text `json:"tags,omitempty"`
	Database *pinDatabaseDoc `json:"database,omitempty"`
}

// EncodePin returns the pin's document.
func EncodePin(p *Pin) []byte {
	return sealDoc(pinDoc{
		docHead: docHead{Kind: "pin", V: formatVersion}, PinKind: p.Kind, Name: text(p.Name),
		Commit: newIDDoc(p.Commit), Holder: text(p.Holder), Expiry: snum(p.Expiry),
		Lifetime: snum(p.Lifetime), Created: snum(p.Created), Time: snum(p.Time), Used: snum(p.Totals.UsedBytes), Inodes: num(p.Totals.Inodes), Tags: retyped[text](p.Tags),
		Database: newPinDatabaseDoc(p.Database),
	})
}

// DecodePin verifies and reads a pin's document: ErrDamaged, ErrNewerFormat.
func DecodePin(body []byte) (*Pin, error) {
	var d pinDoc
	if err := openDoc(body, "pin", &d); err != nil {
		return nil, err
	}
	if d.Commit == nil {
		return nil, damaged("pin", "it names no commit")
	}
	return &Pin{
		Kind: d.PinKind, Name: string(d.Name), Commit: d.Commit.id(), Holder: string(d.Holder), Expiry: int64(d.Expiry),
		Lifetime: time.Duration(d.Lifetime), Created: int64(d.Created), Time: int64(d.Time), Totals: Totals{UsedBytes: int64(d.Used), Inodes: uint64(d.Inodes)}, Tags: retyped[string](d.Tags),
		Database: d.Database.database(),
	}, nil
}

func retyped[To, From ~string](m map[string]From) map[string]To {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]To, len(m))
	for k, v := range m {
		out[k] = To(v)
	}
	return out
}

type sealDocument struct {
	docHead
	Epoch num    `json:"epoch"`
	N     num    `json:"n"`
	By    string `json:"by"`
	Took  num    `json:"took"`
}

// EncodeSeal returns the seal's document.
func EncodeSeal(s *Seal) []byte {
	return sealDoc(sealDocument{
		docHead: docHead{Kind: "seal", V: formatVersion}, Epoch: num(s.CommitID.Epoch), N: num(s.N), By: s.By, Took: num(s.Epoch),
	})
}

// DecodeSeal verifies and reads a seal's document: ErrDamaged, ErrNewerFormat.
func DecodeSeal(body []byte) (*Seal, error) {
	var d sealDocument
	if err := openDoc(body, "seal", &d); err != nil {
		return nil, err
	}
	return &Seal{CommitID: CommitID{Epoch: uint64(d.Epoch), N: uint64(d.N)}, By: d.By, Epoch: uint64(d.Took)}, nil
}

// DecodeCommitOrSeal reads what lies at a commit's key: exactly one of the two
// results is set when the error is nil.
func DecodeCommitOrSeal(body []byte) (*Commit, *Seal, error) {
	head, err := verifyDoc(body, "commit")
	if err != nil {
		return nil, nil, err
	}
	switch head.Kind {
	case "commit":
		c, err := DecodeCommit(body)
		return c, nil, err
	case "seal":
		s, err := DecodeSeal(body)
		return nil, s, err
	}
	return nil, nil, damaged("commit", "a document of kind %q", head.Kind)
}
