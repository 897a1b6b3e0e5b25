package binlogfs

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/server"
)

const (
	handshakeTime  = 10 * time.Second
	handshakeBytes = 64 << 10        // read from a client before it is known who it is
	idleTime       = 8 * time.Hour   // a server's wait_timeout
	writeTime      = time.Minute     // a server's net_write_timeout
	acceptPause    = time.Second     // after a connection could not be accepted
	killTime       = 2 * time.Second // for a last word to a client that is sent away
)

// Archive is what a Server serves: a Log, or an archive that nobody writes to.
// Its methods are safe for concurrent use and don't wait.
type Archive interface {
	// Files returns the catalogues, the oldest file first.
	Files() []*FileInfo
	// Open opens a file for reading.
	Open(ctx context.Context, epoch uint32, name string) (File, error)
	// End returns the place up to which groups may be told of, and a channel that
	// is closed when it moves.
	End() (Position, <-chan struct{})
	// State returns the GTIDs at the end; nil while there is nothing.
	State() *GTIDState
	// Sources returns the server of each epoch.
	Sources() []Source
}

// Keeper is an Archive's part that deletes files, and is told what may not go.
type Keeper interface {
	Need(reader any, pos Position)
	Done(reader any)
	Purge(ctx context.Context, epoch uint32, name string) ([]*FileInfo, error)
}

// Control is the pulling half of a relay, as clients of the Server see it. Its
// errors go to the client as they are: one sentence.
type Control interface {
	Status() SourceStatus
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	Change(ctx context.Context, c SourceChange) error
	// Cut is FLUSH BINARY LOGS.
	Cut(ctx context.Context) error
}

// SourceStatus is what SHOW SLAVE STATUS tells.
type SourceStatus struct {
	Host         string
	Port         int
	User         string
	ConnectRetry time.Duration
	State        string // in a few words; empty when it is stopped
	Started      bool   // it is connected, or tries to be
	Connected    bool
	UseGTID      bool
	TLS          bool
	ServerID     uint32
	UUID         string   // MySQL's
	Read         Position // received up to
	Lag          time.Duration
	LagKnown     bool
	ErrorCode    uint16
	Error        string // the last one; empty when it was overcome
	ErrorTime    time.Time
}

// The ways in which a user proves its password.
const (
	AuthNative      = mysql.AUTH_NATIVE_PASSWORD
	AuthCachingSHA2 = mysql.AUTH_CACHING_SHA2_PASSWORD
)

// User may connect to a Server.
type User struct {
	Name     string
	Password string
	Auth     string // AuthNative or AuthCachingSHA2
	Manage   bool   // may purge, kill and change things
}

// ServerOptions say how a Server works.
type ServerOptions struct {
	Archive  Archive
	Keeper   Keeper  // nil: nothing is ever purged
	Control  Control // nil: nothing is pulled
	Users    []User
	ServerID uint32        // the relay's own
	UUID     string        // the relay's own, for MySQL's replicas
	Version  func() string // of the source, as it tells it; nil or empty: what the newest file says
	TLS      *tls.Config   // nil: none
	// RequireTLS refuses connections without TLS.
	RequireTLS     bool
	SemiSync       bool // replicas may ask for semi-synchronous replication
	MaxConnections int  // default 200
	Logger         *slog.Logger
}

// Validate says what is wrong with the options.
func (o *ServerOptions) Validate() error {
	if o.Archive == nil || o.ServerID == 0 {
		return errors.New("a server for replicas needs an archive and a server id other than 0")
	}
	if o.RequireTLS && o.TLS == nil {
		return errors.New("TLS is required of replicas, and there is no certificate for it")
	}
	if len(o.Users) == 0 {
		return errors.New("no user may connect: name one with its password")
	}
	for _, u := range o.Users {
		if u.Name == "" || u.Auth != AuthNative && u.Auth != AuthCachingSHA2 {
			return fmt.Errorf("user %q has the authentication %q: choose %s or %s", u.Name, u.Auth, AuthNative, AuthCachingSHA2)
		}
	}
	return nil
}

// Server serves an Archive to replicas and answers ordinary clients. All methods
// are safe for concurrent use.
type Server struct {
	opt   ServerOptions
	key   *rsa.PrivateKey // for caching_sha2 without TLS; nil when nobody uses that
	began time.Time

	mu       sync.Mutex // guards the fields below
	conf     *server.Server
	version  string // that conf announces
	sessions map[uint32]*session
	opening  int // connections that have no session yet
}

// NewServer checks the options.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 200
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opt: o, began: time.Now(), sessions: map[uint32]*session{}}
	if slices.ContainsFunc(o.Users, func(u User) bool { return u.Auth == AuthCachingSHA2 }) {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			return nil, fmt.Errorf("make a key for passwords: %w", err)
		}
		s.key = key
	}
	return s, nil
}

// Serve accepts connections until ctx ends, then closes them all and waits.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		l.Close() // its error would be that it is closed
		s.killAll(errGone)
	})
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close() // nothing was said on it
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept replicas: %w", err)
		}
		if err != nil {
			s.opt.Logger.Warn("a connection could not be accepted", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		all.Go(func() { s.connection(ctx, c) })
	}
}

// sourceVersion is what the server tells its version to be: replicas choose
// their dialect by it.
func (s *Server) sourceVersion() string {
	if s.opt.Version != nil {
		if v := strings.TrimPrefix(s.opt.Version(), compatible); v != "" {
			return v // a greeting's compatible version is not part of it
		}
	}
	files := s.opt.Archive.Files()
	for i := len(files) - 1; i >= 0; i-- {
		if files[i].Server != "" {
			return files[i].Server
		}
	}
	return ""
}

