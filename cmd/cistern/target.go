package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/objstore"
)

// target is what a <vol> argument names.
type target struct {
	url   objstore.URL // without its point
	point string
	mount string // where it is mounted, when it was named so
	fixed bool   // what is mounted there is the point
	// follows: what is mounted there follows the writer; point is followPoint.
	follows bool
}

// given is the URL with its point.
func (t target) given() string {
	u := t.url
	u.Point = t.point
	return u.String()
}

// mounted is a mount of ours in the mount table.
type mounted struct {
	dir    string
	source string
}

// mountType is how the mount table calls a mount of ours.
const mountType = "fuse.cistern"

// findMount looks dir up in the mount table, newest mount first. It touches
// nothing below dir: a dead mount would answer with an error, or never.
func findMount(dir string) (mounted, bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mounted{}, false, fmt.Errorf("read the mount table: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return mounted{}, false, fmt.Errorf("%s: %w", dir, err)
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	if m, ok := lookUpMount(string(table), abs); ok {
		return m, m.source != "", nil
	}
	// The last component may be a link to the mount point.
	if to, err := os.Readlink(abs); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(abs), to)
		}
		m, ok := lookUpMount(string(table), filepath.Clean(to))
		return m, ok && m.source != "", nil
	}
	return mounted{}, false, nil
}

// lookUpMount returns what is mounted on top at dir; its source is empty when
// that is no mount of ours.
func lookUpMount(table, dir string) (mounted, bool) {
	found, ok := mounted{}, false
	for line := range strings.Lines(table) {
		left, right, cut := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !cut || len(l) < 5 || len(r) < 2 || unescapeMount(l[4]) != dir {
			continue
		}
		found, ok = mounted{dir: dir}, true
		if r[0] == mountType {
			found.source = unescapeMount(r[1])
		}
	}
	return found, ok
}

