package binlogfs

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	catalogueFormat = 1
	catalogueSuffix = ".json"
	maxCatalogue    = 64 << 20 // bytes of one file's catalogue

	// An entry of the index of groups stands for at least so many bytes, so that
	// a GTID or time is found by reading no more than that.
	indexEvery = 1 << 20
)

// FileInfo is the catalogue of one file: everything that is asked of it without
// reading it. It is written when the file is closed and now and then before.
type FileInfo struct {
	Format    int       `json:"format"`
	Epoch     uint32    `json:"epoch"`
	Name      string    `json:"name"`
	Size      int64     `json:"size"` // published bytes that the rest is about
	Closed    bool      `json:"closed"`
	CRC32C    uint32    `json:"crc32c"` // Castagnoli, of the published bytes
	Flavor    Flavor    `json:"flavor"`
	Server    string    `json:"server"` // version
	ServerID  uint32    `json:"server_id"`
	Checksum  bool      `json:"checksum"` // events end with a CRC32
	FirstTime time.Time `json:"first_time,omitzero"`
	LastTime  time.Time `json:"last_time,omitzero"`
	Previous  string    `json:"previous_gtids"`    // state at the beginning
	Added     string    `json:"added_gtids"`       // state after the groups of this file alone
	Ordered   bool      `json:"ordered,omitempty"` // all groups have GTIDs, and MariaDB's numbers ascended within domains
	Groups    int64     `json:"groups"`
	Events    int64     `json:"events"`
	Index     []Mark    `json:"index,omitempty"`
}

// Mark is an entry of a file's index: a group's place.
type Mark struct {
	Offset int64     `json:"offset"`
	Time   time.Time `json:"time"`
	GTID   string    `json:"gtid,omitempty"`
	Groups int64     `json:"groups"` // before it in the file
	// State has the GTIDs of the file's groups before it, of MariaDB's the last of each
	// domain. It is empty where there is none, where the file was not Ordered up to
	// there, and where it would be long.
	State string `json:"state,omitempty"`
}

// maxMarkState bounds Mark.State, in bytes: a file has a mark a MiB.
const maxMarkState = 2048

// Path is where the file lies below the relay's directory.
func (f *FileInfo) Path() string { return epochDir(f.Epoch) + "/" + f.Name }

func epochDir(epoch uint32) string { return fmt.Sprintf("%06d", epoch) }

// encode returns the catalogue as it is stored.
func (f *FileInfo) encode() ([]byte, error) {
	body, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return nil, fmt.Errorf("catalogue of %s: %w", f.Name, err)
	}
	return append(body, '\n'), nil
}

// readCatalogue reads the catalogue of a file.
func readCatalogue(ctx context.Context, t Tree, dir string, epoch uint32, name string) (*FileInfo, error) {
	at := path.Join(dir, epochDir(epoch), name) + catalogueSuffix
	body, err := readFile(ctx, t, at, maxCatalogue)
	if err != nil {
		return nil, err
	}
	var f FileInfo
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrCorrupt, at, err)
	}
	if f.Format != catalogueFormat {
		return nil, fmt.Errorf("%s has format %d, which this release does not know: use a newer one", at, f.Format)
	}
	if f.Name != name || f.Epoch != epoch || f.Size < 0 {
		return nil, fmt.Errorf("%w: %s is about %s of epoch %d", ErrCorrupt, at, f.Name, f.Epoch)
	}
	return &f, nil
}

// mark enters a group into the index when the last entry is far enough back.
func (f *FileInfo) mark(offset int64, at time.Time, g GTID, before *GTIDState) {
	if n := len(f.Index); n > 0 && offset-f.Index[n-1].Offset < indexEvery {
		return
	}
	m := Mark{Offset: offset, Time: at, GTID: g.String(), Groups: f.Groups}
	if before != nil {
		if m.State = before.Position(); len(m.State) > maxMarkState {
			m.State = ""
		}
	}
	f.Index = append(f.Index, m)
}

// before returns the place of the last indexed group for which past says no, or
// that of the first group: where a search begins to read.
func (f *FileInfo) before(past func(Mark) bool) int64 {
	i := sort.Search(len(f.Index), func(i int) bool { return past(f.Index[i]) })
	if len(f.Index) == 0 {
		return int64(len(magic))
	}
	return f.Index[max(i-1, 0)].Offset
}

// isLogName says whether a name is that of a binary log: `base.000001`. It comes from
// a source, and becomes a file's name in a directory and a line of an index.
func isLogName(name string) bool {
	dot := strings.LastIndexByte(name, '.')
	if dot <= 0 || len(name)-dot-1 < 6 || strings.ContainsFunc(name, func(r rune) bool { return r == '/' || unicode.IsControl(r) }) {
		return false
	}
	_, err := strconv.ParseUint(name[dot+1:], 10, 64)
	return err == nil
}

// logNumber is the number at the end of a binary log's name.
func logNumber(name string) uint64 {
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, '.')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
