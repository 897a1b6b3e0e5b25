package binlogfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
)

const (
	connectWait = 10 * time.Second // for the network, and for each answer before the stream
	closeWait   = 10 * time.Second // for the volume when the relay ends
	ackWait     = 10 * time.Second // for the source to take an acknowledgement

	// replicaName is how the relay shows up in the source's list of replicas.
	replicaName = "cistern"
	// capabilityGTID is the highest that MariaDB knows: it sends its events as they
	// are in the file (its source: sql/rpl_constants.h).
	capabilityGTID = 4
	// sendAnnotate makes MariaDB send the texts of statements in row format, which
	// are in the file (BINLOG_SEND_ANNOTATE_ROWS_EVENT).
	sendAnnotate = 2
	// semiSyncMagic begins what semi-synchronous replication adds to a packet.
	semiSyncMagic = 0xef
)

// sourceConn is a connection to a source. The goroutine that reads the stream owns
// it; ack is called from the appender's.
type sourceConn struct {
	p        *Puller
	c        *client.Conn
	end      func() bool // ends watching the context
	version  string
	source   Source
	compress bool
	semiSync bool
	frames   *frames
	in       *events

	acked SourcePlace
	addr  string
	once  sync.Once
}

// connect logs in to a source and introduces the relay as a replica, a
// semi-synchronous one if that is wanted.
func (p *Puller) connect(ctx context.Context, addr string, semiSync bool) (*sourceConn, error) {
	password := ""
	if p.o.Password != nil {
		var err error
		if password, err = p.o.Password(); err != nil {
			return nil, &fatalError{fmt.Errorf("password for the source: %w", err)}
		}
	}
	tlsConfig, err := p.o.TLS.config(addr)
	if err != nil {
		return nil, &fatalError{err}
	}
	var raw net.Conn
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := p.o.Dial(ctx, network, addr)
		raw = c
		return c, err
	}
	s := &sourceConn{p: p, addr: addr}
	options := func(c *client.Conn) error {
		c.ReadTimeout, c.WriteTimeout = connectWait, connectWait
		if tlsConfig != nil {
			c.SetTLSConfig(tlsConfig)
		}
		switch p.o.Compress {
		case "zlib":
			return c.SetCapability(mysql.CLIENT_COMPRESS)
		case "zstd":
			return c.SetCapability(mysql.CLIENT_ZSTD_COMPRESSION_ALGORITHM)
		}
		return nil
	}
	if s.c, err = client.ConnectWithDialer(ctx, "", addr, p.o.User, password, "", dial, options); err != nil {
		return nil, explain(fmt.Errorf("connect: %w", err))
	}
	s.end = context.AfterFunc(ctx, func() { raw.Close() })
	s.compress = p.o.Compress != ""
	if err := s.introduce(ctx, semiSync); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close ends the connection.
func (s *sourceConn) close() {
	s.once.Do(func() {
		s.end()
		s.c.Close() // what was sent is judged by what comes back, and nothing more does
		s.frames.close()
	})
}

// introduce finds out who the source is and says who the relay is.
func (s *sourceConn) introduce(ctx context.Context, semiSync bool) error {
	s.version = strings.TrimPrefix(s.c.GetServerVersion(), compatible) // as @@version has it
	s.source.Flavor = flavorOf(s.version)
	if s.p.o.Compress == "zstd" && s.source.Flavor == MariaDB {
		return &fatalError{errors.New("MariaDB does not compress connections with zstd: choose zlib, or off")}
	}
	if s.compress && !s.compresses() {
		return &fatalError{fmt.Errorf("the source does not compress connections with %s (MySQL: protocol_compression_algorithms): allow it there, or choose another compression, or off", s.p.o.Compress)}
	}
	id, err := s.variable("server_id")
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return fmt.Errorf("the source's server id is %q", id)
	}
	if s.source.ServerID = uint32(n); s.source.ServerID == s.p.o.ServerID {
		return &fatalError{fmt.Errorf("the source has the server id %d, too: give the relay another one", n)}
	}
	heartbeat := strconv.FormatInt(s.p.o.Heartbeat.Nanoseconds(), 10)
	sets := []string{"@master_heartbeat_period=" + heartbeat, "@master_binlog_checksum='CRC32'"}
	if s.source.Flavor == MariaDB {
		sets = append(sets, "@mariadb_slave_capability="+strconv.Itoa(capabilityGTID))
	} else {
		own, err := s.p.l.UUID(ctx)
		if err != nil {
			return &fatalError{err}
		}
		if s.source.UUID, err = s.variable("server_uuid"); err != nil {
			return err
		}
		if s.source.UUID == own {
			return &fatalError{fmt.Errorf("the source has the relay's own UUID %s", own)}
		}
		sets = append(sets, "@source_heartbeat_period="+heartbeat, "@source_binlog_checksum='CRC32'", "@slave_uuid='"+own+"'", "@replica_uuid='"+own+"'")
	}
	if err := s.query("SET "+strings.Join(sets, ", "), nil); err != nil {
		return err
	}
	if semiSync {
		return s.askSemiSync()
	}
	return nil
}

