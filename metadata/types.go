package metadata

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// InodeID numbers a file, directory or other node. It is never reused in a volume.
type InodeID uint64

// RootInode is the volume's top directory.
const RootInode InodeID = 1

// BlockSize is the unit of checksums in bytes: part of the format.
const BlockSize = 128 << 10

// MaxExtent is the largest extent of a segment in plain bytes.
const MaxExtent = BlockSize

// maxFrame is the longest frame of a block or an extent in bytes.
const maxFrame = BlockSize + 64

// MaxName is the longest name in bytes.
const MaxName = 255

// MaxInodeBytes bounds an inode's xattr names and values and its link target
// together: what one record of the index and one line of a page can carry.
const MaxInodeBytes = 256 << 10

// maxSlotSize is the largest slot in bytes.
const maxSlotSize = 64 << 20

// ErrNotExist: no such inode, name or record in the committed state.
var ErrNotExist = errors.New("no such entry in the committed state")

// ErrDamaged marks a document, record or page that fails its checksum or does not parse.
var ErrDamaged = errors.New("damaged")

// ErrNewerFormat marks a document that a newer release wrote.
var ErrNewerFormat = errors.New("written by a newer version of cistern")

// Inode is a node's attributes. Values are immutable once shared: change a copy.
type Inode struct {
	ID     InodeID
	Mode   uint32 // st_mode: type and permission bits
	UID    uint32
	GID    uint32
	Nlink  uint32
	Rdev   uint32
	Size   int64 // bytes; what readers see
	Staged int64 // end of bytes stored beyond Size and not published; 0 when there are none
	Alloc  int64 // bytes of the file that are data, not holes
	Atime  int64 // nanoseconds since 1970, like the three below
	Mtime  int64
	Ctime  int64
	Btime  int64
	Parent InodeID // of a directory: what ".." is
	Target []byte  // of a symbolic link
	Xattrs []Xattr // sorted by name
}

// Xattr is one extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Dentry is a name in a directory. Cookie orders the directory for readdir: it
// is unique in the directory. A new name's is greater than any given there
// before; a rename may hand one on.
type Dentry struct {
	Parent InodeID
	Name   string
	Inode  InodeID
	Type   uint8 // Mode >> 12
	Cookie uint64
}

// Ref names an object, segment or page. Volume is empty for the volume's own.
type Ref struct {
	Volume string
	Key    string
}

// Cipher says how the frames of a body are encrypted. Born is what the body was
// born as, where that is not the reference to it; a frame opens only with it.
type Cipher struct {
	Key  string // the encryption key's name; empty: not encrypted
	Born Ref
}

// Base is the object that a slot starts from: bytes [0, Len) of the slot.
type Base struct {
	Ref
	Len    uint32   // plain bytes
	Birth  uint64   // commit that first named the object
	Sums   []uint32 // CRC32C of the plain bytes of each block, the last one short
	Stored []uint32 // lengths of the blocks' frames; nil: the object is the plain bytes
	Cipher Cipher   // of the frames
}

// StoredLen is the length of the object in bytes.
func (b *Base) StoredLen() int64 {
	if b.Stored == nil {
		return int64(b.Len)
	}
	_, n := b.StoredRange(0, len(b.Stored))
	return n
}

// StoredRange returns where the frames of blocks [first, end) lie in an object
// that has frames: offset and length in bytes.
func (b *Base) StoredRange(first, end int) (off, n int64) {
	for _, l := range b.Stored[:first] {
		off += int64(l)
	}
	for _, l := range b.Stored[first:end] {
		n += int64(l)
	}
	return off, n
}

// Patch is a range of a slot that lives in a segment, or that is zeros and
// lives nowhere. Patches of one commit never overlap within a slot; a later
// commit's lie over an earlier one's and all lie over the base.
type Patch struct {
	Commit uint64
	Off    uint32 // in the slot
	Len    uint32 // plain bytes; at most MaxExtent unless zero
	Zero   bool
	Seg    Ref
	SegOff uint32 // where the extent starts in the segment: the number of its frame
	Sum    uint32 // CRC32C of the extent's plain bytes
	Stored uint32 // length of the extent's frame; 0: the extent is the plain bytes
	Cipher Cipher // of the frame
}

// StoredLen is the length of the extent in the segment in bytes.
func (p *Patch) StoredLen() uint32 {
	if p.Stored == 0 {
		return p.Len
	}
	return p.Stored
}

// Slot is a file's n-th fixed-size piece as committed. Values are immutable and
// not copied: pass pointers. A nil *Slot is zeros.
type Slot struct {
	Base    *Base   // nil: zeros
	Patches []Patch // ordered by (Commit, Off)

	view atomic.Pointer[[]Piece] // what visible found
}

