package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/metadata"
)

// remote is a volume behind its owner's control socket.
type remote struct{ c *control.Client }

func flag(on bool) string { return strconv.FormatBool(on) }

func (r *remote) stat(ctx context.Context, name string, slots bool) (entry, error) {
	var e entry
	err := r.c.Call(ctx, http.MethodGet, "/v1/stat", url.Values{"path": {name}, "slots": {flag(slots)}}, nil, &e)
	return e, err
}

func (r *remote) list(ctx context.Context, name string, o listOptions, fn func(entry) error) error {
	q := url.Values{"path": {name}, "recursive": {flag(o.recursive)}, "slots": {flag(o.slots)}}
	return r.c.Stream(ctx, http.MethodGet, "/v1/list", q, func(item json.RawMessage) error {
		var e entry
		if err := json.Unmarshal(item, &e); err != nil {
			return fmt.Errorf("the mount's answer is not understood: %w", err)
		}
		return fn(e)
	})
}

func (r *remote) read(ctx context.Context, name string, off, n int64, w io.Writer) error {
	q := url.Values{"path": {name}, "offset": {strconv.FormatInt(off, 10)}, "length": {strconv.FormatInt(n, 10)}}
	return r.c.Body(ctx, "/v1/file", q, w)
}

func putQuery(name string, o putOptions) url.Values {
	return url.Values{
		"path": {name}, "mode": {strconv.FormatUint(uint64(o.Mode), 8)}, "mtime": {strconv.FormatInt(o.Mtime, 10)},
		"uid": {strconv.FormatUint(uint64(o.Owner[0]), 10)}, "gid": {strconv.FormatUint(uint64(o.Owner[1]), 10)},
	}
}

func (r *remote) put(ctx context.Context, name string, body io.Reader, o putOptions) (entry, error) {
	var e entry
	// Wrapped, so that the transport neither closes the reader nor believes a length.
	err := r.c.Call(ctx, http.MethodPut, "/v1/file", putQuery(name, o), struct{ io.Reader }{body}, &e)
	return e, err
}

func (r *remote) symlink(ctx context.Context, name, target string, o putOptions) error {
	q := putQuery(name, o)
	q.Set("target", target)
	var ok bool
	return r.c.Call(ctx, http.MethodPost, "/v1/symlink", q, nil, &ok)
}

func (r *remote) mkdir(ctx context.Context, name string, o putOptions) error {
	var ok bool
	return r.c.Call(ctx, http.MethodPost, "/v1/mkdir", putQuery(name, o), nil, &ok)
}

func (r *remote) remove(ctx context.Context, name string, recursive bool) (int64, error) {
	var n int64
	err := r.c.Call(ctx, http.MethodDelete, "/v1/file", url.Values{"path": {name}, "recursive": {flag(recursive)}}, nil, &n)
	return n, err
}

func (r *remote) sync(ctx context.Context) (metadata.CommitID, error) {
	var id metadata.CommitID
	err := r.c.Call(ctx, http.MethodPost, "/v1/sync", nil, nil, &id)
	return id, err
}

func (r *remote) snapshot(ctx context.Context, o gateway.SnapshotOptions) (snapshotLine, error) {
	q := url.Values{
		"name": {o.Name}, "holder": {o.Holder}, "commit": {strconv.FormatUint(o.Commit, 10)}, "lifetime": {strconv.FormatInt(int64(o.Lifetime), 10)},
	}
	for k, v := range o.Tags {
		q.Add("tag", k+"="+v)
	}
	var l snapshotLine
	err := r.c.Call(ctx, http.MethodPost, "/v1/snapshot", q, nil, &l)
	return l, err
}

func (r *remote) collect(ctx context.Context, dry bool) (collected, error) {
	var out collected
	err := r.c.Call(ctx, http.MethodPost, "/v1/collect", url.Values{"dry": {flag(dry)}}, nil, &out)
	return out, err
}

func (r *remote) check(ctx context.Context, o checkRequest, fn func(checkEvent) error) (checkResult, error) {
	var result checkResult
	q := url.Values{"data": {flag(o.Data)}, "repair": {flag(o.Repair)}}
	err := r.c.Stream(ctx, http.MethodPost, "/v1/check", q, func(item json.RawMessage) error {
		var e checkEvent
		if err := json.Unmarshal(item, &e); err != nil {
			return fmt.Errorf("the mount's answer is not understood: %w", err)
		}
		if e.Result != nil {
			result = *e.Result
			return nil
		}
		return fn(e)
	})
	return result, err
}

// status asks the mount how it is.
func (r *remote) status(ctx context.Context) (mountStatus, error) {
	var s mountStatus
	err := r.c.Call(ctx, http.MethodGet, "/v1/status", nil, nil, &s)
	return s, err
}

func (r *remote) close(context.Context) error { return nil }
