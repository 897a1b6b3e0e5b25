package metadata

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

var update = flag.Bool("update", false, "write testdata/v1 anew")

// goldenCommit has every field set.
func goldenCommit() *Commit {
	seg := Ref{Key: SegmentKey(3, 100, 200, "5fa3c1d2e4b60718")}
	older := Ref{Volume: "11111111-2222-3333-4444-555555555555", Key: SegmentKey(1, 7, 9, "00")}
	return &Commit{
		CommitID: CommitID{Epoch: 3, N: 42}, Prev: Hash([]byte("prev")), FirstLSN: 100, LastLSN: 1<<60 + 1, Time: 1700000000123456789,
		Writer: "db1 pid 4711", Reign: "0123456789abcdef", Manifest: CommitID{Epoch: 2, N: 30},
		Settings: &Settings{QuotaBytes: 1 << 40, RetentionSec: 86400},
		Totals:   Totals{Inodes: 5, UsedBytes: 123456, NextInode: 9},
		Tags:     map[string]string{"gtid": "0-1-7", "a": "b<&>"},
		Segments: []Segment{{Key: seg.Key, Size: 4096, Live: 30, Birth: 42, Sum: 0xdeadbeef}},
		Objects:  []Object{{Key: "objects/x", Size: 5 << 20, Sum: 7}},
		Inodes: []Inode{
			{ID: 1, Mode: 0o40755, UID: 27, GID: 27, Nlink: 3, Atime: -5, Mtime: 1700000000123456789, Ctime: 1700000000123456789, Btime: 1, Parent: 1},
			{ID: 2, Mode: 0o100644, Nlink: 1, Rdev: 5, Size: 1 << 60, Staged: 1<<60 + 5, Alloc: 30, Xattrs: []Xattr{{Name: "user.\xff", Value: []byte{0, 0xff}}, {Name: "user.b", Value: []byte{}}}},
			{ID: 3, Mode: 0o120777, Nlink: 1, Target: []byte("../käse\xff")},
		},
		Gone: []InodeID{7, 1 << 60},
		Names: []NameChange{
			{Dentry: Dentry{Parent: 1, Name: "ibdata1", Inode: 2, Type: 8, Cookie: 11}, OldCookie: 3},
			{Dentry: Dentry{Parent: 1, Name: "not \xfe utf-8", Inode: 3, Type: 10, Cookie: 12}},
			{Dentry: Dentry{Parent: 1, Name: "gone", Cookie: 4}},
		},
		Slots: []SlotChange{
			{Inode: 2, Slot: 0, Add: []Patch{
				{Commit: 42, Off: 0, Len: 10, Seg: seg, SegOff: 64, Sum: 1},
				{Commit: 42, Off: 16384, Len: 20, Seg: seg, SegOff: 74, Sum: 0xffffffff},
				{Commit: 42, Off: 20000, Len: 300000, Zero: true},
				{Commit: 42, Off: 400000, Len: 5, Seg: older, SegOff: 9, Sum: 3},
			}},
			{Inode: 2, Slot: 9, Remove: true, Base: &Base{Ref: Ref{Volume: older.Volume, Key: "objects/y"}, Len: 200000, Birth: 42, Sums: []uint32{1, 0xfffffffe}},
				DropThrough: 40, Drop: []PatchKey{{41, 0}, {41, 5}, {40, 7}}},
		},
		Orphans: []InodeID{5}, NoOrphans: []InodeID{6},
		Live:      []Segment{{Key: "segments/0000000001/z.seg", Live: 12}},
		Refs:      []RefCount{{Key: "objects/x", Count: 2}},
		Dead:      []Dead{{Key: "objects/old", Size: 5, Birth: 3, Death: 42, Time: 1700000000123456789, State: DeadCondemned}},
		Condemned: []string{"objects/c"}, TakenBack: []string{"objects/t"}, Collected: []string{"objects/d"}, Horizon: 17, Undead: []string{"objects/u"},
	}
}