// CommitID names a commit.
type CommitID struct {
	Epoch uint64 `json:"epoch"`
	N     uint64 `json:"n"`
}

func (c CommitID) String() string { return fmt.Sprintf("%d/%d", c.Epoch, c.N) }

// SlotChange is what a commit does to one slot, in this order: Remove, the new
// Base, DropThrough and Drop, Add.
type SlotChange struct {
	Inode       InodeID
	Slot        uint32
	Remove      bool       // base and all patches go
	Base        *Base      // replaces the base
	DropThrough uint64     // patches of this commit and earlier ones go
	Drop        []PatchKey // single patches that go
	Add         []Patch    // Commit is the commit's own number
}

// PatchKey names a patch within its slot.
type PatchKey struct {
	Commit uint64
	Off    uint32
}

// NameChange sets a name, or removes it when Inode is 0 (Cookie is then the
// cookie of the name that goes).
type NameChange struct {
	Dentry
	OldCookie uint64 // of the entry that a set replaces, 0 if none
}

// Segment is a segment's record: absolute numbers.
type Segment struct {
	Key   string
	Size  int64
	Live  int64 // stored bytes that patches of the current state refer to
	Birth uint64
	Sum   uint32 // CRC32C of the whole body; 0 in a pure change of Live
}

// Object is an uploaded object that a commit names for the first time.
type Object struct {
	Key  string
	Size int64
	Sum  uint32 // CRC32C of the whole body
}

// RefCount is an object's number of references, given only when it is or was above one.
type RefCount struct {
	Key   string
	Count uint32
}

// Dead is a thing that the current state no longer refers to: it was of use to
// commits in [Birth, Death).
type Dead struct {
	Key   string
	Size  int64
	Birth uint64
	Death uint64
	Time  int64 // when it died by the store's clock, in Unix nanoseconds, or a little later
	State DeadState
}

// DeadState says how far collection has come with a dead thing.
type DeadState uint8

// States of a dead thing.
const (
	DeadKept      DeadState = iota // still within the retention, or pinned
	DeadCondemned                  // announced; deleted next unless a pin takes it back
)

// Settings are what format gave and later commits may change.
type Settings struct {
	QuotaBytes   int64 // 0: none
	RetentionSec int64
	Keys         string // names of the encryption keys that this state needs, with commas; the one for writing first
}

// KeyNames are the names in Keys.
func (s Settings) KeyNames() []string {
	if s.Keys == "" {
		return nil
	}
	return strings.Split(s.Keys, ",")
}

// Totals are absolute numbers about the whole volume as of a commit.
type Totals struct {
	Inodes    uint64
	UsedBytes int64   // sum of Alloc
	NextInode InodeID // the lowest number never used
}

// Commit is one commit's document: everything that the state at its cut has
// that its predecessor's had not. All numbers are absolute, so that applying
// it twice, or again after half of it, is the same as once.
type Commit struct {
	CommitID
	Prev     string // hex SHA-256 of the predecessor's body; empty for the first
	FirstLSN uint64
	LastLSN  uint64 // the cut
	Time     int64  // nanoseconds since 1970, never before the predecessor's
	Writer   string // host and process, for people
	Reign    string
	Manifest CommitID // that it builds on; zero: the empty state
	Settings *Settings
	Totals   Totals
	Tags     map[string]string

	Segments  []Segment // new ones
	Objects   []Object  // new ones
	Inodes    []Inode   // new or changed, whole
	Gone      []InodeID // freed
	Names     []NameChange
	Slots     []SlotChange
	Orphans   []InodeID // inodes without names that are new in that list
	NoOrphans []InodeID // that left it
	Live      []Segment // changed Live of older segments (Key and Live count)
	Refs      []RefCount
	Dead      []Dead   // that died with this commit
	Condemned []string // keys of dead things
	TakenBack []string // condemned things that a pin needs
	Collected []string // deleted from the bucket: forget them
	Horizon   uint64   // no new pin may use a commit before it; 0: unchanged
	Undead    []string // dead things that are referred to again
}

// Seal closes an epoch: it stands where the epoch's next commit would be, and
// leads to <Epoch+1>/<N+1>.
type Seal struct {
	CommitID
	By    string // reign id of the epoch's successor
	Epoch uint64 // that the successor took
}

// Head is what the index knows of the last commit applied.
type Head struct {
	CommitID
	Hash     string // hex SHA-256 of the commit's body
	LastLSN  uint64
	Time     int64
	Manifest CommitID
	Settings Settings
	Totals   Totals
	Horizon  uint64
}
