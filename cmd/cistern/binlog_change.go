package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
)

// binlogChanges are what commands change in an archive, as who writes its volume
// does it.
type binlogChanges interface {
	purgeBinlogs(ctx context.Context, dir string, p binlogfs.Policy, dry bool) (binlogPurged, error)
	markBinlogs(ctx context.Context, dir, name, at string) (binlogfs.KeepMark, error)
	unmarkBinlogs(ctx context.Context, dir, name string) error
	marksOfBinlogs(ctx context.Context, dir string) ([]binlogfs.KeepMark, error)
}

// binlogPurged is what a purge did or would do.
type binlogPurged struct {
	DryRun  bool               `json:"dry_run"`
	Files   []binlogFile       `json:"files"` // deleted
	Deleted int64              `json:"deleted_bytes"`
	Left    int                `json:"files_left"`
	Kept    []binlogfs.KeptFor `json:"kept_for"`
}

func purgedOf(p *binlogfs.Purged, dry bool) binlogPurged {
	out := binlogPurged{DryRun: dry, Files: []binlogFile{}, Deleted: p.Deleted, Left: p.Left, Kept: p.Kept}
	for _, f := range p.Files {
		out.Files = append(out.Files, fileOf(f))
	}
	return out
}

// binlogs is the archive in a directory of the volume: the relay's own while one
// runs in this process.
func (l *live) binlogs(ctx context.Context, dir string) (*binlogfs.Log, error) {
	if l.relayed != nil {
		log, at := l.relayed()
		if at != dir {
			return nil, usage(fmt.Errorf("this volume's relay keeps its archive in /%s, not in /%s", at, dir))
		}
		return log, nil
	}
	_, err := l.lookup(ctx, path.Join(dir, binlogfs.IdentityName))
	switch {
	case errors.Is(err, gateway.ErrNotExist):
		return nil, binlogfs.NoLog(dir)
	case err != nil:
		return nil, err
	}
	return binlogfs.OpenLog(ctx, l.v, binlogfs.LogOptions{Dir: dir})
}

// seen tells the kernel about names below the archive's directory that changed.
func (l *live) seen(ctx context.Context, names ...string) error {
	for _, name := range names {
		dir, base, err := l.parent(ctx, name)
		if err != nil {
			return err
		}
		l.changed(dir.ID, base)
	}
	return nil
}

func (l *live) purgeBinlogs(ctx context.Context, dir string, p binlogfs.Policy, dry bool) (binlogPurged, error) {
	log, err := l.binlogs(ctx, dir)
	if err != nil {
		return binlogPurged{}, err
	}
	done, err := log.Apply(ctx, p, dry)
	if err != nil {
		return binlogPurged{}, err
	}
	for _, f := range done.Files {
		name := path.Join(dir, f.Path())
		if err := l.seen(ctx, name, name+".json", path.Join(path.Dir(name), "binlog.index")); err != nil && !dry {
			return binlogPurged{}, err
		}
	}
	return purgedOf(done, dry), nil
}

func (l *live) markBinlogs(ctx context.Context, dir, name, at string) (binlogfs.KeepMark, error) {
	log, err := l.binlogs(ctx, dir)
	if err != nil {
		return binlogfs.KeepMark{}, err
	}
	m, err := log.Mark(ctx, name, at)
	if err == nil {
		err = l.seen(ctx, path.Join(dir, "marks.json"))
	}
	return m, err
}

func (l *live) unmarkBinlogs(ctx context.Context, dir, name string) error {
	log, err := l.binlogs(ctx, dir)
	if err == nil {
		err = log.Unmark(ctx, name)
	}
	if err == nil {
		err = l.seen(ctx, path.Join(dir, "marks.json"))
	}
	return err
}

func (l *live) marksOfBinlogs(ctx context.Context, dir string) ([]binlogfs.KeepMark, error) {
	log, err := l.binlogs(ctx, dir)
	if err != nil {
		return nil, err
	}
	return append([]binlogfs.KeepMark{}, log.Marks()...), nil
}