// goldenFrames is a commit of a volume whose blocks and extents are frames.
func goldenFrames() *Commit {
	key, old := "0011223344556677", "8899aabbccddeeff"
	seg := Ref{Key: SegmentKey(3, 100, 200, "5fa3c1d2e4b6")}
	parent := Ref{Volume: "11111111-2222-3333-4444-555555555555", Key: SegmentKey(1, 7, 9, "00")}
	born := Ref{Volume: parent.Volume, Key: "objects/z"}
	return &Commit{
		CommitID: CommitID{Epoch: 3, N: 42}, Time: 1700000000123456789,
		Settings: &Settings{RetentionSec: 86400, Keys: key + "," + old},
		Segments: []Segment{{Key: "segments/plain"}, {Key: seg.Key, Size: 4096, Live: 30, Birth: 42, Sum: 0xdeadbeef}},
		Slots: []SlotChange{
			{Inode: 2, Slot: 0, Add: []Patch{
				{Commit: 42, Off: 0, Len: 10, Seg: seg, SegOff: 64, Sum: 1, Stored: 35, Cipher: Cipher{Key: key}},
				{Commit: 42, Off: 16384, Len: 131072 - 16384, Seg: seg, SegOff: 99, Sum: 2, Stored: 131100, Cipher: Cipher{Key: key}},
				{Commit: 42, Off: 200000, Len: 300000, Zero: true},
				{Commit: 42, Off: 600000, Len: 5, Seg: parent, SegOff: 9, Sum: 3, Stored: 30, Cipher: Cipher{Key: old, Born: Ref{Volume: born.Volume, Key: "segments/born"}}},
				{Commit: 42, Off: 700000, Len: 5, Seg: Ref{Key: "segments/plain"}, SegOff: 9, Sum: 3},
			}},
			{Inode: 2, Slot: 9, Base: &Base{Ref: Ref{Key: "objects/y"}, Len: 200000, Birth: 42, Sums: []uint32{1, 0xfffffffe}, Stored: []uint32{131097, 70}, Cipher: Cipher{Key: old, Born: born}}},
			{Inode: 3, Slot: 0, Base: &Base{Ref: Ref{Key: "objects/x"}, Len: 5, Birth: 42, Sums: []uint32{1}, Stored: []uint32{6}}},
		},
	}
}

func goldenManifest() *Manifest {
	id := CommitID{Epoch: 3, N: 42}
	return &Manifest{
		CommitID: id,
		Head: Head{CommitID: id, Hash: Hash([]byte("c")), LastLSN: 200, Time: 1700000000123456789, Manifest: CommitID{Epoch: 2, N: 30},
			Settings: Settings{RetentionSec: 86400}, Totals: Totals{Inodes: 5, UsedBytes: 9, NextInode: 10}, Horizon: 17},
		Pages: []Page{{Born: CommitID{Epoch: 2, N: 30}, Hash: Hash([]byte("p")), Size: 100, Raw: 1000, Sum: 77, Records: 9}},
	}
}

// document is one kind of document for tables.
type document struct {
	name   string
	value  any
	encode func() []byte
	decode func([]byte) (any, error)
}

// kind is the document's: a name may go on after it.
func (d *document) kind() string {
	kind, _, _ := strings.Cut(d.name, "-")
	return kind
}

func anyOf[T any](fn func([]byte) (*T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) {
		v, err := fn(b)
		return v, err
	}
}

