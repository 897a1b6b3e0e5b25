package binlogfs

import (
	"context"
	"fmt"

	"github.com/go-mysql-org/go-mysql/replication"
)

// FragmentUnit is what the parts of an open group are measured in.
type FragmentUnit string

// The units, which are those of Galera's streaming replication.
const (
	FragmentBytes      FragmentUnit = "bytes"
	FragmentRows       FragmentUnit = "rows"
	FragmentStatements FragmentUnit = "statements"
)

// Fragment says in which parts the bytes of an open group go to the volume and
// from there to the bucket, where nobody sees them before the group is whole.
type Fragment struct {
	Unit FragmentUnit // default FragmentBytes
	Size int64        // units of a part; 0: parts of up to 1 MiB only
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
	case f.Unit != FragmentStatements && f.Unit != FragmentRows:
		return fmt.Errorf("fragment unit %q: it must be bytes, rows or statements", f.Unit)
	}
	return nil
}

// part is how many bytes are handed to the volume next. Unless it was said otherwise
// they end at a block's end.
func (a *Appender) part() int {
	f := a.l.opt.Fragment
	if f.Size > 0 && f.Size < stageSize && (f.Unit == "" || f.Unit == FragmentBytes) {
		return int(f.Size)
	}
	return int((a.staged+stageSize)/stageBlock*stageBlock - a.staged)
}

// fragment hands the open group's bytes to the volume when they are as many rows or
// statements as was asked for. It is called after each of its events, of which it
// gets what was read ahead of the body.
func (a *Appender) fragment(ctx context.Context, raw []byte, h Header, body []byte) error {
	before := a.before
	a.before = h.Type
	f := a.l.opt.Fragment
	if f.Size == 0 || f.Unit != FragmentStatements && f.Unit != FragmentRows {
		return nil
	}
	if a.t.step == StepBegin {
		a.units = 0
	}
	if f.Unit == FragmentRows {
		if a.units += a.rows.count(raw, h, body); a.units < f.Size {
			return nil
		}
		a.units = 0
		return a.spill(ctx)
	}
	if !beginsStatement(h.Type, before) {
		return nil
	}
	if a.units++; a.units <= f.Size {
		return nil
	}
	a.units = 1 // the last one has just begun
	return a.spill(ctx)
}

// maxCounted is how long an event may be whose rows are counted. A server begins
// a new event when the next row would make it longer than binlog_row_event_max_size,
// usually 8 KiB: a longer one than this is taken for one row.
const maxCounted = 1 << 20

// rowCounter counts the rows of events, by the descriptions of tables before them.
// It is used by one goroutine.
type rowCounter struct {
	parser *replication.BinlogParser
	sums   bool // events end with a checksum
}

// format begins with a source's format description.
func (c *rowCounter) format(event []byte, f *Format) {
	c.sums = f.Checksum
	c.parser = replication.NewBinlogParser()
	c.parser.SetFlavor(string(f.Flavor))
	c.parser.SetVerifyChecksum(false) // it is verified where the bytes come in
	c.parse(event)
}

// wants says whether it needs the whole body of an event.
func (c *rowCounter) wants(h Header) bool {
	return c.parser != nil && h.Size <= maxCounted && (h.Type == replication.TABLE_MAP_EVENT || hasRows(h.Type))
}

// count returns the rows of an event; one for an event that it can't read, or not
// whole.
func (c *rowCounter) count(raw []byte, h Header, body []byte) int64 {
	if !c.wants(h) {
		if hasRows(h.Type) {
			return 1
		}
		return 0
	}
	event := append(append([]byte(nil), raw...), body...)
	if c.sums {
		event = append(event, 0, 0, 0, 0)
	}
	n := c.parse(event)
	switch {
	case !hasRows(h.Type):
		return 0
	case updates(h.Type):
		n /= 2 // before and after
	}
	return max(n, 1)
}

// parse returns how many images of rows an event has. The checksum has not been
// seen yet, and the library indexes into what is there.
func (c *rowCounter) parse(event []byte) (n int64) {
	defer func() {
		if recover() != nil {
			n = 0
		}
	}()
	e, err := c.parser.Parse(event)
	if err != nil {
		return 0
	}
	if rows, ok := e.Event.(*replication.RowsEvent); ok {
		return int64(len(rows.Rows))
	}
	return 0
}

// hasRows says whether an event is of rows that were written, changed or deleted.
func hasRows(e EventType) bool {
	switch e {
	case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2, replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1,
		replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return true
	}
	return updates(e)
}

func updates(e EventType) bool {
	switch e {
	case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.PARTIAL_UPDATE_ROWS_EVENT:
		return true
	}
	return false
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
