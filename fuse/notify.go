package fuse

import (
	"errors"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
)

// Invalidate makes the kernel forget the pages and attributes of ino (for a
// directory: its cached listing), after a change that did not come through
// this mount. It may wait for reads and writes of that inode, so it must not
// be called while one of them waits for the caller. An inode that the kernel
// does not know is no error. Safe for concurrent use.
func (s *Server) Invalidate(ino gateway.InodeID) error {
	return notified("inode", ino, s.raw.InodeNotify(uint64(ino), 0, 0))
}

// InvalidateAttr makes the kernel ask for the attributes of ino again. It
// waits for nothing.
func (s *Server) InvalidateAttr(ino gateway.InodeID) error {
	return notified("inode", ino, s.raw.InodeNotify(uint64(ino), -1, 0))
}

// InvalidateEntry makes the kernel look name in parent up again, whether it
// believed that it is there or that it isn't, and list parent anew. It waits
// for operations on names in parent, so it must not be called while one of
// them waits for the caller.
func (s *Server) InvalidateEntry(parent gateway.InodeID, name string) error {
	entry := notified("directory", parent, s.raw.EntryNotify(uint64(parent), name))
	// For a name that the kernel does not know that did nothing, and it may
	// have a listing without the name.
	return errors.Join(entry, s.Invalidate(parent))
}

func notified(what string, ino gateway.InodeID, status fuse.Status) error {
	if status == fuse.OK || status == fuse.ENOENT {
		return nil
	}
	return fmt.Errorf("invalidate %s %d in the kernel: %w", what, ino, toErrno(status))
}