func documents() []document {
	commit, m := goldenCommit(), goldenManifest()
	seal := &Seal{CommitID: CommitID{Epoch: 3, N: 43}, By: "fedcba9876543210", Epoch: 4}
	lease := &Lease{Epoch: 4, Reign: "fedcba9876543210", Owner: Owner{Host: "db2", PID: 99, StateDir: "/var/lib/c\xff", Started: 1700000000123456789},
		Nonce: "n1", DurationMS: 15000, Released: true, Hint: CommitID{Epoch: 3, N: 42}}
	volume := &VolumeDoc{ID: "11111111-2222-3333-4444-555555555555", Name: "vol", Format: 1, Compat: []string{"a"}, ROCompat: []string{"r"},
		ObjectSize: 5 << 20, Created: 1700000000123456789, Settings: Settings{QuotaBytes: 1 << 50, RetentionSec: 86400}}
	frames := goldenFrames()
	secret := &VolumeDoc{ID: volume.ID, Format: 1, Incompat: []string{FeatureFrames, FeatureDocuments}, ObjectSize: 5 << 20, Created: 1700000000123456789,
		Settings: Settings{Keys: "0011223344556677"}, Compress: "zstd", Key: "0011223344556677", PlainNames: true}
	adopted := &VolumeDoc{ID: volume.ID, Format: 1, Incompat: []string{FeatureAdopted}, ObjectSize: 5 << 20, Created: 1700000000123456789,
		Settings: Settings{RetentionSec: 86400}, Adopted: &Adopted{URL: "s3://bucket"}}
	clone := &VolumeDoc{ID: volume.ID, Format: 1, Incompat: []string{FeatureAncestors}, ObjectSize: 5 << 20, Created: 1700000000123456789, Ancestors: []Ancestor{
		{Volume: "a1", Through: CommitID{Epoch: 2, N: 40}, URL: "s3://b/one", Place: "a2"}, {Volume: "a2", Through: CommitID{Epoch: 7, N: 99}, URL: "s3://b/two\xff", Place: "a2"},
	}}
	detached := &Detached{Volume: volume.ID, Time: 1700000000123456789}
	pin := &Pin{Kind: "snapshot", Name: "before/upgrade", Commit: CommitID{Epoch: 3, N: 42}, Holder: "dba@db1", Expiry: 1800000000000000000}
	snapshot := &Pin{Kind: "snapshot", Name: "nightly", Commit: CommitID{Epoch: 3, N: 42}, Holder: "dba@db1", Created: 1700000000123456789,
		Time: 1700000000000000001, Totals: Totals{Inodes: 17, UsedBytes: 1 << 60}, Tags: map[string]string{"why": "upgrade\xff", "a": ""}}
	claim := &Pin{Kind: "claim", Name: "mount", Commit: CommitID{Epoch: 3, N: 42}, Expiry: 1800000000000000000, Lifetime: 24 * time.Hour, Created: 1700000000123456789}
	database := &Pin{Kind: "snapshot", Name: "db", Commit: CommitID{Epoch: 3, N: 42}, Created: 1700000000123456789, Time: 1700000000000000001,
		Database: &PinDatabase{Dir: "mysql\xff", Server: "11.8.8-MariaDB-log", File: "mysql-bin.000012", Offset: 1 << 60, GTID: "0-1-5518,3-11-8"}}
	return []document{
		{"commit", commit, func() []byte { return EncodeCommit(commit) }, anyOf(DecodeCommit)},
		{"seal", seal, func() []byte { return EncodeSeal(seal) }, anyOf(DecodeSeal)},
		{"lease", lease, func() []byte { return EncodeLease(lease) }, anyOf(DecodeLease)},
		{"volume", volume, func() []byte { return EncodeVolume(volume) }, anyOf(DecodeVolume)},
		{"pin", pin, func() []byte { return EncodePin(pin) }, anyOf(DecodePin)},
		{"pin-snapshot", snapshot, func() []byte { return EncodePin(snapshot) }, anyOf(DecodePin)},
		{"pin-lifetime", claim, func() []byte { return EncodePin(claim) }, anyOf(DecodePin)},
		{"pin-database", database, func() []byte { return EncodePin(database) }, anyOf(DecodePin)},
		{"commit-frames", frames, func() []byte { return EncodeCommit(frames) }, anyOf(DecodeCommit)},
		{"volume-clone", clone, func() []byte { return EncodeVolume(clone) }, anyOf(DecodeVolume)},
		{"detached", detached, func() []byte { return EncodeDetached(detached) }, anyOf(DecodeDetached)},
		{"volume-frames", secret, func() []byte { return EncodeVolume(secret) }, anyOf(DecodeVolume)},
		{"volume-adopted", adopted, func() []byte { return EncodeVolume(adopted) }, anyOf(DecodeVolume)},
		{"manifest", m, func() []byte { return EncodeManifest(m) }, anyOf(DecodeManifest)},
	}
}

