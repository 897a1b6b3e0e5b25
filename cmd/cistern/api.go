package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
)

// api serves a volume over the control socket of its mount: the process itself for
// as long as it lives, the volume until it closes.
func api(s calls, m *mountProcess) http.Handler {
	h := control.Handlers{Status: exitStatus}
	mux, open := http.NewServeMux(), http.NewServeMux()
	processAPI(mux, h, m)
	mux.Handle("/", m.gate.guard(open, h, m.name()))
	filesAPI(open, h, s)
	volumeAPI(open, h, s, m)
	binlogAPI(open, h, s)
	if m.relay != nil {
		relayAPI(open, h, relayControl{m.relay})
		open.Handle("GET /v1/binlog/relay", h.Call(func(*http.Request) (any, error) { return m.relay.status(), nil }))
	} else {
		open.Handle("GET /v1/binlog/relay", h.Call(m.noRelay))
	}
	open.Handle("/", h.Call(func(r *http.Request) (any, error) {
		return nil, fmt.Errorf("the process that serves %s does not know the request %s: it is of another release than this command", m.name(), r.URL.Path)
	}))
	return mux
}

// processAPI serves what is asked of the process.
func processAPI(mux *http.ServeMux, h control.Handlers, m *mountProcess) {
	mux.Handle("GET /v1/ping", h.Call(func(*http.Request) (any, error) { return m.ping(), nil }))
	mux.Handle("GET /v1/status", h.Call(func(*http.Request) (any, error) { return m.status(), nil }))
	mux.Handle("GET /v1/requests", h.Call(func(*http.Request) (any, error) { return m.store.underWay.List(), nil }))
	mux.Handle("POST /v1/requests/end", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		id := q.int("id", 10)
		if q.err != nil {
			return nil, q.err
		}
		return m.store.underWay.End(uint64(id)), nil
	}))
	mux.Handle("POST /v1/shutdown", h.Stream(func(r *http.Request, emit func(any) error) error {
		q := queryOf(r)
		wait := !q.bool("no_wait")
		if q.err != nil {
			return q.err
		}
		return m.shutdown(r.Context(), wait, func(e umountEvent) error { return emit(e) })
	}))
}

// filesAPI serves files and directories.
func filesAPI(mux *http.ServeMux, h control.Handlers, s calls) {
	mux.Handle("GET /v1/stat", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		name, slots := q.path(), q.bool("slots")
		if q.err != nil {
			return nil, q.err
		}
		return s.stat(r.Context(), name, slots)
	}))
	mux.Handle("GET /v1/list", h.Stream(func(r *http.Request, emit func(any) error) error {
		q := queryOf(r)
		name, o := q.path(), listOptions{recursive: q.bool("recursive"), slots: q.bool("slots")}
		if q.err != nil {
			return q.err
		}
		return s.list(r.Context(), name, o, func(e entry) error { return emit(e) })
	}))
	mux.Handle("GET /v1/file", h.Body(func(r *http.Request, w io.Writer) error {
		q := queryOf(r)
		name, off, n := q.path(), q.int("offset", 10), q.int("length", 10)
		if q.err != nil {
			return q.err
		}
		return s.read(r.Context(), name, off, n, w)
	}))
	mux.Handle("PUT /v1/file", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		name, o := q.path(), q.putOptions()
		if q.err != nil {
			return nil, q.err
		}
		return s.put(r.Context(), name, r.Body, o)
	}))
	mux.Handle("POST /v1/mkdir", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		name, o := q.path(), q.putOptions()
		if q.err != nil {
			return nil, q.err
		}
		return true, s.mkdir(r.Context(), name, o)
	}))
	mux.Handle("POST /v1/symlink", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		name, target, o := q.path(), q.Get("target"), q.putOptions()
		if q.err != nil {
			return nil, q.err
		}
		return true, s.symlink(r.Context(), name, target, o)
	}))
	mux.Handle("DELETE /v1/file", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		name, recursive := q.path(), q.bool("recursive")
		if q.err != nil {
			return nil, q.err
		}
		return s.remove(r.Context(), name, recursive)
	}))
}

// volumeAPI serves what is asked of a volume as a whole.
func volumeAPI(mux *http.ServeMux, h control.Handlers, s calls, m *mountProcess) {
	mux.Handle("POST /v1/sync", h.Call(func(r *http.Request) (any, error) { return s.sync(r.Context()) }))
	mux.Handle("POST /v1/snapshot", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		o := q.snapshotOptions()
		if q.err != nil {
			return nil, q.err
		}
		return m.snapshot(r.Context(), o)
	}))
	mux.Handle("POST /v1/schedules", h.Call(func(*http.Request) (any, error) { return lookAtSchedules(s) }))
	mux.Handle("POST /v1/restore", h.Stream(func(r *http.Request, emit func(any) error) error {
		q := queryOf(r)
		n, names := uint64(q.int("commit", 10)), q.Values["path"]
		if q.err != nil {
			return q.err
		}
		return m.restorePaths(r.Context(), s, n, names, func(e restoreEvent) error { return emit(e) })
	}))
	mux.Handle("POST /v1/collect", h.Call(func(r *http.Request) (any, error) {
		q := queryOf(r)
		dry := q.bool("dry")
		if q.err != nil {
			return nil, q.err
		}
		return s.collect(r.Context(), dry)
	}))
	mux.Handle("POST /v1/check", h.Stream(func(r *http.Request, emit func(any) error) error {
		q := queryOf(r)
		o := checkRequest{Data: q.bool("data"), Repair: q.bool("repair")}
		if q.err != nil {
			return q.err
		}
		result, err := s.check(r.Context(), o, func(e checkEvent) error { return emit(e) })
		if err != nil {
			return err
		}
		return emit(checkEvent{Result: &result})
	}))
	mux.Handle("POST /v1/handover", h.Stream(func(r *http.Request, emit func(any) error) error {
		q := queryOf(r)
		keep := q.bool("keep")
		if q.err != nil {
			return q.err
		}
		return m.handover(r.Context(), keep, func(e handoverEvent) error { return emit(e) })
	}))
}

func queryOf(r *http.Request) query { return query{Values: r.URL.Query()} }

// query reads parameters and keeps the first error.
type query struct {
	url.Values
	err error
}

func (q *query) fail(name string, err error) {
	if err != nil && q.err == nil {
		q.err = usage(fmt.Errorf("parameter %s=%q: %w", name, q.Get(name), err))
	}
}

func (q *query) path() string {
	name, err := cleanPath(q.Get("path"))
	q.fail("path", err)
	return name
}

func (q *query) bool(name string) bool {
	if !q.Has(name) {
		return false
	}
	on, err := strconv.ParseBool(q.Get(name))
	q.fail(name, err)
	return on
}

func (q *query) int(name string, base int) int64 {
	n, err := strconv.ParseInt(q.Get(name), base, 64)
	q.fail(name, err)
	return n
}

func (q *query) putOptions() putOptions {
	return putOptions{
		Mode: uint32(q.int("mode", 8)) & 0o7777, Mtime: q.int("mtime", 10),
		Owner: [2]uint32{uint32(q.int("uid", 10)), uint32(q.int("gid", 10))},
	}
}

func (q *query) snapshotOptions() gateway.SnapshotOptions {
	tags, err := snapshotTags(q.Values["tag"])
	q.fail("tag", err)
	return gateway.SnapshotOptions{
		Name: q.Get("name"), Holder: q.Get("holder"), Commit: uint64(q.int("commit", 10)), Lifetime: time.Duration(q.int("lifetime", 10)), Tags: tags,
	}
}