func (r *remote) marksOfBinlogs(ctx context.Context, dir string) (all []binlogfs.KeepMark, err error) {
	return all, r.c.Call(ctx, http.MethodGet, "/v1/binlog/mark", url.Values{"dir": {dir}}, nil, &all)
}

func (r *remote) purgeBinlogs(ctx context.Context, dir string, p binlogfs.Policy, dry bool) (binlogPurged, error) {
	q := url.Values{
		"dir": {dir}, "dry": {flag(dry)}, "to": {p.To}, "before": {strconv.FormatInt(unixNano(p.Before), 10)}, "age": {strconv.FormatInt(int64(p.KeepAge), 10)},
		"files": {strconv.Itoa(p.KeepFiles)}, "size": {strconv.FormatInt(p.KeepSize, 10)},
	}
	var out binlogPurged
	err := r.c.Call(ctx, http.MethodPost, "/v1/binlog/purge", q, nil, &out)
	return out, err
}

func (r *remote) markBinlogs(ctx context.Context, dir, name, at string) (binlogfs.KeepMark, error) {
	var m binlogfs.KeepMark
	err := r.c.Call(ctx, http.MethodPut, "/v1/binlog/mark", url.Values{"dir": {dir}, "name": {name}, "at": {at}}, nil, &m)
	return m, err
}

func (r *remote) unmarkBinlogs(ctx context.Context, dir, name string) error {
	var ok bool
	return r.c.Call(ctx, http.MethodDelete, "/v1/binlog/mark", url.Values{"dir": {dir}, "name": {name}}, nil, &ok)
}

// unixNano is a time as a number; 0 for none.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// binlogAPI serves changes of an archive over the control socket.
func binlogAPI(mux *http.ServeMux, h control.Handlers, s calls) {
	with := func(f func(r *http.Request, b binlogChanges, dir string) (any, error)) http.HandlerFunc {
		return h.Call(func(r *http.Request) (any, error) {
			b, ok := s.(binlogChanges)
			if !ok {
				return nil, errReadsOnly
			}
			return f(r, b, strings.Trim(r.URL.Query().Get("dir"), "/"))
		})
	}
	mux.Handle("POST /v1/binlog/purge", with(func(r *http.Request, b binlogChanges, dir string) (any, error) {
		q := query{Values: r.URL.Query()}
		dry, before := q.bool("dry"), q.int("before", 10)
		p := binlogfs.Policy{To: q.Get("to"), KeepAge: time.Duration(q.int("age", 10)), KeepFiles: int(q.int("files", 10)), KeepSize: q.int("size", 10)}
		if q.err != nil {
			return nil, q.err
		}
		if before != 0 {
			p.Before = time.Unix(0, before)
		}
		return b.purgeBinlogs(r.Context(), dir, p, dry)
	}))
	mux.Handle("GET /v1/binlog/mark", with(func(r *http.Request, b binlogChanges, dir string) (any, error) {
		return b.marksOfBinlogs(r.Context(), dir)
	}))
	mux.Handle("PUT /v1/binlog/mark", with(func(r *http.Request, b binlogChanges, dir string) (any, error) {
		return b.markBinlogs(r.Context(), dir, r.URL.Query().Get("name"), r.URL.Query().Get("at"))
	}))
	mux.Handle("DELETE /v1/binlog/mark", with(func(r *http.Request, b binlogChanges, dir string) (any, error) {
		return true, b.unmarkBinlogs(r.Context(), dir, r.URL.Query().Get("name"))
	}))
}

// changesBinlog runs f on the archive as who writes its volume: the relay or the
// mount of this machine, or this command, which takes the lease for it.
func (a *app) changesBinlog(ctx context.Context, vol string, takeover bool, f func(b binlogChanges) error) error {
	s, _, err := a.writer(ctx, vol, takeover)
	if err != nil {
		return err
	}
	b, ok := s.(binlogChanges)
	if !ok {
		return finish(ctx, s, errReadsOnly)
	}
	return finish(ctx, s, f(b))
}