// golden compares with, or with -update writes, a file of testdata/v1.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "v1", name)
	if *update {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the bytes changed:\n got %s\nwant %s", name, got, want)
	}
	return want
}

func TestDocuments_Encode_GoldenBytesAndBack(t *testing.T) {
	for _, d := range documents() {
		body := golden(t, d.name+".json", d.encode())
		v, err := d.decode(body)
		if err != nil {
			t.Errorf("%s: %v", d.name, err)
		} else if !reflect.DeepEqual(v, d.value) {
			t.Errorf("%s:\n got %+v\nwant %+v", d.name, v, d.value)
		}
	}
}

func TestDocuments_Decode_EveryFlippedByteIsDamage(t *testing.T) {
	for _, d := range documents() {
		body := d.encode()
		for i := range body {
			for _, bad := range [][]byte{body[:i], flip(body, i)} {
				if _, err := d.decode(bad); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), d.kind()) {
					t.Fatalf("%s, byte %d: %v", d.name, i, err)
				}
			}
		}
	}
}

func flip(b []byte, i int) []byte {
	c := bytes.Clone(b)
	c[i] ^= 0x10
	return c
}

// resum gives an edited document its right checksum.
func resum(b []byte) []byte {
	if len(b) < len(crcTail) {
		return b
	}
	b = append(bytes.Clone(b[:len(b)-len(crcTail)]), crcTail...)
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	copy(b[len(b)-10:], fmt.Sprintf("%08x", sum))
	return b
}

func TestDocuments_Decode_NewerAndUnknown(t *testing.T) {
	for _, d := range documents() {
		newer := resum(bytes.Replace(d.encode(), []byte(`"v":1`), []byte(`"v":2`), 1))
		if _, err := d.decode(newer); !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("%s: %v", d.name, err)
		}
		more := resum(bytes.Replace(d.encode(), []byte(`"v":1`), []byte(`"v":1,"added_later":{"x":[1]}`), 1))
		if v, err := d.decode(more); err != nil || !reflect.DeepEqual(v, d.value) {
			t.Errorf("%s with a field more: %v", d.name, err)
		}
		other := resum(bytes.Replace(d.encode(), []byte(`{"kind":"`), []byte(`{"kind":"x`), 1))
		if _, err := d.decode(other); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s of another kind: %v", d.name, err)
		}
	}
	v := &VolumeDoc{ID: "x", ObjectSize: 1 << 20, Incompat: []string{"erasure", "dedup"}}
	if _, err := DecodeVolume(EncodeVolume(v)); !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "erasure, dedup") {
		t.Errorf("incompatible flags: %v", err)
	}
	v = &VolumeDoc{ID: "x", ObjectSize: 1 << 20, ROCompat: []string{"tiers"}, Compat: []string{"any"}}
	got, err := DecodeVolume(EncodeVolume(v))
	must(t, err)
	if err := got.Writable(); !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "tiers") {
		t.Errorf("read-only flags: %v", err)
	}
	got.ROCompat = nil
	must(t, got.Writable())
}

func TestDecodeCommitOrSeal_TellsThemApart(t *testing.T) {
	for _, d := range documents() {
		c, s, err := DecodeCommitOrSeal(d.encode())
		switch d.kind() {
		case "commit":
			if err != nil || s != nil || !reflect.DeepEqual(c, d.value) {
				t.Errorf("commit: %v", err)
			}
		case "seal":
			if err != nil || c != nil || !reflect.DeepEqual(s, d.value) {
				t.Errorf("seal: %v", err)
			}
		default:
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", d.name, err)
			}
		}
	}
}

