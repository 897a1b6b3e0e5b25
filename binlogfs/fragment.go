package binlogfs

import (
	"context"
	"fmt"

	"github.com/go-mysql-org/go-mysql/replication"
)

// FragmentUnit is what the parts of an open group are measured in.
type FragmentUnit string

// The units: two of those that Galera's streaming replication has.
const (
	FragmentBytes      FragmentUnit = "bytes"
	FragmentStatements FragmentUnit = "statements"
)

// Fragment says in which parts the bytes of an open group go to the volume and
// from there to the bucket, where nobody sees them before the group is whole.
type Fragment struct {
	Unit FragmentUnit // default FragmentBytes
	Size int64        // units of a part; 0: parts of 1 MiB only
}

// smallestFragment keeps a part larger than what storing it costs.
const smallestFragment = 4096

// Validate returns an error for a fragment that makes no sense.
func (f Fragment) Validate() error {
	switch {
	case f.Size < 0:
		return fmt.Errorf("fragment size %d: it must be 0 or more", f.Size)
	case f.Unit == "", f.Unit == FragmentBytes:
		if f.Size > 0 && f.Size < smallestFragment {
			return fmt.Errorf("fragment size %d bytes: it must be 0, or %d or more", f.Size, smallestFragment)
		}
	case f.Unit != FragmentStatements:
		return fmt.Errorf("fragment unit %q: it must be bytes or statements", f.Unit)
	}
	return nil
}

// part is how many bytes are handed to the volume at a time.
func (a *Appender) part() int {
	f := a.l.opt.Fragment
	if f.Size > 0 && f.Size < stageSize && (f.Unit == "" || f.Unit == FragmentBytes) {
		return int(f.Size)
	}
	return stageSize
}

// fragment hands the open group's bytes to the volume when they are as many
// statements as was asked for. It is called after each of its events.
func (a *Appender) fragment(ctx context.Context, h Header) error {
	before := a.before
	a.before = h.Type
	f := a.l.opt.Fragment
	if f.Size == 0 || f.Unit != FragmentStatements {
		return nil
	}
	if a.t.step == StepBegin {
		a.statements = 0
	}
	if beginsStatement(h.Type, before) {
		a.statements++
	}
	if a.statements <= f.Size {
		return nil
	}
	// The last one has just begun.
	a.statements = 1
	return a.spill(ctx)
}

// beginsStatement says whether an event is the first, or the only one, of a
// statement within a group: the note of its text in row format, or the first of
// its table maps where there is no note, or its Query.
func beginsStatement(e, before EventType) bool {
	switch e {
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT, replication.MARIADB_ANNOTATE_ROWS_EVENT, replication.ROWS_QUERY_EVENT:
		return true
	case replication.TABLE_MAP_EVENT:
		return before != replication.TABLE_MAP_EVENT && before != replication.MARIADB_ANNOTATE_ROWS_EVENT && before != replication.ROWS_QUERY_EVENT
	}
	return false
}
