package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// replay applies the records after the base to the layer, as redo does. What
// does not fit is listed and skipped.
func (s *Salvage) replay(log *scanned) {
	r := &s.report
	last := journal.LSN(r.BaseLSN)
	whole := !log.gone
	for _, rec := range log.records {
		if uint64(rec.LSN) <= r.BaseLSN {
			continue
		}
		if after, ok := log.jumps[rec.LSN]; rec.LSN > last+1 && last > 0 && !(ok && after <= last) {
			whole = false
			r.Damage = append(r.Damage, fmt.Sprintf("records %d to %d of the journal in %s are missing", last+1, rec.LSN-1, s.o.Aside.Dir))
		}
		last = rec.LSN
		if r.Records == 0 {
			r.First = uint64(rec.LSN)
		}
		r.Records++
		r.Last = uint64(rec.LSN)
		if err := s.apply(rec); err != nil {
			r.Damage = append(r.Damage, err.Error())
		}
	}
	if log.durable > last {
		whole = false
		r.Damage = append(r.Damage, fmt.Sprintf("records %d to %d of the journal in %s, which were durable, are missing", last+1, log.durable, s.o.Aside.Dir))
	}
	s.lost = !whole
	if whole { // then it is the torn tail, which nobody was promised
		r.Torn = log.damage
	} else {
		r.Damage = append(r.Damage, log.damage...)
	}
}

// apply applies one record and notes what it is.
func (s *Salvage) apply(rec journal.Record) error {
	op, err := decodeOp(rec)
	if err != nil {
		return err
	}
	if s.base == nil {
		s.invent(op)
	}
	if o, ok := op.(*refOp); ok {
		// Earlier references may be committed by now, where the base is not known.
		delete(s.v.refs, o.ino)
	}
	note := s.describeOp(rec.LSN, op)
	names := s.namesOf(op)
	apply, err := op.plan(s.v)
	if err != nil {
		if note == nil {
			note = &SalvagedOp{LSN: uint64(rec.LSN), Op: "write"}
		}
		note.Skipped = err.Error()
	} else {
		s.v.applied(rec.LSN, apply, rec.Loc)
		names()
		s.noteData(op)
	}
	if note != nil {
		if len(s.report.Operations) < maxSalvageOps {
			s.report.Operations = append(s.report.Operations, *note)
		} else {
			s.report.MoreOps++
		}
	}
	if err != nil && s.base != nil && len(s.report.Damage) == 0 {
		return fmt.Errorf("%w: journal record %d does not fit the state: %w", ErrDamaged, rec.LSN, err)
	}
	return nil
}

// invent makes the nodes that an operation needs and that only the bucket knows.
func (s *Salvage) invent(op operation) {
	file := func(ino InodeID) {
		if _, err := s.v.inode(ino); errors.Is(err, ErrNotExist) {
			s.v.active.setInode(&Inode{ID: ino, Mode: modeRegular | 0o600, Nlink: 1})
		}
	}
	dir := func(ino InodeID) {
		if _, err := s.v.inode(ino); errors.Is(err, ErrNotExist) {
			s.v.active.setInode(&Inode{ID: ino, Mode: modeDir | 0o700, Nlink: 2, Parent: metadata.RootInode})
		}
	}
	switch o := op.(type) {
	case *writeOp:
		file(o.ino)
	case *refOp:
		file(o.ino)
	case *zeroOp:
		file(o.ino)
	case *setAttrOp:
		file(o.ino)
	case *publishOp:
		file(o.ino)
	case *shareOp:
		file(o.ino)
	case *adoptOp:
		file(o.ino)
	case *createOp:
		dir(o.parent)
	case *linkOp:
		file(o.ino)
		dir(o.parent)
	case *unlinkOp:
		dir(o.parent)
	case *renameOp:
		dir(o.parent)
		dir(o.newParent)
	}
}