func TestEncodeCommit_IsCompact(t *testing.T) {
	small := &Commit{
		CommitID: CommitID{Epoch: 12, N: 123456}, Prev: Hash(nil), FirstLSN: 1e9, LastLSN: 1e9, Time: 17e17, Writer: "db1/1234", Reign: "0123456789abcdef",
		Manifest: CommitID{Epoch: 12, N: 123000}, Totals: Totals{Inodes: 1000, UsedBytes: 1e12, NextInode: 2000},
		Inodes: []Inode{{ID: 1500, Mode: 0o100660, UID: 999, GID: 999, Nlink: 1, Size: 1e10, Alloc: 1e10, Mtime: 17e17, Ctime: 17e17, Btime: 17e17, Atime: 17e17}},
	}
	seg := Ref{Key: SegmentKey(12, 1e9, 1e9, "0123456789abcdef")}
	small.Segments = []Segment{{Key: seg.Key, Size: 1100, Live: 1024, Birth: 123456, Sum: 4e9}}
	small.Slots = []SlotChange{{Inode: 1500, Slot: 1907, Add: []Patch{{Commit: 123456, Off: 4e6, Len: 1024, Seg: seg, SegOff: 64, Sum: 4e9}}}}
	n := len(EncodeCommit(small))
	t.Logf("one patch: %d bytes", n)
	if n > 850 {
		t.Errorf("a commit of one patch takes %d bytes", n)
	}
	small.Slots = nil
	for i := range uint32(100) { // each in a slot of its own, not adjacent in the segment
		small.Slots = append(small.Slots, SlotChange{Inode: 1500, Slot: 1900 + i, Add: []Patch{{Commit: 123456, Off: 4e6 + i, Len: 16384, Seg: seg, SegOff: 64 + i*16400, Sum: 4e9}}})
	}
	n = len(EncodeCommit(small))
	t.Logf("100 patches: %d bytes", n)
	if n > 5800 {
		t.Errorf("a commit of 100 patches takes %d bytes", n)
	}
}

// goldenRecords is one key and value of each kind of the index.
func goldenRecords() []op {
	c := goldenCommit()
	k := slotKey{2, 9}
	pk := func(p *Patch) []byte { return patchKey(k, p.Key()) }
	add := c.Slots[0].Add
	m := goldenManifest()
	one := func(key []byte, v uint64) op { return op{key, encodeUint(key, v)} }
	return []op{
		one(localKey(2, 5), 0xdeadbeef),
		{deadKey(42, "objects/old"), encodeDead(&c.Dead[0])},
		one(keyString(kindDeadKey, "objects/old"), 42),
		{cookieKey(1, 12), encodeCookie(&c.Names[1].Dentry)},
		{keyString(kindSegment, c.Segments[0].Key), encodeSegment(&c.Segments[0])},
		{headKey(), encodeHead(&m.Head)},
		{inodeKey(1), encodeInode(&c.Inodes[0])},
		{inodeKey(2), encodeInode(&c.Inodes[1])},
		{inodeKey(3), encodeInode(&c.Inodes[2])},
		{applyingKey(), encodeApplying(applying{id: c.CommitID, hash: "h"})},
		{nameKVKey(1, "not \xfe utf-8"), encodeName(&c.Names[1].Dentry)},
		one(orphanKey(5), 1),
		one(keyString(kindCount, "objects/x"), 2),
		{baseKey(k), encodeBase(baseKey(k), c.Slots[1].Base)},
		{pk(&add[1]), encodePatch(pk(&add[1]), &add[1])},
		{pk(&add[2]), encodePatch(pk(&add[2]), &add[2])},
		{pk(&add[3]), encodePatch(pk(&add[3]), &add[3])},
	}
}

// frameRecords are the records that know of frames.
func frameRecords() []op {
	c := goldenFrames()
	head := Head{CommitID: c.CommitID, Hash: "h", Settings: *c.Settings}
	list := []op{{headKey(), encodeHead(&head)}}
	for _, s := range c.Slots {
		k := slotKey{s.Inode, s.Slot}
		if s.Base != nil {
			list = append(list, op{baseKey(k), encodeBase(baseKey(k), s.Base)})
		}
		for i := range s.Add {
			key := patchKey(k, s.Add[i].Key())
			list = append(list, op{key, encodePatch(key, &s.Add[i])})
		}
	}
	return list
}