func (s *Server) flavor() Flavor { return flavorOf(s.sourceVersion()) }

// compatible is what MariaDB before 11 puts before its version in a greeting.
const compatible = "5.5.5-"

// announced is the version in the protocol's greeting.
func announced(version string) string {
	if flavorOf(version) == MariaDB && strings.HasPrefix(version, "10.") {
		return compatible + version
	}
	return version
}

// config is the library's server for the present version.
func (s *Server) config() (*server.Server, error) {
	version := s.sourceVersion()
	if version == "" {
		return nil, errors.New("the relay has received nothing from its source yet, and can't tell its version: try again later")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conf == nil || s.version != version {
		auth := AuthNative
		if s.key != nil && flavorOf(version) == MySQL && !strings.HasPrefix(version, "5.") {
			auth = AuthCachingSHA2
		}
		s.conf, s.version = server.NewServer(announced(version), mysql.DEFAULT_COLLATION_ID, auth, s.key, s.opt.TLS), version
	}
	return s.conf, nil
}

// connection serves one client.
func (s *Server) connection(ctx context.Context, c net.Conn) {
	defer c.Close() // a second time, mostly
	log := s.opt.Logger.With("client", c.RemoteAddr().String())
	// The library indexes into what clients send: a malformed packet must not
	// end the relay.
	defer func() {
		if r := recover(); r != nil {
			log.Error("a client's packet could not be read", "error", fmt.Sprint(r))
		}
	}()
	if !s.admit(1) {
		s.refuse(c, "Too many connections")
		return
	}
	admitted := true
	leave := func() {
		if admitted {
			admitted = false
			s.admit(-1)
		}
	}
	defer leave()
	conf, err := s.config()
	if err != nil {
		s.refuse(c, err.Error())
		return
	}
	guard := &guardedConn{Conn: c, left: handshakeBytes}
	if err := c.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return
	}
	sess := newSession(ctx, s)
	defer sess.end(errGone)
	sess.conn, err = conf.NewCustomizedConn(guard, (*credentials)(s), sess)
	if err != nil {
		log.Info("a client was refused", "error", err)
		return
	}
	guard.open()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return
	}
	sess.raw = sess.conn.Conn.Conn
	leave()
	s.enter(sess)
	defer s.exit(sess)
	sess.serve(log)
}

// admit counts a connection that has no session yet, when there is room.
func (s *Server) admit(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 && s.opening+len(s.sessions) >= s.opt.MaxConnections {
		return false
	}
	s.opening += n
	return true
}

func (s *Server) enter(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.id, x.user = x.conn.ConnectionID(), x.conn.GetUser()
	s.sessions[x.id] = x
}

func (s *Server) exit(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x.id)
}

// list returns the sessions by their ids.
func (s *Server) list() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for _, x := range s.sessions {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *session) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

func (s *Server) killAll(cause error) {
	for _, x := range s.list() {
		x.kill(cause)
	}
}

// refuse tells a client that there is nothing for it, before the greeting.
func (s *Server) refuse(c net.Conn, text string) {
	msg := append([]byte{mysql.ERR_HEADER, byte(mysql.ER_CON_COUNT_ERROR & 0xff), byte(mysql.ER_CON_COUNT_ERROR >> 8)}, text...)
	packet := append([]byte{byte(len(msg)), byte(len(msg) >> 8), 0, 0}, msg...)
	if err := c.SetWriteDeadline(time.Now().Add(killTime)); err != nil {
		return
	}
	if _, err := c.Write(packet); err != nil {
		s.opt.Logger.Debug("a refused client was gone", "error", err)
	}
}

// userNamed finds a user.
func (s *Server) userNamed(name string) (User, bool) {
	i := slices.IndexFunc(s.opt.Users, func(u User) bool { return u.Name == name })
	if i < 0 {
		return User{}, false
	}
	return s.opt.Users[i], true
}

// credentials is the Server as the library asks it for users.
type credentials Server

// GetCredential implements server.AuthenticationHandler.
func (c *credentials) GetCredential(name string) (server.Credential, bool, error) {
	u, ok := (*Server)(c).userNamed(name)
	if !ok {
		return server.Credential{}, false, nil
	}
	return server.Credential{Passwords: []string{u.Password}, AuthPluginName: u.Auth}, true, nil
}

// OnAuthSuccess implements server.AuthenticationHandler.
func (c *credentials) OnAuthSuccess(conn *server.Conn) error {
	if _, secure := conn.Conn.Conn.(*tls.Conn); c.opt.RequireTLS && !secure {
		return mysql.NewError(mysql.ER_ACCESS_DENIED_ERROR, "Connections without TLS are not allowed: the relay requires it")
	}
	return nil
}

// OnAuthFailure implements server.AuthenticationHandler.
func (c *credentials) OnAuthFailure(conn *server.Conn, err error) {
	c.opt.Logger.Warn("a client was refused", "client", conn.RemoteAddr().String(), "user", conn.GetUser(), "error", err)
}

// guardedConn bounds what is read before a client has proved who it is. It is
// used by one goroutine.
type guardedConn struct {
	net.Conn
	left   int64
	opened bool
}

func (g *guardedConn) open() { g.opened = true }

// Read implements net.Conn.
func (g *guardedConn) Read(p []byte) (int, error) {
	if g.opened {
		return g.Conn.Read(p)
	}
	if g.left <= 0 {
		return 0, fmt.Errorf("a client sent more than %d bytes before it was known", handshakeBytes)
	}
	n, err := g.Conn.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	return n, err
}
