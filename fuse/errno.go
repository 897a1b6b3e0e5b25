package fuse

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
)

// errnos says how each of the volume's answers reaches a program. What is not
// listed is EIO, and is logged.
var errnos = [...]struct {
	err   error
	errno syscall.Errno
}{
	{gateway.ErrNotExist, syscall.ENOENT},
	{gateway.ErrExist, syscall.EEXIST},
	{gateway.ErrNotDir, syscall.ENOTDIR},
	{gateway.ErrIsDir, syscall.EISDIR},
	{gateway.ErrNotEmpty, syscall.ENOTEMPTY},
	{gateway.ErrNameTooLong, syscall.ENAMETOOLONG},
	{gateway.ErrInvalid, syscall.EINVAL},
	{gateway.ErrTooBig, syscall.EFBIG},
	{gateway.ErrTooManyLink, syscall.EMLINK},
	{gateway.ErrNotPermit, syscall.EPERM},
	{gateway.ErrNoXattr, syscall.ENODATA},
	{gateway.ErrXattrBig, syscall.E2BIG},
	{gateway.ErrNoData, syscall.ENXIO},
	{gateway.ErrNotSupport, syscall.EOPNOTSUPP},
	{gateway.ErrNoSpace, syscall.ENOSPC},
	{gateway.ErrQuota, syscall.ENOSPC},
	{gateway.ErrReadOnly, syscall.EROFS},
	{gateway.ErrFenced, syscall.EROFS},
	{gateway.ErrStale, syscall.ESTALE},
	{gateway.ErrInterrupted, syscall.EINTR},
	{context.Canceled, syscall.EINTR},
	{syscall.ENOSPC, syscall.ENOSPC}, // the local disk's
	{syscall.EDQUOT, syscall.ENOSPC},
	{syscall.ENFILE, syscall.ENFILE}, // the table of open handles is full
}

// errnoOf looks err up; known is false for what a program only sees as EIO.
func errnoOf(err error) (errno syscall.Errno, known bool) {
	for i := range errnos {
		if errors.Is(err, errnos[i].err) {
			return errnos[i].errno, true
		}
	}
	return syscall.EIO, false
}

// interrupted says whether a call was given up because its context ended.
func interrupted(err error) bool {
	return errors.Is(err, gateway.ErrInterrupted) || errors.Is(err, context.Canceled)
}

// nameStatus answers an operation on a name in directory ino.
func (fs *fileSystem) nameStatus(op string, ino uint64, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	errno, known := errnoOf(err)
	if !known {
		fs.complaints.report(op, ino, err)
	}
	return fuse.Status(errno)
}

// nodeStatus answers an operation on inode ino itself. The kernel holds the
// inode, so if the volume no longer has it the handle is stale; ESTALE also
// makes the kernel look a path up again.
func (fs *fileSystem) nodeStatus(op string, ino uint64, err error) fuse.Status {
	if err != nil && errors.Is(err, gateway.ErrNotExist) {
		return fuse.Status(syscall.ESTALE)
	}
	return fs.nameStatus(op, ino, err)
}

// complaintInterval is how often an I/O error is logged at most.
const complaintInterval = time.Second

// complaints logs I/O errors, at most one per complaintInterval: a failing
// disk under load makes thousands a second. Safe for concurrent use.
type complaints struct {
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	next    time.Time
	dropped int
}

func (c *complaints) report(op string, ino uint64, err error) {
	c.mu.Lock()
	now := time.Now()
	if now.Before(c.next) {
		c.dropped++
		c.mu.Unlock()
		return
	}
	dropped := c.dropped
	c.dropped = 0
	c.next = now.Add(complaintInterval)
	c.mu.Unlock()
	c.log.Error("a request failed with an I/O error",
		"op", op, "inode", ino, "error", err, "not_logged_before", dropped)
}
