package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/fuse"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/internal/monitor"
	"github.com/cisternfs/cistern/objstore"
)

// Waits of a mount's end.
const (
	busyGrace    = 10 * time.Second // for programs that hold files when a signal unmounts
	noWaitGrace  = time.Second      // for a commit when told not to wait
	replyGrace   = 5 * time.Second  // for the last answers of the control socket
	metricsGrace = time.Second

	warningsWait = 5 * time.Second // for the bucket's settings, before the mount is ready

	// engineRequests is how many reads the engine may ask of the store at a time: more
	// than the store's limit lets through, which can be raised while the mount runs.
	engineRequests = 128
)

// served is what a mount shows.
type served interface {
	mount(ctx context.Context, dir string, o fuse.Options) (*fuse.Server, error)
	// calls are for the control socket; changed tells the kernel about a name
	// that changed behind its back.
	calls(changed func(parent gateway.InodeID, name string)) calls
	// pinned is nil but for a fixed point.
	pinned() *pointStatus
	Status() gateway.Status
	ObjectSize() int64
	Close(ctx context.Context) error
}

// present is a volume that this process owns.
type present struct{ *gateway.Volume }

func (p present) mount(ctx context.Context, dir string, o fuse.Options) (*fuse.Server, error) {
	return fuse.Mount(ctx, p.Volume, dir, o)
}

func (p present) calls(changed func(gateway.InodeID, string)) calls {
	return newLive(p.Volume, changed)
}

func (present) pinned() *pointStatus { return nil }

// mountProcess is the process of one mount.
type mountProcess struct {
	a       *app
	o       *mountOptions
	log     *slog.Logger
	v       served
	store   *store
	fs      shown
	started time.Time

	hurry  context.CancelFunc // ends the wait for the last commit
	mu     sync.Mutex         // guards the field below
	noWait bool               // told to leave the rest in the journal

	unmounts sync.RWMutex // held shared while a command's unmount runs
	gate     *gate        // of requests over the control socket

	relay  *relayed           // the binary log relay in this process; nil for none
	leave  chan chan struct{} // asks for an unmount; the answer comes when it is out of the tree
	closed chan struct{}      // closed when result is valid
	result error              // of closing the volume
}

// What a mount's process takes. Its goroutines sit in system calls, during which
// they occupy one of GOMAXPROCS: with few of them everybody waits for the disk.
// The memory limit makes the collector work harder before it is passed; it is
// no bound of its own. A relay's garbage is buffers of whole objects, which hold
// no pointers: to collect it more often costs little and halves its memory.
const (
	leastProcs     = 8
	memoryLimit    = 320 << 20 // bytes
	relayGCPercent = 50
)

// tuneRuntime sets what the environment leaves open.
func (o *mountOptions) tuneRuntime() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < leastProcs {
		runtime.GOMAXPROCS(leastProcs)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOGC") == "" && o.relay != nil {
		debug.SetGCPercent(relayGCPercent)
	}
}

