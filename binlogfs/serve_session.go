package binlogfs

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/server"
)

const (
	maxVariables    = 100     // of one session
	maxVariableSize = 1 << 20 // bytes
	maxQuery        = 4 << 20 // bytes
)

// errGone ends a session without a word to the client, which connects again.
var errGone = errors.New("the connection was ended")

// Replica is a connected replica.
type Replica struct {
	ConnectionID uint32    `json:"connection_id"`
	User         string    `json:"user"`
	Address      string    `json:"address"`
	ServerID     uint32    `json:"server_id"`
	UUID         string    `json:"uuid,omitempty"`
	ReportHost   string    `json:"report_host,omitempty"`
	ReportPort   uint16    `json:"report_port,omitempty"`
	Since        time.Time `json:"since"`
	GTID         bool      `json:"gtid"`    // asked by GTID, not by file and position
	Sent         Position  `json:"sent"`    // everything up to here
	Waiting      bool      `json:"waiting"` // it has everything that there is
	SemiSync     bool      `json:"semi_sync"`
	Acked        Position  `json:"acked,omitzero"` // of semi-synchronous replication
}

// session is one client. Its commands run on one goroutine; the fields below mu
// are also read by others.
type session struct {
	server.EmptyHandler
	s      *Server
	ctx    context.Context
	cancel context.CancelCauseFunc
	conn   *server.Conn
	raw    net.Conn // below the library's, for a dump
	id     uint32
	user   string
	vars   map[string]string // user variables, by canonical name

	mu      sync.Mutex // guards the fields below
	began   time.Time  // of the command
	command string
	rep     Replica // ServerID and so on when registered
	dumping bool
}

func newSession(ctx context.Context, s *Server) *session {
	x := &session{s: s, vars: map[string]string{}, began: time.Now(), command: "Sleep"}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	return x
}

func (x *session) end(cause error) { x.cancel(cause) }

// kill ends the session from another goroutine. What it is writing at the moment
// gets killTime.
func (x *session) kill(cause error) {
	x.cancel(cause)
	err := x.raw.SetReadDeadline(time.Now())
	if err == nil {
		err = x.raw.SetWriteDeadline(time.Now().Add(killTime))
	}
	if err != nil {
		x.raw.Close() // it was closed, or is broken
	}
}

// serve answers commands until the client goes.
func (x *session) serve(log *slog.Logger) {
	for x.ctx.Err() == nil {
		if err := x.raw.SetReadDeadline(time.Now().Add(idleTime)); err != nil {
			return
		}
		if x.ctx.Err() != nil {
			return // killed before the deadline was set
		}
		err := x.conn.HandleCommand()
		if err != nil || x.conn.Conn == nil {
			log.Debug("a client went", "error", err)
			return
		}
		x.doing("Sleep")
	}
}

// doing tells others what the session is at.
func (x *session) doing(command string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began, x.command = time.Now(), command
}

// UseDB implements server.Handler: there are no databases to choose from.
func (x *session) UseDB(string) error { return nil }

// HandleFieldList implements server.Handler.
func (x *session) HandleFieldList(string, string) ([]*mysql.Field, error) {
	return nil, mysql.NewError(mysql.ER_UNKNOWN_COM_ERROR, "A binlog relay has no tables")
}

// HandleStmtPrepare implements server.Handler.
func (x *session) HandleStmtPrepare(string) (int, int, any, error) {
	return 0, 0, nil, mysql.NewError(mysql.ER_UNSUPPORTED_PS, "A binlog relay does not prepare statements: send them as text")
}

// HandleStmtExecute implements server.Handler.
func (x *session) HandleStmtExecute(any, string, []any) (*mysql.Result, error) {
	return nil, mysql.NewError(mysql.ER_UNSUPPORTED_PS, "A binlog relay does not prepare statements: send them as text")
}

// HandleStmtClose implements server.Handler.
func (x *session) HandleStmtClose(any) error { return nil }

// HandleOtherCommand implements server.Handler. A dump ends the connection, as
// servers do.
func (x *session) HandleOtherCommand(cmd byte, data []byte) error {
	switch cmd {
	case mysql.COM_REGISTER_SLAVE:
		return x.register(data)
	case mysql.COM_BINLOG_DUMP, mysql.COM_BINLOG_DUMP_GTID:
		x.doing("Binlog Dump")
		x.dump(cmd == mysql.COM_BINLOG_DUMP_GTID, data)
		return errGone
	case mysql.COM_SET_OPTION:
		return nil
	case mysql.COM_PROCESS_KILL:
		if len(data) < 4 {
			return mysql.NewError(mysql.ER_MALFORMED_PACKET, "A KILL without a connection id")
		}
		return x.killOther(uint64(binary.LittleEndian.Uint32(data)))
	}
	return mysql.NewError(mysql.ER_UNKNOWN_COM_ERROR, "A binlog relay does not know this command")
}

// register takes COM_REGISTER_SLAVE: who the replica says it is.
//
//	server id 4B | host, user, password: length 1B and text | port 2B | rank 4B | source's id 4B
func (x *session) register(data []byte) error {
	bad := mysql.NewError(mysql.ER_MALFORMED_PACKET, "Malformed registration of a replica")
	if len(data) < 4 {
		return bad
	}
	id := binary.LittleEndian.Uint32(data)
	rest := data[4:]
	var texts [3]string
	for i := range texts {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return bad
		}
		texts[i], rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	if len(rest) < 2 {
		return bad
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rep.ServerID, x.rep.ReportHost, x.rep.ReportPort = id, texts[0], binary.LittleEndian.Uint16(rest)
	return nil
}

// Replicas returns the replicas that are connected now.
func (s *Server) Replicas() []Replica {
	var all []Replica
	for _, x := range s.list() {
		x.mu.Lock()
		if x.dumping {
			all = append(all, x.rep)
		}
		x.mu.Unlock()
	}
	return all
}

// may says whether the session's user may change things.
func (x *session) may() error {
	if u, ok := x.s.userNamed(x.user); ok && u.Manage {
		return nil
	}
	return mysql.NewError(mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR,
		"Access denied; user '"+x.user+"' may read from this binlog relay, not change it")
}

// killOther ends another session: one's own user's, or anybody's for those who may.
func (x *session) killOther(id uint64) error {
	for _, o := range x.s.list() {
		if uint64(o.id) != id {
			continue
		}
		if o.user != x.user {
			if err := x.may(); err != nil {
				return err
			}
		}
		o.kill(errGone)
		return nil
	}
	return mysql.NewDefaultError(mysql.ER_NO_SUCH_THREAD, id)
}

// canonical brings both spellings of a variable's name together, lower-case.
func canonical(name string) string {
	name = strings.ToLower(name)
	if s, ok := strings.CutPrefix(name, "source_"); ok {
		return "master_" + s
	}
	if s, ok := strings.CutPrefix(name, "replica_"); ok {
		return "slave_" + s
	}
	switch name {
	case "rpl_semi_sync_replica":
		return "rpl_semi_sync_slave"
	}
	return name
}

// setVariable keeps a user variable.
func (x *session) setVariable(name, value string) error {
	name = canonical(name)
	if _, known := x.vars[name]; len(value) > maxVariableSize || !known && len(x.vars) >= maxVariables {
		return mysql.NewError(mysql.ER_OUT_OF_RESOURCES, "Too many or too long user variables for a binlog relay")
	}
	x.vars[name] = value
	return nil
}
