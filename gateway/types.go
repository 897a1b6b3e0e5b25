package gateway

import (
	"github.com/cisternfs/cistern/metadata"
)

// InodeID numbers a node of the volume.
type InodeID = metadata.InodeID

// Inode is a node's attributes: shared and immutable.
type Inode = metadata.Inode

// Owner is who a new node belongs to.
type Owner struct {
	UID uint32
	GID uint32
}

// SetAttr lists the attributes to change; nil fields stay. Times are in
// nanoseconds since 1970.
type SetAttr struct {
	Mode      *uint32 // permission, set-id and sticky bits
	UID       *uint32
	GID       *uint32
	Size      *int64
	Atime     *int64
	Mtime     *int64
	Ctime     *int64
	KillSetID bool // clear the set-id bits as a write by an ordinary user does
}

// WriteFlags qualify a write.
type WriteFlags struct {
	KillSetID bool // clear the set-id bits
}

// Flags of Rename, as renameat2(2) has them.
const (
	RenameNoReplace = 1
	RenameExchange  = 2
)

// Modes of Fallocate, as fallocate(2) has them.
const (
	FallocKeepSize  = 0x01
	FallocPunchHole = 0x02
	FallocZeroRange = 0x10
	FallocUnshare   = 0x40
)

// Statfs answers statfs(2). Sizes are in bytes.
type Statfs struct {
	Total  int64 // the quota, or a very large number when there is none
	Used   int64
	Inodes uint64
}

// MaxNameLen is the longest name in bytes.
const MaxNameLen = 255

// MaxFileSize is the largest file size in bytes.
const MaxFileSize = 1<<63 - 1 - (64 << 20)