// compresses says whether the source took part in the compression that was asked for. The
// library goes by what was asked for alone.
func (s *sourceConn) compresses() bool {
	capability := "CLIENT_COMPRESS"
	if s.p.o.Compress == "zstd" {
		capability = "CLIENT_ZSTD_COMPRESSION_ALGORITHM"
	}
	return slices.Contains(strings.Split(s.c.CapabilityString(), "|"), capability)
}

// askSemiSync asks for semi-synchronous replication where the source has it. A
// source whose answer says that it is off would send nothing of it (MariaDB), or
// marks without waiting (MySQL).
func (s *sourceConn) askSemiSync() error {
	names := []string{"rpl_semi_sync_master_enabled"}
	if s.source.Flavor == MySQL {
		names = append(names, "rpl_semi_sync_source_enabled")
	}
	found, on := false, false
	for _, name := range names {
		if err := s.query("SHOW GLOBAL VARIABLES LIKE '"+name+"'", func(row []string) { found, on = true, len(row) > 1 && row[1] == "ON" }); err != nil {
			return err
		}
	}
	if !found || s.source.Flavor == MariaDB && !on {
		s.p.o.Logger.Warn("the source does not have semi-synchronous replication switched on: it does not wait for this relay")
		return nil
	}
	s.semiSync = true
	return s.query("SET @rpl_semi_sync_slave=1, @rpl_semi_sync_replica=1", nil)
}

// variable asks for a global variable.
func (s *sourceConn) variable(name string) (value string, err error) {
	found := false
	err = s.query("SHOW GLOBAL VARIABLES LIKE '"+name+"'", func(row []string) {
		if len(row) > 1 {
			value, found = row[1], true
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("the source has no variable %s", name)
	}
	return value, err
}

// query runs a statement and gives each row to fn.
func (s *sourceConn) query(q string, fn func(row []string)) error {
	r, err := s.c.Execute(q)
	if err != nil {
		return explain(fmt.Errorf("%.60s: %w", q, err))
	}
	defer r.Close()
	if r.Resultset == nil || fn == nil {
		return nil
	}
	for i := range r.Values {
		row := make([]string, len(r.Values[i]))
		for k := range row {
			text, err := r.GetString(i, k)
			if err != nil {
				return fmt.Errorf("%.60s: %w", q, err)
			}
			row[k] = strings.Clone(text) // the library's buffer is used again
		}
		fn(row)
	}
	return nil
}

// executed returns the GTIDs that the source has logged.
func (s *sourceConn) executed() (*GTIDState, error) {
	name := "gtid_binlog_state"
	if s.source.Flavor == MySQL {
		name = "gtid_executed"
	}
	text, err := s.variable(name)
	if err != nil {
		return nil, err
	}
	return ParseGTIDState(s.source.Flavor, text)
}

// begin finds the first file of an epoch; empty means the source's oldest. A new
// epoch begins with the file that has the first group after what is published.
func (s *sourceConn) begin(ctx context.Context, start Start, newEpoch bool, state *GTIDState) (file string, err error) {
	if newEpoch {
		return s.fileOf(ctx, state)
	}
	switch {
	case start.File != "":
		return start.File, nil
	case start.GTID != "":
		state, err := ParseGTIDState(s.source.Flavor, start.GTID)
		if err != nil {
			return "", &fatalError{err}
		}
		return s.fileOf(ctx, state)
	case start.Now:
		file, _, err := s.writes()
		return file, err
	}
	return "", nil
}

// fileOf asks, on a connection of its own, which file a replica with these GTIDs
// would get first.
func (s *sourceConn) fileOf(ctx context.Context, state *GTIDState) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	ask, err := s.p.connect(ctx, s.addr, false)
	if err != nil {
		return "", err
	}
	defer ask.close()
	if state == nil {
		state = NewGTIDState(s.source.Flavor)
	}
	if err := ask.sendAfter(state); err != nil {
		return "", err
	}
	return ask.firstFile()
}

// sendAfter asks for the groups that are not in a state.
func (s *sourceConn) sendAfter(state *GTIDState) error {
	if s.source.Flavor == MariaDB {
		if err := s.query("SET @slave_connect_state='"+state.Position()+"', @slave_gtid_strict_mode=1", nil); err != nil {
			return err
		}
		return s.send(mysql.COM_BINLOG_DUMP, s.dumpAt("", int64(len(magic))))
	}
	return s.send(mysql.COM_BINLOG_DUMP_GTID, s.dumpGTID("", int64(len(magic)), state))
}

// dumpGTID is the body of COM_BINLOG_DUMP_GTID.
func (s *sourceConn) dumpGTID(file string, offset int64, state *GTIDState) []byte {
	gtids := state.Encode()
	b := binary.LittleEndian.AppendUint16(nil, 0)
	b = binary.LittleEndian.AppendUint32(b, s.p.o.ServerID)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(file)))
	b = append(b, file...)
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(gtids)))
	return append(b, gtids...)
}