// mountForeground serves the mount until it is unmounted.
func (a *app) mountForeground(ctx context.Context, o *mountOptions) error {
	// A mount outlives who reads its output.
	signal.Ignore(syscall.SIGPIPE)
	o.tuneRuntime()
	err := a.detach(o)
	var out io.Writer = a.stderr
	// A daemon's standard error is its log already.
	if err == nil && o.logFile != "" && o.readyFD < 0 {
		f, ferr := os.OpenFile(o.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if ferr != nil {
			return usage(localError(o.logFile, ferr))
		}
		defer f.Close() // every line was written at once
		out = f
	}
	m := &mountProcess{a: a, o: o, log: slog.New(slog.NewTextHandler(out, nil)), started: time.Now(), leave: make(chan chan struct{}), closed: make(chan struct{}), gate: newGate()}
	if rerr := monitor.Relax(); rerr != nil {
		m.log.Debug("the scheduler's monitor wakes more often than it needs to", "error", rerr) // as for every user but root
	}
	if err == nil {
		err = m.run(ctx)
	}
	return a.tellParent(o, err)
}

// run opens the volume, mounts it, serves it and closes it.
func (m *mountProcess) run(ctx context.Context) (err error) {
	reg := prometheus.NewRegistry()
	var metrics net.Listener
	if m.o.metrics != "" {
		if metrics, err = net.Listen("tcp", m.o.metrics); err != nil {
			return usage(fmt.Errorf("--metrics-addr %s: %w", m.o.metrics, err))
		}
		defer metrics.Close() // its server has closed it, or never began
	}
	requests, err := m.a.requests()
	if err != nil {
		return err
	}
	requests.engine = max(requests.engine, engineRequests)
	requests.bandwidth = objstore.BandwidthOptions{Upload: m.o.upload.Bytes, Download: m.o.download.Bytes}
	if m.store, err = m.a.openVolumeWith(ctx, m.o.t.url, reg, requests); err != nil {
		return err
	}
	warned := m.readWarnings(ctx)
	if m.v, err = m.open(ctx); err != nil {
		warned(false)
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	m.o.fuse.FSName, m.o.fuse.Logger = m.name(), m.log
	warned(true)
	if err := m.show(ctx); err != nil {
		return errors.Join(err, m.v.Close(ctx))
	}
	closing, hurry := context.WithCancel(ctx)
	defer hurry()
	m.hurry = hurry
	stop, err := m.startServers(metrics, reg)
	if err != nil {
		return errors.Join(err, m.fs.Detach(), m.v.Close(ctx))
	}
	if err := m.relay.begin(ctx, m.fs); err != nil {
		return errors.Join(err, m.fs.Detach(), stop(), m.v.Close(ctx))
	}
	hangups, endHangups := context.WithCancel(ctx)
	reloads := m.onHangup(hangups)
	m.ready()
	m.serve(closing)
	endHangups()
	<-reloads
	// What the volume's end means is known before the last answers go out.
	return errors.Join(m.result, stop())
}

// name is the URL of what is mounted, with the commit's number when it is fixed.
func (m *mountProcess) name() string {
	u := m.o.t.url
	if m.o.follows {
		u.Point = followPoint
	}
	if m.o.commit != 0 {
		u.Point = strconv.FormatUint(m.o.commit, 10)
	}
	return u.String()
}

// shown is how a volume is shown as a directory: *fuse.Server, or not at all.
type shown interface {
	Dir() string
	Done() <-chan struct{}
	Unmount() error
	Detach() error
	Invalidate(ino gateway.InodeID) error
	InvalidateEntry(parent gateway.InodeID, name string) error
}

// show mounts the volume where it is to be seen.
func (m *mountProcess) show(ctx context.Context) error {
	if m.o.dir == "" {
		m.fs = newUnshown()
		return nil
	}
	s, err := m.v.mount(ctx, m.o.dir, m.o.fuse)
	if err != nil {
		return err // not s: a nil pointer in an interface is not nil
	}
	m.fs = s
	if m.relay != nil {
		m.fs = showRelay(s, m.log)
	}
	return nil
}

// open opens what is to be mounted; a signal ends the wait for a lease.
func (m *mountProcess) open(ctx context.Context) (served, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-m.a.signals:
			cancel()
		case <-done:
		}
	}()
	defer func() { close(done); <-ended }()
	if m.o.follows || m.o.commit != 0 {
		m.a.sweepStates(m.log)
	}
	if m.o.follows {
		f, err := openFollowing(ctx, m.o, m.store, m.log)
		if err != nil {
			return nil, err // not f: a nil pointer in an interface is not nil
		}
		return f, nil
	}
	if m.o.commit != 0 {
		f, err := openFixed(ctx, m.o, m.store, m.log)
		if err != nil {
			return nil, err // not f: a nil pointer in an interface is not nil
		}
		return f, nil
	}
	v, err := gateway.Open(ctx, m.o.engineOptions(m.store, m.log))
	if err != nil {
		return nil, err
	}
	for _, err := range m.a.sweepCommands(v.ID()) {
		m.log.Warn("state directory is left", "error", err)
	}
	if m.o.relay != nil {
		if m.relay, err = m.o.relay.open(ctx, v, m.o.state, m.log); err != nil {
			return nil, errors.Join(err, v.Close(ctx))
		}
		return m.relay, nil
	}
	return present{v}, nil
}

// startServers starts the control socket, the registry's record and the
// metrics, and returns what ends them all.
func (m *mountProcess) startServers(metrics net.Listener, reg *prometheus.Registry) (stop func() error, err error) {
	var ends []func() error
	stop = func() error {
		var errs []error
		for _, f := range ends {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	socket := filepath.Join(m.o.state, socketName)
	remove, err := m.a.register(record{
		PID: os.Getpid(), URL: m.name(), MountPoint: text(m.fs.Dir()), StateDir: text(m.o.state), Socket: text(socket), Started: m.started,
	})
	if err != nil {
		// Commands find the mount by its lease, too.
		m.log.Warn("the mount is not in the registry", "error", err)
	} else {
		ends = append(ends, remove)
	}
	if metrics != nil {
		end, err := m.serveMetrics(metrics, reg)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		ends = append(ends, end)
	}
	s, err := control.Listen(socket, api(m.v.calls(m.changed), m), m.log)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	ends = append(ends, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), replyGrace)
		defer cancel()
		return s.Close(ctx)
	})
	return stop, nil
}