func TestRecords_Encode_GoldenFrames(t *testing.T) {
	var text, lines bytes.Buffer
	for _, r := range frameRecords() {
		fmt.Fprintf(&text, "%s %s\n", hex.EncodeToString(r.key), hex.EncodeToString(r.value))
		line, err := encodeLine(r.key, r.value)
		must(t, err)
		if line != nil {
			lines.Write(append(line, '\n'))
			must(t, new(lineReader).decode(line, func(k, v []byte) {
				if !bytes.Equal(k, r.key) || !bytes.Equal(v, r.value) {
					t.Errorf("%s comes back as %x, not %x", recordName(r.key), v, r.value)
				}
			}))
		}
	}
	golden(t, "index-records-frames.txt", text.Bytes())
	golden(t, "manifest-page-frames.jsonl", lines.Bytes())
	c := goldenFrames()
	for _, r := range frameRecords()[1:] {
		s := &c.Slots[0]
		if ino, no := InodeID(keyUint(r.key, 1)), uint32(keyUint(r.key, 5)); ino == 3 || no == 9 {
			b, err := decodeBase(r.key, r.value)
			must(t, err)
			if want := c.Slots[1+int(ino-2)].Base; !reflect.DeepEqual(b, want) {
				t.Errorf("the base comes back as %+v, not %+v", b, want)
			}
			continue
		}
		p, err := decodePatch(r.key, r.value)
		must(t, err)
		if !slices.Contains(s.Add, p) {
			t.Errorf("a patch comes back as %+v", p)
		}
	}
	head, err := decodeHead(frameRecords()[0].value)
	must(t, err)
	if names := head.Settings.KeyNames(); len(names) != 2 || names[0] != "0011223344556677" {
		t.Errorf("the head names the keys %q", names)
	}
}

func TestRecords_Encode_GoldenBytes(t *testing.T) {
	var text, lines bytes.Buffer
	for _, r := range goldenRecords() {
		fmt.Fprintf(&text, "%s %s\n", hex.EncodeToString(r.key), hex.EncodeToString(r.value))
		if r.key[0] == kindApplying {
			continue
		}
		line, err := encodeLine(r.key, r.value)
		must(t, err)
		if line != nil {
			lines.Write(append(line, '\n'))
		}
	}
	golden(t, "index-records.txt", text.Bytes())
	want := golden(t, "manifest-page.jsonl", lines.Bytes())

	// A page's lines give the same records back, and a stored page opens.
	got := map[string]string{}
	for line := range bytes.Lines(want) {
		must(t, new(lineReader).decode(bytes.TrimSpace(line), func(k, v []byte) { got[string(k)] = string(v) }))
	}
	for _, r := range goldenRecords() {
		switch r.key[0] {
		case kindLocal, kindHead, kindApplying:
		default:
			if got[string(r.key)] != string(r.value) {
				t.Errorf("%s comes back as %x, not %x", recordName(r.key), got[string(r.key)], r.value)
			}
		}
	}
	path := filepath.Join("testdata", "v1", "manifest-page.zst")
	if *update {
		enc, err := zstd.NewWriter(nil)
		must(t, err)
		must(t, os.WriteFile(path, enc.EncodeAll(want, nil), 0o644))
	}
	body, err := os.ReadFile(path)
	must(t, err)
	p := Page{Hash: Hash(want), Size: int64(len(body)), Raw: int64(len(want)), Sum: crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))}
	var back bytes.Buffer
	must(t, ReadPage(&p, body, func(line []byte) error {
		back.Write(append(bytes.Clone(line), '\n'))
		return nil
	}))
	if !bytes.Equal(back.Bytes(), want) {
		t.Error("the stored page has other lines")
	}
}

func TestRecords_Decode_EveryFlippedByteIsDamage(t *testing.T) {
	for _, r := range append(goldenRecords(), frameRecords()...) {
		for i := range r.value {
			for _, bad := range [][]byte{flip(r.value, i), r.value[:i]} {
				if err := decodeAny(r.key, bad); !errors.Is(err, ErrDamaged) {
					t.Fatalf("%s, byte %d: %v", recordName(r.key), i, err)
				}
			}
		}
		// A value under another key of its kind is damage, too.
		other := append(bytes.Clone(r.key), 'x')
		if err := decodeAny(other, r.value); !errors.Is(err, ErrDamaged) && r.key[0] != kindHead && r.key[0] != kindApplying {
			t.Errorf("the value of the %s under another key: %v", recordName(r.key), err)
		}
	}
}