// describeOp lists an operation on names or sizes; nil for those on bytes.
func (s *Salvage) describeOp(lsn journal.LSN, op operation) *SalvagedOp {
	n := &SalvagedOp{LSN: uint64(lsn)}
	at := func(ns int64) time.Time { return time.Unix(0, ns).UTC() }
	inode := func(parent InodeID, name string) InodeID {
		d, err := s.v.name(parent, name)
		if err != nil {
			return 0 // not known
		}
		return d.Inode
	}
	switch o := op.(type) {
	case *createOp:
		n.Op, n.Inode, n.Time = createdAs(o.mode), o.ino, at(o.time)
		if o.name != "" {
			n.Path = s.join(o.parent, o.name)
		}
		n.To = string(o.target)
	case *linkOp:
		n.Op, n.Inode, n.Path, n.To, n.Time = "link", o.ino, s.path(o.ino), s.join(o.parent, o.name), at(o.time)
	case *unlinkOp:
		n.Op, n.Inode, n.Path, n.Time = "unlink", inode(o.parent, o.name), s.join(o.parent, o.name), at(o.time)
		if o.dir {
			n.Op = "rmdir"
		}
	case *renameOp:
		n.Op, n.Inode, n.Path, n.To, n.Time = "rename", inode(o.parent, o.name), s.join(o.parent, o.name), s.join(o.newParent, o.newName), at(o.time)
		if o.flags&RenameExchange != 0 {
			n.Op = "exchange"
		}
	case *setAttrOp:
		n.Op, n.Inode, n.Path, n.Time, n.Size = "attributes", o.ino, s.path(o.ino), at(o.time), o.set.Size
		if o.set.Size != nil {
			n.Op = "truncate"
		}
	case *xattrOp:
		n.Op, n.Inode, n.Path, n.Time, n.To = "xattr", o.ino, s.path(o.ino), at(o.time), o.name
	case *publishOp:
		n.Op, n.Inode, n.Path, n.Time, n.Size = "publish", o.ino, s.path(o.ino), at(o.time), &o.size
	case *reapOp:
		n.Op, n.Inode = "free", o.ino
	case *setOp:
		n.Op = "settings"
	default:
		return nil
	}
	return n
}

func createdAs(mode uint32) string {
	switch mode & modeType {
	case modeDir:
		return "mkdir"
	case modeLink:
		return "symlink"
	case modeRegular:
		return "create"
	}
	return "mknod"
}

// namesOf returns what keeps the inodes' names up with an operation, to be called
// once it is applied.
func (s *Salvage) namesOf(op operation) func() {
	set := func(ino, parent InodeID, name string) { s.names[ino] = place{parent: parent, name: name} }
	look := func(parent InodeID, name string) InodeID {
		d, err := s.v.name(parent, name)
		if err != nil {
			return 0
		}
		return d.Inode
	}
	gone := func(ino, parent InodeID, name string) {
		if p, ok := s.names[ino]; !ok || p.parent == parent && p.name == name {
			s.names[ino] = place{parent: parent, name: name, gone: true}
		}
	}
	switch o := op.(type) {
	case *createOp:
		return func() {
			if o.name != "" {
				set(o.ino, o.parent, o.name)
			}
		}
	case *linkOp:
		return func() { set(o.ino, o.parent, o.name) }
	case *unlinkOp:
		ino := look(o.parent, o.name)
		return func() { gone(ino, o.parent, o.name) }
	case *renameOp:
		from, to := look(o.parent, o.name), look(o.newParent, o.newName)
		return func() {
			switch {
			case from == to:
				return
			case o.flags&RenameExchange != 0:
				set(to, o.parent, o.name)
			case to != 0:
				gone(to, o.newParent, o.newName)
			}
			set(from, o.newParent, o.newName)
		}
	}
	return func() {}
}