// firstFile reads the artificial Rotate that begins a stream.
func (s *sourceConn) firstFile() (string, error) {
	h, err := s.in.next()
	if err != nil {
		return "", err
	}
	if !h.Artificial() || h.Size > 4096 {
		return "", fmt.Errorf("%w: a stream that begins with an event %v", ErrCorrupt, h.Type)
	}
	b := make([]byte, h.Size)
	if _, err := io.ReadFull(s.in, b); err != nil {
		return "", err
	}
	file, _, err := decodeSentRotate(b)
	return file, err
}

// dump asks for the stream from a place on.
func (s *sourceConn) dump(file string, offset int64) error {
	if err := s.register(); err != nil {
		return err
	}
	if err := s.send(mysql.COM_BINLOG_DUMP, s.dumpAt(file, offset)); err != nil {
		return err
	}
	// The archive is not bound to a source before that one has sent something.
	return s.in.accepted()
}

// dumpAfter asks for the stream of the groups that are not in a state.
func (s *sourceConn) dumpAfter(state *GTIDState) error {
	if err := s.register(); err != nil {
		return err
	}
	if err := s.sendAfter(state); err != nil {
		return err
	}
	return s.in.accepted()
}

// farthest is the greatest position that can be asked for.
func (s *sourceConn) farthest() int64 {
	if s.p.farthest > 0 {
		return s.p.farthest
	}
	return 1<<32 - 1
}

// needGTIDs refuses a source that gives its groups no GTIDs.
func (s *sourceConn) needGTIDs() error {
	if s.source.Flavor == MariaDB {
		return nil
	}
	mode, err := s.variable("gtid_mode")
	if err != nil {
		return err
	}
	if mode != "ON" {
		return &fatalError{fmt.Errorf("own mode needs GTIDs, and the source has gtid_mode=%s: set it to ON there, or use mirror mode", mode)}
	}
	return nil
}

// register makes the relay one of the source's replicas.
func (s *sourceConn) register() error {
	b := binary.LittleEndian.AppendUint32(nil, s.p.o.ServerID)
	for _, text := range []string{replicaName, "", ""} { // host, user, password
		b = append(append(b, byte(len(text))), text...)
	}
	b = binary.LittleEndian.AppendUint16(b, 0) // port
	b = binary.LittleEndian.AppendUint32(b, 0) // rank
	b = binary.LittleEndian.AppendUint32(b, 0) // id of the source
	s.c.ResetSequence()
	if err := s.c.WritePacket(append([]byte{0, 0, 0, 0, mysql.COM_REGISTER_SLAVE}, b...)); err != nil {
		return fmt.Errorf("register as a replica: %w", err)
	}
	if _, err := s.c.ReadOKPacket(); err != nil {
		var my *mysql.MyError
		if errors.As(err, &my) && my.Code == mysql.ER_ACCESS_DENIED_ERROR {
			my.Code = mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR // the password was right
		}
		return explain(fmt.Errorf("register as a replica: %w", err))
	}
	return nil
}

// dumpAt is the body of COM_BINLOG_DUMP.
func (s *sourceConn) dumpAt(file string, offset int64) []byte {
	flags := uint16(0)
	if s.source.Flavor == MariaDB {
		flags = sendAnnotate
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(offset))
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint32(b, s.p.o.ServerID)
	return append(b, file...)
}

// send sends the command that begins the stream; from here on the connection is
// read directly.
func (s *sourceConn) send(command byte, body []byte) error {
	s.c.ResetSequence()
	if err := s.c.WritePacket(append([]byte{0, 0, 0, 0, command}, body...)); err != nil {
		return fmt.Errorf("ask for the stream: %w", err)
	}
	silence := 4*s.p.o.Heartbeat + 3*time.Second
	in := bufio.NewReaderSize(&timeoutReader{s.c.Conn.Conn, silence}, readBuffer)
	if s.compress {
		s.frames = &frames{in: in, zstd: s.p.o.Compress == "zstd"}
		in = bufio.NewReaderSize(s.frames, readBuffer)
	}
	s.in = &events{in: in, semiSync: s.semiSync}
	return nil
}

// ack tells the source that everything up to a place is safe. Acknowledgements
// are cumulative, so one for the newest place stands for many groups.
func (s *sourceConn) ack(pos SourcePlace) {
	if !s.semiSync || s.acked == pos {
		return
	}
	s.acked = pos
	n := 1 + 8 + len(pos.File)
	packet := []byte{byte(n), byte(n >> 8), 0, 0, semiSyncMagic}
	packet = binary.LittleEndian.AppendUint64(packet, uint64(pos.Offset))
	packet = append(packet, pos.File...)
	if s.compress {
		packet = append([]byte{byte(len(packet)), byte(len(packet) >> 8), 0, 0, 0, 0, 0}, packet...)
	}
	conn := s.c.Conn.Conn
	err := conn.SetWriteDeadline(time.Now().Add(ackWait))
	if err == nil {
		_, err = conn.Write(packet)
	}
	if err != nil {
		// The stream's reader finds the connection closed, and all begins anew.
		conn.Close()
	}
}