func decodeAny(key, value []byte) error {
	var err error
	switch key[0] {
	case kindHead:
		_, err = decodeHead(value)
	case kindApplying:
		_, err = decodeApplying(value)
	case kindCookie:
		_, err = decodeCookie(key, value)
	case kindLocal, kindDeadKey:
		_, err = decodeUint(key, value)
	default:
		_, err = encodeLine(key, value)
	}
	return err
}

func TestKeys_Parse_GivesBackWhatWasFormatted(t *testing.T) {
	id := CommitID{Epoch: 12, N: 345}
	if k := CommitKey(id); k != "commits/0000000012/00000000000000000345.json" {
		t.Error(k)
	}
	if got, ok := ParseCommitKey(CommitKey(id)); !ok || got != id {
		t.Error(got, ok)
	}
	if got, ok := ParseManifestKey(ManifestKey(id)); !ok || got != id {
		t.Error(got, ok)
	}
	if got, ok := ParsePageKey(PageKey(id, "abc")); !ok || got != id {
		t.Error(got, ok)
	}
	if e, ok := SegmentEpoch(SegmentKey(12, 1, 2, "r")); !ok || e != 12 {
		t.Error(e, ok)
	}
	uuid := ObjectUUID(0xabcdef012345, [10]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	key := ObjectKey(uuid, 5<<20, 5<<20, "/000.dir/käse/FILE000.cdf")
	if want := "objects/abcdef01-2345-0102-0304-05060708090a_5242880_5242880_000.dir~k__se~FILE000.cdf"; key != want {
		t.Error(key)
	}
	if e, ok := ObjectEpoch(key); !ok || e != 0xabcdef012345 {
		t.Error(e, ok)
	}
	if k := ObjectKey(uuid, 0, 1, strings.Repeat("p/", 200)); len(k) > 255 || !strings.HasSuffix(k, "p~p~") {
		t.Error(k)
	}
	if name, random, ok := ParsePinKey(PinKey("my snap~1/ü", "abcd")); !ok || name != "my_snap_1___" || random != "abcd" {
		t.Error(name, random, ok)
	}
	for _, bad := range []string{
		"", "commits/", "commits/12/345.json", "commits/0000000012/00000000000000000345", "commits/+000000012/00000000000000000345.json",
		"commits/0000000012/99999999999999999999.json", "other/0000000012/00000000000000000345.json", "commits/0000000012/00000000000000000345.json/x",
		"manifests/pages/0000000012-00000000000000000345-", "manifests/pages/x-y-z", "segments/12/a.seg", "segments/0000000012", "segments/0000000012/a",
		"objects/zzzzzzzz-zzzz-x", "objects/", "pins/x.json", "pins/~r.json", "pins/a~.json",
	} {
		_, ok1 := ParseCommitKey(bad)
		_, ok2 := ParseManifestKey(bad)
		_, ok3 := ParsePageKey(bad)
		_, ok4 := SegmentEpoch(bad)
		_, ok5 := ObjectEpoch(bad)
		_, _, ok6 := ParsePinKey(bad)
		if ok1 || ok2 || ok3 || ok4 || ok5 || ok6 {
			t.Errorf("%q was read: %v %v %v %v %v %v", bad, ok1, ok2, ok3, ok4, ok5, ok6)
		}
	}
}

func TestCommit_Validate_RefusesWhatCannotBeRead(t *testing.T) {
	seg := Ref{Key: "s"}
	for name, edit := range map[string]func(c *Commit){
		"two changes of a slot": func(c *Commit) { c.Slots = []SlotChange{{Inode: 2, Remove: true}, {Inode: 2, Remove: true}} },
		"a slot of no inode":    func(c *Commit) { c.Slots = []SlotChange{{Remove: true}} },
		"a base without a key":  func(c *Commit) { c.Slots = []SlotChange{{Inode: 2, Base: &Base{Len: 1}}} },
		"a base without a checksum for each block": func(c *Commit) {
			c.Slots = []SlotChange{{Inode: 2, Base: &Base{Ref: Ref{Key: "o"}, Len: BlockSize + 1, Sums: []uint32{1}}}}
		},
		"an empty patch":         func(c *Commit) { c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 1, Zero: true}}}} },
		"another commit's patch": func(c *Commit) { c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 2, Len: 1, Zero: true}}}} },
		"too long an extent": func(c *Commit) {
			c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 1, Len: MaxExtent + 1, Seg: seg}}}}
		},
		"a patch in no segment": func(c *Commit) { c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 1, Len: 1}}}} },
		"a patch beyond any slot": func(c *Commit) {
			c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 1, Off: 1<<32 - 1, Len: 2, Zero: true}}}}
		},
		"patches that overlap": func(c *Commit) {
			c.Slots = []SlotChange{{Inode: 2, Add: []Patch{{Commit: 1, Len: 2, Zero: true}, {Commit: 1, Off: 1, Len: 2, Zero: true}}}}
		},
		"an inode too big":  func(c *Commit) { c.Inodes[1].Xattrs = []Xattr{{Name: "x", Value: make([]byte, MaxInodeBytes)}} },
		"inode 0":           func(c *Commit) { c.Inodes[1].ID = 0 },
		"a name with slash": func(c *Commit) { c.Names[0].Name = "a/b" },
		"dot dot":           func(c *Commit) { c.Names[0].Name = ".." },
		"no cookie":         func(c *Commit) { c.Names[0].Cookie = 0 },
	} {
		c := rootCommit()
		edit(c)
		ix := openTestIndex(t, NewMemKV())
		if err := ix.Apply(c, "h", nil); err == nil {
			t.Errorf("%s was applied", name)
		}
		if ix.Head() != (Head{}) {
			t.Errorf("%s moved the head", name)
		}
	}
}

