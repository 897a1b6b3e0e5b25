package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// database is a database directory in a volume, as one commit has it.
type database struct {
	Dir    text   `json:"directory"` // of the data, from the top
	Log    string `json:"-"`         // how its binary logs begin: mysql-bin; empty when it has none beside its data
	Server string `json:"server,omitempty"`
	File   string `json:"file,omitempty"`   // the last binary log
	Offset int64  `json:"offset,omitempty"` // in it, behind the last whole group
	GTID   string `json:"gtid,omitempty"`   // the position up to there
	owner  [2]uint32
	most   int64               // bytes of a log that is read
	state  *binlogfs.GTIDState // nil without a binary log that can be read
}

// String says where a server that starts on it goes on; of nil that there is none.
func (d *database) String() string {
	switch {
	case d == nil:
		return "none was found"
	case d.File == "" && d.Log != "":
		return fmt.Sprintf("in /%s, with an encrypted binary log, of which its server alone knows where it ends", d.Dir.shown())
	case d.File == "":
		return fmt.Sprintf("in /%s, without a binary log beside its data", d.Dir.shown())
	}
	return fmt.Sprintf("in /%s, at %s:%d, GTID %s", d.Dir.shown(), d.File, d.Offset, orDash(d.GTID))
}

// errNoDatabase: a volume has no database directory, or several.
var errNoDatabase = errors.New("no database directory")

// errLongLog: a binary log is too long to be read in passing.
var errLongLog = errors.New("the binary log is long")

// isData is the file by which a data directory of InnoDB is known.
const isData = "ibdata1"

// findDatabase finds the database directory of a commit, in dir or, where that is
// empty, at the top or in the only directory there that is one; and where its binary
// log ends, which is where the server goes on when it starts on that state. A binary
// log that lies elsewhere is not found.
//
// A binary log of more than most bytes is not read: errLongLog.
func findDatabase(ctx context.Context, r reading, dir string, most int64) (*database, error) {
	if dir == "" {
		found, err := dataDirs(ctx, r)
		if err != nil {
			return nil, err
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("%w: %d directories of the volume have a file %s", errNoDatabase, len(found), isData)
		}
		dir = found[0]
	}
	n, err := r.lookup(ctx, join(dir, isData))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDatabase, err)
	}
	d := &database{Dir: text(dir), owner: [2]uint32{n.UID, n.GID}, most: most}
	return d, d.readLog(ctx, r, dir)
}

// dataDirs are the top, if it is a data directory, or the directories in it that are.
func dataDirs(ctx context.Context, r reading) (found []string, err error) {
	has := func(dir string) bool {
		_, err := r.lookup(ctx, join(dir, isData))
		return err == nil
	}
	if has("") {
		return []string{""}, nil
	}
	var names []string
	err = r.t.names(ctx, metadata.RootInode, func(d metadata.Dentry) bool {
		if uint32(d.Type)<<12 == typeDir {
			names = append(names, d.Name)
		}
		return true
	})
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, gateway.ErrInterrupted
		}
		if has(name) {
			found = append(found, name)
		}
	}
	return found, err
}

// maxIndex bounds an index of binary logs that is read whole: a million names and more.
const maxIndex = 64 << 20

// readLog finds the index of the directory's binary logs and reads the last one.
func (d *database) readLog(ctx context.Context, r reading, dir string) error {
	n, err := r.lookup(ctx, dir)
	if err != nil {
		return err
	}
	var indexes []string
	err = r.t.names(ctx, n.ID, func(e metadata.Dentry) bool {
		if strings.HasSuffix(e.Name, ".index") && !strings.Contains(e.Name, "relay") {
			indexes = append(indexes, e.Name)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, index := range indexes {
		var body bytes.Buffer
		if err := r.read(ctx, join(dir, index), 0, maxIndex+1, &body); err != nil {
			return err
		}
		if body.Len() > maxIndex {
			continue // the last of its lines, which counts, would be missing
		}
		names, err := binlogfs.IndexNames(body.Bytes())
		if err != nil || len(names) == 0 {
			continue // another kind of index
		}
		return d.readEnd(ctx, r, dir, names)
	}
	return nil
}

// readEnd reads the last of a directory's binary logs. One that was only begun has
// nothing yet: then the one before it counts. Of an encrypted one its name is all
// that is known.
func (d *database) readEnd(ctx context.Context, r reading, dir string, names []string) error {
	for i := len(names) - 1; i >= 0 && i >= len(names)-2; i-- {
		name := names[i]
		n, err := r.lookup(ctx, join(dir, name))
		if errors.Is(err, gateway.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if n.Size > d.most {
			return fmt.Errorf("%s: %w", name, errLongLog)
		}
		f, err := r.t.open(ctx, n)
		if err != nil {
			return err
		}
		end, err := binlogfs.ReadLogEnd(ctx, binlogfs.NewReader(ctx, f), name)
		f.Close() // only read
		if errors.Is(err, binlogfs.ErrCorrupt) && i > 0 {
			continue
		}
		if err != nil && !errors.Is(err, binlogfs.ErrEncrypted) {
			return err
		}
		d.Log = strings.TrimSuffix(name, path.Ext(name))
		if err != nil {
			return nil
		}
		d.Server, d.File, d.Offset = end.Server, name, end.Offset
		d.state, d.GTID = end.State, end.State.Position()
		return nil
	}
	return nil
}