// changed makes the kernel forget a name that a command changed.
func (m *mountProcess) changed(parent gateway.InodeID, name string) {
	if err := m.fs.InvalidateEntry(parent, name); err != nil {
		m.log.Warn("the kernel may show an old name", "directory", parent, "name", name, "error", err)
	}
}

// readWarnings asks for what of the bucket's settings hurts a volume, while the
// volume is opened. What it returns waits for the answer and logs it, or calls the
// question off.
func (m *mountProcess) readWarnings(ctx context.Context) (end func(log bool)) {
	ctx, cancel := context.WithTimeout(ctx, warningsWait)
	var list []string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		list, err = m.store.warnings(ctx)
	}()
	return func(log bool) {
		if !log {
			cancel()
		}
		<-done
		cancel()
		if !log {
			return
		}
		if err != nil {
			m.log.Warn("the bucket's settings can't be read", "error", err)
		}
		for _, w := range list {
			m.log.Warn(w)
		}
	}
}

// ready tells whoever waits for the mount.
func (m *mountProcess) ready() {
	began, waiting := "mounted", ""
	if m.relay != nil {
		began = "relaying"
		if waiting = m.relay.waiting(); waiting != "" {
			began = "the relay is not connected to its source yet"
		}
	}
	m.log.Info(began, "volume", m.name(), "directory", m.fs.Dir(), "state", m.o.state, "durability", m.v.Status().Durability)
	if m.o.readyFD < 0 {
		err := m.a.say("%s: ready", m.o.what(m.name(), waiting))
		if err == nil && waiting != "" {
			err = m.a.say("%s", waiting)
		}
		if err != nil {
			m.log.Warn("nobody reads that the mount is ready", "error", err)
		}
	}
	m.a.tell(m.o, readiness{Ready: true, Waiting: waiting})
	// A service manager that started the process waits for this (Type=notify).
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		m.log.Warn("the service manager does not hear that the mount is ready", "error", err)
	}
}

// mountStatus is what `cistern status` shows of a mount.
type mountStatus struct {
	gateway.Status
	MountPoint     text      `json:"mount_point"`
	PID            int       `json:"pid"`
	Started        time.Time `json:"started"`
	ObjectSize     int64     `json:"object_size"`
	StoreAvailable bool      `json:"store_available"`
	// Requests are the limits of parallel requests, lower than they were set while
	// the store asks for fewer.
	Requests  objstore.LimitStatus `json:"requests"`
	Healthy   bool                 `json:"healthy"`
	Unhealthy string               `json:"unhealthy,omitempty"` // why

	Point *pointStatus `json:"point,omitempty"` // of a mount of a fixed point
}

func (m *mountProcess) status() mountStatus {
	health := m.store.metered.Health()
	s := mountStatus{
		Status: m.v.Status(), MountPoint: text(m.fs.Dir()), PID: os.Getpid(), Started: m.started.UTC(),
		ObjectSize: m.v.ObjectSize(), StoreAvailable: health.Available,
		Requests: m.store.limits.Status(), Point: m.v.pinned(),
	}
	if !health.Available && s.StoreError == "" && health.LastError != nil {
		// The engine learns of it when all attempts have failed, which takes minutes
		// where each of them hangs.
		since := health.Since.UTC()
		s.StoreError, s.StoreSince = health.LastError.Error(), &since
	}
	if s.Unhealthy = unhealthy(&s.Status); s.Unhealthy == "" {
		s.Unhealthy = s.Point.lapsed()
	}
	if s.Unhealthy == "" {
		s.Unhealthy = overdue(s.Follow)
	}
	s.Healthy = s.Unhealthy == ""
	return s
}

func (m *mountProcess) ping() ping {
	s := m.v.Status()
	return ping{PID: os.Getpid(), URL: m.name(), Volume: s.Volume, MountPoint: text(m.fs.Dir()), Place: m.store.place, Owns: s.Owns, Closing: m.gate.closed()}
}