// mountBelow returns a mount point, of whatever kind, somewhere below dir; empty
// when there is none. Who deletes all that is in dir would delete what is mounted.
func mountBelow(dir string) (string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("read the mount table: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", localError(dir, err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 {
			if point := unescapeMount(f[4]); point != real && within(point, real) {
				return point, nil
			}
		}
	}
	return "", nil
}

// unescapeMount undoes the mount table's octal escapes.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// resolve finds out what a <vol> argument names.
func (a *app) resolve(arg string) (target, error) {
	if strings.Contains(arg, "://") {
		u, err := objstore.ParseURL(arg)
		if err != nil {
			return target{}, usage(err)
		}
		t := target{url: u, point: u.Point}
		t.url.Point = ""
		return t, nil
	}
	m, ok, err := findMount(arg)
	if err != nil {
		return target{}, err
	}
	point := ""
	if i := strings.LastIndexByte(arg, '@'); !ok && i > strings.LastIndexByte(arg, '/') {
		point = arg[i+1:]
		if m, ok, err = findMount(arg[:i]); err != nil {
			return target{}, err
		}
	}
	if !ok {
		return target{}, usage(fmt.Errorf("%s is neither a URL (file:///dir, s3://bucket/prefix, gs://bucket/prefix) nor a directory on which a volume is mounted", arg))
	}
	source := m.source
	if r, found := a.findRecord(m.dir); found {
		source = r.URL
	}
	u, err := objstore.ParseURL(source)
	if err != nil {
		return target{}, fmt.Errorf("the mount at %s does not tell which volume it shows: use the volume's URL", m.dir)
	}
	t := target{url: u, point: point, mount: m.dir}
	if point == "" {
		t.point, t.fixed = u.Point, u.Point != ""
		t.follows = u.Point == followPoint
	}
	t.url.Point = ""
	return t, nil
}

// pingWait is how long a mount may take to answer that it is there.
const pingWait = 5 * time.Second

// ping is what a mount says about itself.
type ping struct {
	PID        int    `json:"pid"`
	URL        string `json:"url"`
	Volume     string `json:"volume"`
	MountPoint text   `json:"mount_point"`
	Place      string `json:"place"`   // of the service that has the bucket
	Owns       bool   `json:"owns"`    // it is the volume's writer, as far as it knows
	Closing    bool   `json:"closing"` // it answers for itself, not for the volume any more
}

// process returns a client of the process that serves the mounted point that a
// target names, and else of the volume's owner, also one that is just ending; nil
// when there is none.
func (a *app) process(ctx context.Context, t target) (*control.Client, error) {
	c, _, err := a.findServer(ctx, t)
	return c, err
}

// server is process for who wants something of the volume: it waits until one that
// is just ending has ended.
func (a *app) server(ctx context.Context, t target) (*control.Client, error) {
	c, _, err := a.unlessClosing(ctx, t, a.findServer)
	return c, err
}

// owner returns a client of the process of this machine that owns the volume,
// or that serves the directory that was named; nil when none does. It waits until
// one that is just ending has ended.
func (a *app) owner(ctx context.Context, t target) (*control.Client, error) {
	c, _, err := a.findOwner(ctx, t)
	return c, err
}

// findOwner is owner with what the process said about itself. A mount that was
// fenced or handed over shows a past: it counts only when its directory was named.
func (a *app) findOwner(ctx context.Context, t target) (*control.Client, ping, error) {
	return a.unlessClosing(ctx, t, a.findAnyOwner)
}

// endPause is the time between looks at a process that is ending, and endPatience
// the time after which the user is told what is waited for.
const (
	endPause    = 50 * time.Millisecond
	endPatience = 2 * time.Second
)

// unlessClosing finds a process, and waits for the end of one that closes its
// volume: it takes as long as what is not committed takes to the bucket, or ends
// without when that makes no progress.
func (a *app) unlessClosing(ctx context.Context, t target, find func(context.Context, target) (*control.Client, ping, error)) (*control.Client, ping, error) {
	begin, told := time.Now(), false
	for {
		c, p, err := find(ctx, t)
		if err != nil || c == nil || !p.Closing {
			return c, p, err
		}
		if !told && time.Since(begin) > endPatience {
			a.note("process %d is unmounting %s: waiting for its end", p.PID, t.url)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, p, gateway.ErrInterrupted
		case <-time.After(endPause):
		}
	}
}

func (a *app) findServer(ctx context.Context, t target) (*control.Client, ping, error) {
	if !t.fixed {
		return a.findAnyOwner(ctx, t)
	}
	r, ok := a.findRecord(t.mount)
	if !ok {
		return nil, ping{}, nil
	}
	u := t.url
	u.Point = t.point
	return pingSocket(ctx, string(r.Socket), u)
}

// findAnyOwner is findOwner for one that is just ending, too.
func (a *app) findAnyOwner(ctx context.Context, t target) (*control.Client, ping, error) {
	// The registry first: it answers while the store is away.
	if c, p, err := a.findRecorded(ctx, t); c != nil || err != nil {
		return c, p, err
	}
	s, err := a.openStore(ctx, t.url, false, nil)
	if err != nil {
		return nil, ping{}, err
	}
	if _, err := gateway.ReadVolumeDoc(ctx, s, t.url.String()); err != nil {
		return nil, ping{}, err
	}
	return findLeased(ctx, t, s)
}

// findRecorded is findAnyOwner by the registry alone. Which volume a URL means
// depends on the endpoint that is set: a mount of the same URL in another service
// is passed over.
func (a *app) findRecorded(ctx context.Context, t target) (*control.Client, ping, error) {
	list := a.records(t)
	if len(list) == 0 {
		return nil, ping{}, nil
	}
	place, err := "", error(nil)
	if t.mount == "" {
		if place, err = a.place(ctx, t.url); err != nil {
			return nil, ping{}, err
		}
	}
	for _, r := range list {
		c, p, err := pingSocket(ctx, string(r.Socket), t.url)
		if err != nil || c != nil && (t.mount != "" || p.Owns && p.Place == place) {
			return c, p, err
		}
	}
	return nil, ping{}, nil
}

// findLeased is findOwner by the lease alone.
func findLeased(ctx context.Context, t target, s objstore.Store) (*control.Client, ping, error) {
	l, err := gateway.ReadLease(ctx, s)
	if err != nil {
		return nil, ping{}, err
	}
	host, err := os.Hostname()
	if err != nil || l.Released || l.Owner.Host != host || l.Owner.StateDir == "" {
		return nil, ping{}, nil
	}
	c, p, err := pingSocket(ctx, filepath.Join(l.Owner.StateDir, socketName), t.url)
	if c != nil && !p.Owns && t.mount == "" {
		c = nil
	}
	return c, p, err
}

// Pauses between pings of a process that is just ending.
const (
	pingTries = 20
	pingPause = 50 * time.Millisecond
)

// pingSocket returns a client of a socket at which the volume's owner answers,
// or nil when nobody does.
func pingSocket(ctx context.Context, socket string, u objstore.URL) (*control.Client, ping, error) {
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	c := control.NewClient(socket)
	for try := 1; ; try++ {
		var p ping
		err := c.Call(ctx, "GET", "/v1/ping", nil, nil, &p)
		switch {
		case err == nil && p.URL == u.String():
			return c, p, nil
		case err == nil:
			return nil, p, nil // another volume's by now
		case errors.Is(err, os.ErrPermission):
			return nil, p, fmt.Errorf("the volume is mounted by another user: %w", err)
		case errors.Is(err, control.ErrNoServer):
			return nil, p, nil
		case ctx.Err() != nil:
			return nil, p, fmt.Errorf("the process that serves the volume does not answer at %s", socket)
		case try == pingTries || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF):
			return nil, p, err
		}
		time.Sleep(pingPause) // it was there and ended meanwhile: nobody is, soon
	}
}