func FuzzDecodeDocument(f *testing.F) {
	for _, d := range documents() {
		f.Add(d.encode())
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, b := range [][]byte{body, resum(body)} {
			for _, d := range documents() {
				if _, err := d.decode(b); err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat) {
					t.Fatalf("%s: %v", d.name, err)
				}
			}
			if c, err := DecodeCommit(b); err == nil {
				again, err := DecodeCommit(EncodeCommit(c))
				if err != nil || !reflect.DeepEqual(normal(c), normal(again)) {
					t.Fatalf("a decoded commit changes when encoded: %v\n%+v\n%+v", err, c, again)
				}
			}
		}
	})
}

// normal makes the two forms of nothing one.
func normal(c *Commit) *Commit {
	if len(c.Tags) == 0 {
		c.Tags = nil
	}
	for i := range c.Slots {
		if b := c.Slots[i].Base; b != nil && len(b.Sums) == 0 { // of no bytes
			b.Sums = nil
		}
	}
	return c
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range goldenRecords() {
		f.Add(r.key, r.value[:len(r.value)-4])
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if len(key) == 0 {
			return
		}
		e := &encoder{b: bytes.Clone(value)}
		for _, v := range [][]byte{value, e.value(key)} {
			if err := decodeAny(key, v); err != nil && !errors.Is(err, ErrDamaged) {
				t.Fatal(err)
			}
		}
		kv := NewMemKV()
		must(t, kv.Update(func(w Writer) error { return w.Set(key, e.value(key)) }))
		if err := scanSlots(kv, nil, nil, func(slotKey, *Slot) error { return nil }); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		_ = recordName(key)
	})
}

func FuzzDecodeLine(f *testing.F) {
	for _, r := range goldenRecords() {
		if line, err := encodeLine(r.key, r.value); err == nil && line != nil {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		err := new(lineReader).decode(line, func(key, value []byte) {
			if err := decodeAny(key, value); err != nil {
				t.Fatalf("a page's line gave a record that does not read: %v", err)
			}
		})
		if err != nil && strings.Contains(err.Error(), "panic") {
			t.Fatal(err)
		}
	})
}
