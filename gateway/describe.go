package gateway

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cisternfs/cistern/journal"
)

// Description says what a journal record does, for people and programs.
type Description struct {
	Kind   string // write, reference, setattr, …
	Fields []DescriptionField
}

// DescriptionField is one of a record's fields. The value is a number, a bool, a
// time.Time, a list of numbers, or text that may have any bytes.
type DescriptionField struct {
	Name  string
	Value any
}

// maxDescribed bounds the text of one field in bytes.
const maxDescribed = 256

// String gives the fields as text: "inode 7, offset 0, length 16384".
func (d Description) String() string {
	var parts []string
	for _, f := range d.Fields {
		switch x := f.Value.(type) {
		case bool:
			parts = append(parts, f.Name) // only what is true is listed
		case time.Time:
			parts = append(parts, f.Name+" "+x.Format(time.RFC3339Nano))
		case string:
			parts = append(parts, fmt.Sprintf("%s %q", f.Name, shortened(x)))
		default:
			parts = append(parts, shortened(fmt.Sprintf("%s %v", f.Name, x)))
		}
	}
	return strings.Join(parts, ", ")
}

func shortened(s string) string {
	if len(s) <= maxDescribed {
		return s
	}
	end := maxDescribed
	for end > maxDescribed-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// Describe says what a journal record does. A record that does not decode is
// ErrDamaged, ErrNewerFormat.
func Describe(r journal.Record) (Description, error) {
	op, err := decodeOp(r)
	if err != nil {
		return Description{}, err
	}
	var d describer
	kind := d.operation(op)
	return Description{Kind: kind, Fields: d.fields}, nil
}

// describer gathers fields; those that say nothing are left out.
type describer struct{ fields []DescriptionField }

func (d *describer) add(name string, value any) {
	d.fields = append(d.fields, DescriptionField{name, value})
}

func (d *describer) flag(name string, on bool) {
	if on {
		d.add(name, true)
	}
}

func (d *describer) at(ns int64) { d.add("time", time.Unix(0, ns).UTC()) }

func (d *describer) mode(mode uint32) { d.add("mode", fmt.Sprintf("%06o", mode)) }

func (d *describer) operation(op operation) string {
	switch o := op.(type) {
	case *writeOp:
		d.bytes(o.ino, o.off, o.length)
		d.flag("staged", o.staged)
		d.flag("clears set-id bits", o.killID)
		d.at(o.time)
		return "write"
	case *refOp:
		d.bytes(o.ino, o.off, o.length)
		d.add("checksums", o.sums)
		d.flag("staged", o.staged)
		d.flag("clears set-id bits", o.killID)
		d.at(o.time)
		return "reference"
	case *zeroOp:
		d.bytes(o.ino, o.off, o.end-o.off)
		if o.size > 0 {
			d.add("size at least", o.size)
		}
		d.at(o.time)
		return "zero"
	case *publishOp:
		d.add("inode", o.ino)
		d.add("size", o.size)
		d.at(o.time)
		return "publish"
	case *shareOp:
		d.object(o.ino, o.slot, o.base.Ref.Key, o.base.Len)
		d.at(o.time)
		return "share"
	case *adoptOp:
		d.object(o.ino, o.slot, o.key, o.length)
		d.add("checksums", o.sums)
		d.at(o.time)
		return "adopt"
	case *setOp:
		d.add("quota", o.quota)
		d.add("retention seconds", o.retention)
		return "settings"
	case *setAttrOp:
		d.attributes(o)
		return "setattr"
	case *xattrOp:
		d.add("inode", o.ino)
		d.add("name", o.name)
		if o.remove {
			d.flag("removed", true)
		} else {
			d.add("value", string(o.value))
		}
		d.at(o.time)
		return "xattr"
	}
	return d.names(op)
}

func (d *describer) object(ino InodeID, slot uint32, key string, length uint32) {
	d.add("inode", ino)
	d.add("slot", slot)
	d.add("object", key)
	d.add("length", length)
}

func (d *describer) bytes(ino InodeID, off, length int64) {
	d.add("inode", ino)
	d.add("offset", off)
	d.add("length", length)
}

func (d *describer) attributes(o *setAttrOp) {
	d.add("inode", o.ino)
	if m := o.set.Mode; m != nil {
		d.mode(*m)
	}
	if u := o.set.UID; u != nil {
		d.add("uid", *u)
	}
	if g := o.set.GID; g != nil {
		d.add("gid", *g)
	}
	if s := o.set.Size; s != nil {
		d.add("size", *s)
	}
	for _, t := range []struct {
		name string
		ns   *int64
	}{{"atime", o.set.Atime}, {"mtime", o.set.Mtime}, {"ctime", o.set.Ctime}} {
		if t.ns != nil {
			d.add(t.name, time.Unix(0, *t.ns).UTC())
		}
	}
	d.flag("clears set-id bits", o.set.KillSetID)
	d.at(o.time)
}

// names describes the operations on names and inodes.
func (d *describer) names(op operation) string {
	switch o := op.(type) {
	case *createOp:
		d.add("inode", o.ino)
		if o.name != "" {
			d.add("directory", o.parent)
			d.add("name", o.name)
		}
		d.mode(o.mode)
		d.add("uid", o.uid)
		d.add("gid", o.gid)
		if o.rdev != 0 {
			d.add("device", o.rdev)
		}
		if len(o.target) > 0 {
			d.add("target", string(o.target))
		}
		d.at(o.time)
		return "create"
	case *linkOp:
		d.add("inode", o.ino)
		d.add("directory", o.parent)
		d.add("name", o.name)
		d.at(o.time)
		return "link"
	case *unlinkOp:
		d.add("directory", o.parent)
		d.add("name", o.name)
		d.flag("a directory", o.dir)
		d.at(o.time)
		return "unlink"
	case *renameOp:
		d.add("directory", o.parent)
		d.add("name", o.name)
		d.add("new directory", o.newParent)
		d.add("new name", o.newName)
		if o.flags != 0 {
			d.add("flags", o.flags)
		}
		d.at(o.time)
		return "rename"
	case *reapOp:
		d.add("inode", o.ino)
		return "reap"
	}
	panic(fmt.Sprintf("journal operation of kind %d has no description", op.kind()))
}