// noteData keeps count of what changes a file's bytes.
func (s *Salvage) noteData(op operation) {
	file := func(ino InodeID, now, n int64, writes int) {
		f := s.touch[ino]
		if f == nil {
			f = &SalvagedFile{Inode: ino, First: time.Unix(0, now).UTC()}
			s.touch[ino] = f
		}
		f.Writes += writes
		f.Bytes += n
		if at := time.Unix(0, now).UTC(); at.After(f.Last) {
			f.Last = at
		}
	}
	switch o := op.(type) {
	case *writeOp:
		file(o.ino, o.time, o.length, 1)
	case *refOp:
		file(o.ino, o.time, o.length, 1)
	case *shareOp:
		file(o.ino, o.time, int64(o.base.Len), 1)
	case *adoptOp:
		file(o.ino, o.time, int64(o.length), 1)
	case *zeroOp:
		file(o.ino, o.time, 0, 1)
	case *publishOp:
		file(o.ino, o.time, 0, 0)
	case *setAttrOp:
		if o.set.Size != nil {
			file(o.ino, o.time, 0, 0)
		}
	case *createOp:
		if o.mode&modeType == modeRegular {
			file(o.ino, o.time, 0, 0)
			s.touch[o.ino].born = true
		}
	}
}

// finish completes the report.
func (s *Salvage) finish() error {
	for ino, f := range s.touch {
		n, err := s.v.inode(ino)
		f.Path = s.path(ino)
		if err != nil || n.Nlink == 0 {
			f.Gone = true
		} else {
			f.Size = n.Size
		}
		if m := s.v.active.files[ino]; m != nil && !f.Gone {
			m.Visit(0, f.Size, func(off, end int64, _ piece) bool {
				if k := len(f.Ranges); k > 0 && f.Ranges[k-1].Off+f.Ranges[k-1].Len == off {
					f.Ranges[k-1].Len += end - off
				} else {
					f.Ranges = append(f.Ranges, Range{off, end - off})
				}
				return true
			})
		}
		if f.Ranges == nil {
			f.Ranges = []Range{}
		}
		f.Whole = !f.Gone && !s.lost && (s.base != nil || f.born || len(f.Ranges) == 1 && f.Ranges[0] == Range{0, f.Size})
		s.report.Files = append(s.report.Files, f)
	}
	slices.SortFunc(s.report.Files, func(a, b *SalvagedFile) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// baseNames finds the names of the directories and of the files that the records
// are about, as the base has them.
func (s *Salvage) baseNames(log *scanned) error {
	wanted := map[InodeID]bool{}
	for _, rec := range log.records {
		if op, err := decodeOp(rec); err == nil {
			wanted[inodeOf(op)] = true
		}
	}
	todo := []InodeID{metadata.RootInode}
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		err := s.base.Index().Names(dir, 0, func(d metadata.Dentry) bool {
			isDir := uint32(d.Type)<<12 == modeDir
			if isDir || wanted[d.Inode] {
				s.names[d.Inode] = place{parent: dir, name: d.Name}
			}
			if isDir {
				todo = append(todo, d.Inode)
			}
			return true
		})
		if err != nil {
			return fmt.Errorf("names of directory %d: %w", dir, err)
		}
	}
	return nil
}

// inodeOf is the node that an operation is about; 0 when it is about names.
func inodeOf(op operation) InodeID {
	switch o := op.(type) {
	case *writeOp:
		return o.ino
	case *refOp:
		return o.ino
	case *zeroOp:
		return o.ino
	case *setAttrOp:
		return o.ino
	case *xattrOp:
		return o.ino
	case *publishOp:
		return o.ino
	case *shareOp:
		return o.ino
	case *adoptOp:
		return o.ino
	case *linkOp:
		return o.ino
	}
	return 0
}

// unknownName begins the path of what only the bucket could name.
const unknownName = "inode-"

// path is an inode's path from the top, as far as it is known.
func (s *Salvage) path(ino InodeID) string {
	var parts []string
	for range 4096 { // deeper is a loop
		if ino == metadata.RootInode {
			break
		}
		p, ok := s.names[ino]
		if !ok {
			parts = append(parts, fmt.Sprintf("%s%d", unknownName, ino))
			break
		}
		parts = append(parts, p.name)
		ino = p.parent
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

func (s *Salvage) join(parent InodeID, name string) string {
	return strings.TrimPrefix(s.path(parent)+"/"+name, "/")
}
