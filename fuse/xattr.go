package fuse

import (
	"context"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// trusted attributes are shown to root only.
const trusted = "trusted."

// checkXattrName admits the name spaces whose rules the kernel enforces. There
// is no system.*: POSIX ACLs would have to be obeyed, not just stored.
func checkXattrName(name string) fuse.Status {
	for _, space := range [...]string{"user.", "security.", trusted} {
		if strings.HasPrefix(name, space) {
			if len(name) == len(space) {
				return fuse.EINVAL
			}
			return fuse.OK
		}
	}
	return fuse.Status(unix.EOPNOTSUPP)
}

func (fs *fileSystem) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if status := checkXattrName(name); status != fuse.OK {
		return 0, status
	}
	value, err := fs.v.GetXattr(request(cancel), gateway.InodeID(h.NodeId), name)
	if err != nil {
		return 0, fs.nodeStatus("getxattr", h.NodeId, err)
	}
	return answerXattr(dest, value)
}

func (fs *fileSystem) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	names, err := fs.v.ListXattr(request(cancel), gateway.InodeID(h.NodeId))
	if err != nil {
		return 0, fs.nodeStatus("listxattr", h.NodeId, err)
	}
	var list []byte
	for _, name := range names {
		if h.Uid != 0 && strings.HasPrefix(name, trusted) {
			continue
		}
		list = append(append(list, name...), 0)
	}
	return answerXattr(dest, list)
}

// answerXattr copies value to dest; an empty dest asks for the size only.
func answerXattr(dest, value []byte) (uint32, fuse.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (fs *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	if status := checkXattrName(name); status != fuse.OK {
		return status
	}
	value := append([]byte(nil), data...) // data is the request's buffer
	return fs.nodeStatus("setxattr", in.NodeId, fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		return fs.v.SetXattr(ctx, gateway.InodeID(in.NodeId), name, value, in.Flags)
	}))
}

func (fs *fileSystem) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if status := checkXattrName(name); status != fuse.OK {
		return status
	}
	return fs.nodeStatus("removexattr", h.NodeId, fs.attend(cancel, h, func(ctx context.Context) error {
		return fs.v.RemoveXattr(ctx, gateway.InodeID(h.NodeId), name)
	}))
}
