package binlogfs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// logHead is what a file begins with.
type logHead struct {
	format   Format
	serverID uint32
	previous *GTIDState
}

var (
	// errHead ends a scan behind a file's head events.
	errHead = errors.New("head")
	// errBegun: a file that was made and has nothing yet, as the last may be.
	errBegun = errors.New("it has no format description")
)

// readHead reads a file's format description and the GTIDs that it begins with,
// and refuses what is encrypted.
func readHead(f adoptable) (*logHead, error) {
	r, err := f.open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	defer r.Close() // only read
	in := bufio.NewReaderSize(r, scanBuffer)
	m, err := in.Peek(len(magic))
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, f.name, errBegun)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", f.name, err)
	case string(m) == encryptedMagic:
		return nil, encrypted(f.name)
	}
	t := newTracker(1, f.name)
	err = scan(context.Background(), in, t, func(e *Event) error {
		switch e.Type {
		case replication.MARIADB_START_ENCRYPTION_EVENT:
			return encrypted(f.name)
		case replication.FORMAT_DESCRIPTION_EVENT:
			return nil
		}
		return errHead
	})
	// A file of a server that runs may end anywhere.
	if err != nil && !errors.Is(err, errHead) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if t.info.Server == "" {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, f.name, errBegun)
	}
	return &logHead{format: t.format, serverID: t.info.ServerID, previous: t.prev}, nil
}

// encryptedMagic is what MySQL's encrypted binary logs begin with.
const encryptedMagic = "\xfdbin"

func encrypted(name string) error {
	return fmt.Errorf("%w: %s: let a relay pull it from its server, which sends it in clear", ErrEncrypted, name)
}

// listAdoptable lists a directory's binary logs in their order, as its index
// names them or, where there is none, by their names.
func listAdoptable(dir fs.FS) (files []adoptable, ripple bool, err error) {
	list, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, false, err
	}
	sizes := map[string]int64{}
	var names []string
	var index string
	for _, e := range list {
		switch {
		case !e.Type().IsRegular():
		case isLogName(e.Name()):
			st, err := e.Info()
			if err != nil {
				return nil, false, err
			}
			names, sizes[e.Name()] = append(names, e.Name()), st.Size()
		case strings.HasSuffix(e.Name(), ".index"):
			if index != "" {
				return nil, false, fmt.Errorf("%w: %s and %s: the directory has the logs of several servers, or relay logs beside them; adopt them from directories of their own", ErrNoLogs, index, e.Name())
			}
			index = e.Name()
		}
	}
	var starts map[string]string
	if index != "" {
		if names, starts, err = readIndex(dir, index); err != nil {
			return nil, false, err
		}
	}
	if len(names) == 0 {
		return nil, false, fmt.Errorf("%w: the directory has no files like mysql-bin.000001", ErrNoLogs)
	}
	slices.SortStableFunc(names, compareNumbers)
	for i, n := range names {
		if _, ok := sizes[n]; !ok {
			return nil, false, fmt.Errorf("%w: %s names %s, which is not there", ErrGap, index, n)
		}
		if i > 0 {
			if err := nextTo(names[i-1], n); err != nil {
				return nil, false, err
			}
		}
		f := adoptable{name: n, size: sizes[n], open: func() (io.ReadCloser, error) { return dir.Open(n) }}
		if starts != nil {
			next := ""
			if i+1 < len(names) {
				next = names[i+1]
			}
			start := starts[n]
			f.open = func() (io.ReadCloser, error) { return openRipple(dir, n, start, next) }
		}
		files = append(files, f)
	}
	return files, starts != nil, nil
}

func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(logNumber(a), logNumber(b)), strings.Compare(a, b))
}

// nextTo refuses files that are not neighbours.
func nextTo(a, b string) error {
	base := func(n string) string { return n[:strings.LastIndexByte(n, '.')] }
	if base(a) != base(b) {
		return fmt.Errorf("%w: %s and %s: the directory has logs of two names", ErrNoLogs, a, b)
	}
	if logNumber(b) != logNumber(a)+1 {
		return fmt.Errorf("%w: %s follows %s, and the files between are missing", ErrGap, b, a)
	}
	return nil
}

// maxIndex bounds an index that is read whole.
const maxIndex = 64 << 20

// readIndex reads a server's index, a name a line, or Ripple's, which also has
// the GTIDs that each file begins with.
func readIndex(dir fs.FS, name string) (names []string, starts map[string]string, err error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // only read
	body, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(body) > maxIndex {
		return nil, nil, fmt.Errorf("%w: %s has more than %d bytes, which no index of binary logs has", ErrCorrupt, name, maxIndex)
	}
	if bytes.HasPrefix(body, []byte(rippleIndex)) {
		return readRippleIndex(name, string(body))
	}
	names, err = indexedNames(name, body)
	return names, nil, err
}

// indexedNames reads a server's index.
func indexedNames(name string, body []byte) (names []string, err error) {
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		n := path.Base(strings.ReplaceAll(line, "\\", "/"))
		if !isLogName(n) {
			return nil, fmt.Errorf("%w: %s has a line that names no binary log: %.60q", ErrCorrupt, name, line)
		}
		names = append(names, n)
	}
	return names, nil
}

// uuidBeside is the server_uuid in the auto.cnf of a MySQL data directory; empty
// when there is none.
func uuidBeside(dir fs.FS) string {
	body, err := fs.ReadFile(dir, "auto.cnf")
	if err != nil || len(body) > 4096 {
		return ""
	}
	m := regexp.MustCompile(`(?m)^\s*server-uuid\s*=\s*([0-9a-fA-F-]{36})\s*$`).FindSubmatch(body)
	if m == nil {
		return ""
	}
	return strings.ToLower(string(m[1]))
}
