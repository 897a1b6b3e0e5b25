package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxConnections = 64
	maxRequest     = 1 << 20 // bytes of a request that carries no file
	headerWait     = 10 * time.Second
)

// Server listens on a Unix socket.
type Server struct {
	http *http.Server
	path string
	done chan error
}

// Listen serves h at path, replacing a socket that a dead process left there;
// the caller makes sure that no living one uses it. Only root and the user of
// this process are answered.
func Listen(path string, h http.Handler, log *slog.Logger) (*Server, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	short, dir, err := shorten(path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	defer dir.Close() // only named the socket
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // its name ends with this call
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), l.Close())
	}
	s := &Server{path: path, done: make(chan error, 1)}
	s.http = &http.Server{
		Handler: guard(h), ReadHeaderTimeout: headerWait, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerOf(c))
		},
	}
	go func() { s.done <- s.http.Serve(&bounded{Listener: l, free: make(chan struct{}, maxConnections)}) }()
	return s, nil
}

// Close takes no more requests, waits for those under way until ctx ends and
// then cuts them off, and removes the socket.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	if serr := <-s.done; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	if rerr := os.Remove(s.path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return fmt.Errorf("close control socket %s: %w", s.path, err)
	}
	return nil
}

// shorten names a socket by a descriptor of its directory, since a socket's
// path has at most 107 bytes.
func shorten(path string) (string, *os.File, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path), dir, nil
}

// peer is who is at the other end of a connection.
type peer struct {
	uid uint32
	err error
}

type peerKey struct{}

func peerOf(c net.Conn) peer {
	u, ok := c.(interface{ unix() *net.UnixConn })
	if !ok {
		return peer{err: errors.New("not a connection of a Unix socket")}
	}
	raw, err := u.unix().SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return peer{err: err}
	}
	return peer{uid: cred.Uid}
}

// guard turns strangers away.
func guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(peer)
		switch {
		case !ok || p.err != nil:
			fail(w, &Error{Message: "the caller's user can't be found out", Status: 1})
		case p.uid != 0 && int(p.uid) != os.Geteuid():
			fail(w, &Error{Message: fmt.Sprintf("user %d may not control this mount: only root and user %d may", p.uid, os.Geteuid()), Status: 1})
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// bounded is a listener of few connections.
type bounded struct {
	net.Listener
	free chan struct{} // holds a token for each connection
}

func (b *bounded) Accept() (net.Conn, error) {
	b.free <- struct{}{}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.free
		return nil, err
	}
	return &conn{Conn: c, free: b.free}, nil
}

type conn struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

func (c *conn) unix() *net.UnixConn { u, _ := c.Conn.(*net.UnixConn); return u }

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.free })
	return err
}

// Error is a failure as it crosses the socket: a sentence, and the exit status
// that it means.
type Error struct {
	Message string `json:"error"`
	Status  int    `json:"status"`
}

func (e *Error) Error() string { return e.Message }

// Handlers make handlers whose errors cross with the status that they mean.
type Handlers struct {
	Status func(error) int
}

func (h Handlers) wrap(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Message: err.Error(), Status: h.Status(err)}
}

func fail(w http.ResponseWriter, e *Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	// The client sees a reply that broke off: there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(e)
}

// Call answers with one document.
func (h Handlers) Call(f func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			fail(w, h.wrap(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // as above
	}
}

// line is one line of a stream.
type line struct {
	Item   any    `json:"item,omitempty"`
	End    bool   `json:"end,omitempty"`
	Error  string `json:"error,omitempty"`
	Status int    `json:"status,omitempty"`
}

// Stream answers with a document for each call of emit, which is sent at once.
func (h Handlers) Stream(f func(r *http.Request, emit func(any) error) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		w.Header().Set("Content-Type", "application/x-ndjson")
		enc := json.NewEncoder(w)
		flush := http.NewResponseController(w)
		emit := func(item any) error {
			if err := enc.Encode(line{Item: item}); err != nil {
				return fmt.Errorf("answer: %w", err)
			}
			return flush.Flush()
		}
		last := line{End: true}
		if err := f(r, emit); err != nil {
			e := h.wrap(err)
			last = line{Error: e.Message, Status: e.Status}
		}
		_ = enc.Encode(last) // as above
	}
}

const endTrailer = "Cistern-End"

// Body answers with bytes.
func (h Handlers) Body(f func(r *http.Request, w io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", endTrailer)
		w.Header().Set("Content-Type", "application/octet-stream")
		end := "ok"
		if err := f(r, w); err != nil {
			text, merr := json.Marshal(h.wrap(err))
			if merr != nil {
				text = []byte(`{"error":"failed","status":1}`)
			}
			end = string(text)
		}
		// Flushed before the trailer: a body that the server could measure would
		// be sent with a length and without trailers.
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		w.Header().Set(endTrailer, end)
	}
}
