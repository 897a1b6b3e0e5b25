package binlogfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"
)

// LogEnd is where a server's binary log ends, as its last file tells.
type LogEnd struct {
	Server string // its version
	Flavor Flavor
	File   string
	Offset int64      // behind the last whole group
	State  *GTIDState // up to there
}

// ReadLogEnd reads the last file of a server's binary log, as a server that died
// left it, from r: up to the last group that is whole. What follows is dropped, as
// the server does when it starts. Errors: ErrCorrupt when it is no binary log or has
// no whole head; ErrEncrypted when only its server can read it; those of r.
func ReadLogEnd(ctx context.Context, r io.Reader, name string) (*LogEnd, error) {
	t := newTracker(1, name)
	var failed error
	in := bufio.NewReaderSize(&notedReader{r, &failed}, scanBuffer)
	if m, _ := in.Peek(len(magic)); string(m) == encryptedMagic { // scan meets what failed, too
		return nil, encrypted(name)
	}
	err := scan(ctx, in, t, func(e *Event) error {
		if e.Type == replication.MARIADB_START_ENCRYPTION_EVENT {
			return encrypted(name)
		}
		return nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case failed != nil:
		return nil, fmt.Errorf("%s: %w", name, failed)
	case errors.Is(err, ErrEncrypted):
		return nil, err
	}
	if t.info.Server == "" || t.added == nil {
		if err == nil {
			err = errBegun
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	}
	c := t.catalogue()
	state, err := stateAfter(c)
	if err != nil {
		return nil, err
	}
	return &LogEnd{Server: c.Server, Flavor: c.Flavor, File: name, Offset: c.Size, State: state}, nil
}

// notedReader notes an error of the reader that is not its end: unlike a file's
// torn end it must not be taken for one.
type notedReader struct {
	io.Reader
	err *error
}

func (r *notedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		*r.err = err
	}
	return n, err
}

// IndexNames reads the index of a server's binary log: its files, the oldest first.
func IndexNames(body []byte) (names []string, err error) { return indexedNames("the index", body) }
