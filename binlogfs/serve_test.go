package binlogfs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// recordedLog is a log with the recorded files of one kind of server.
func recordedLog(t testing.TB, kind string) *Log {
	t.Helper()
	p := newPlace(t)
	l := p.log()
	src := testSource
	if strings.HasPrefix(kind, "my") {
		src = Source{Flavor: MySQL, ServerID: 13, UUID: "00000000-0000-0000-0000-00000000000d"}
	}
	a, err := l.Append(t.Context(), src, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := feed(t.Context(), a, recordedStream(t, kind).from(t, "", 4), never); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

var testUsers = []User{
	{Name: "admin", Password: "secret", Auth: AuthNative, Manage: true},
	{Name: "repl", Password: "other", Auth: AuthNative},
	{Name: "sha", Password: "third", Auth: AuthCachingSHA2},
}

// serveLog serves an archive on a port of its own.
func serveLog(t testing.TB, o ServerOptions) (s *Server, addr string) {
	t.Helper()
	if o.Users == nil {
		o.Users = testUsers
	}
	if o.ServerID == 0 {
		o.ServerID, o.UUID = 4000, "11111111-2222-3333-4444-555555555555"
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

func dial(t testing.TB, addr, user, password string, o ...client.Option) *client.Conn {
	t.Helper()
	c, err := client.Connect(addr, user, password, "", o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// query returns an answer as lines of fields.
func query(t testing.TB, c *client.Conn, sql string) string {
	t.Helper()
	r, err := c.Execute(sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if r.Resultset == nil {
		return "ok"
	}
	var b strings.Builder
	for i := range r.RowNumber() {
		for j := range r.ColumnNumber() {
			v, err := r.GetString(i, j)
			if err != nil {
				t.Fatal(err)
			}
			if j > 0 {
				b.WriteByte('|')
			}
			b.WriteString(v)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// wantError expects an error with a code and a text.
func wantError(t testing.TB, err error, code uint16, text string) {
	t.Helper()
	my, ok := errors.AsType[*mysql.MyError](err)
	if !ok || my.Code != code || !strings.Contains(my.Message, text) {
		t.Errorf("error %v, want %d %q", err, code, text)
	}
}

// received is what a dump brought.
type received struct {
	events [][]byte // without the protocol's header
	err    error    // nil after an EOF
}

// dumpFile asks for a dump by file and position.
func dumpFile(t testing.TB, c *client.Conn, flags uint16, id uint32, file string, pos uint32) {
	t.Helper()
	data := make([]byte, 4, 32)
	data = append(data, mysql.COM_BINLOG_DUMP)
	data = binary.LittleEndian.AppendUint32(data, pos)
	data = binary.LittleEndian.AppendUint16(data, flags)
	data = binary.LittleEndian.AppendUint32(data, id)
	send(t, c, append(data, file...))
}

// dumpGTID asks for a dump as MySQL's replicas with auto-position do.
func dumpGTID(t testing.TB, c *client.Conn, flags uint16, id uint32, set string) {
	t.Helper()
	s, err := ParseGTIDState(MySQL, set)
	if err != nil {
		t.Fatal(err)
	}
	enc := s.Encode()
	data := make([]byte, 4, 32)
	data = append(data, mysql.COM_BINLOG_DUMP_GTID)
	data = binary.LittleEndian.AppendUint16(data, flags)
	data = binary.LittleEndian.AppendUint32(data, id)
	data = binary.LittleEndian.AppendUint32(data, 0)
	data = binary.LittleEndian.AppendUint64(data, 4)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(enc)))
	send(t, c, append(data, enc...))
}

func send(t testing.TB, c *client.Conn, data []byte) {
	t.Helper()
	c.ResetSequence()
	if err := c.WritePacket(data); err != nil {
		t.Fatal(err)
	}
}

// receive reads a dump to its end. semi says that headers of semi-synchronous
// replication come.
func receive(t testing.TB, c *client.Conn, semi bool) (r received) {
	t.Helper()
	for {
		p, err := c.ReadPacket()
		if err != nil {
			return received{r.events, err}
		}
		switch {
		case p[0] == mysql.EOF_HEADER && len(p) < 9:
			return r
		case p[0] == mysql.ERR_HEADER:
			r.err = c.HandleErrorPacket(p)
			return r
		}
		if p = p[1:]; semi {
			if p[0] != semiSyncMagic {
				t.Fatalf("a packet without the header of semi-synchronous replication: % x", p[:4])
			}
			p = p[2:]
		}
		r.events = append(r.events, p)
	}
}

// files puts the files together that a dump's events make.
func (r received) files(t testing.TB) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	name := ""
	for _, e := range r.events {
		h, err := DecodeHeader(e)
		if err != nil || int(h.Size) != len(e) {
			t.Fatalf("an event of %d bytes: %v, %v", len(e), h, err)
		}
		if h.Type == replication.ROTATE_EVENT && h.Artificial() {
			var ok bool
			if name, _, ok = rotateName(e[headerSize:]); !ok {
				t.Fatalf("a Rotate to %q", e[headerSize:])
			}
			if _, again := files[name]; !again {
				files[name] = []byte(magic)
			}
			continue
		}
		if h.Type == replication.HEARTBEAT_EVENT || h.Type == replication.HEARTBEAT_LOG_EVENT_V2 || h.LogPos == 0 && h.Type == replication.FORMAT_DESCRIPTION_EVENT {
			continue
		}
		files[name] = append(files[name], e...)
	}
	return files
}

// rotateName reads the name in a Rotate event with or without its checksum.
func rotateName(body []byte) (name string, pos uint64, ok bool) {
	const length = len("mysql-bin.000001")
	if len(body) < 8+length {
		return "", 0, false
	}
	return string(body[8 : 8+length]), binary.LittleEndian.Uint64(body), true
}

var kinds = []string{"m1011", "m118", "my56", "my97"}

func TestServer_DumpByPosition_ByteIdentical(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, kind)})
			want := recordedStream(t, kind)
			for _, checksum := range []string{"NONE", "CRC32"} {
				c := dial(t, addr, "repl", "other")
				query(t, c, "SET @master_binlog_checksum='"+checksum+"', @mariadb_slave_capability=4")
				dumpFile(t, c, dumpNonBlock|dumpAnnotate, 0, want.names[0], 4)
				r := receive(t, c, false)
				if r.err != nil {
					t.Fatal(r.err)
				}
				got := r.files(t)
				for i, name := range want.names {
					if !bytes.Equal(unflag(got[name]), unflag(want.bodies[i])) {
						t.Errorf("checksum %s: %s has %d bytes that are not the %d of the source", checksum, name, len(got[name]), len(want.bodies[i]))
					}
				}
				first, err := DecodeHeader(r.events[0])
				if size := headerSize + 8 + len(want.names[0]); err != nil || (int(first.Size) == size) != (checksum == "NONE") {
					t.Errorf("checksum %s: the first Rotate has %d bytes, %d without a checksum", checksum, first.Size, size)
				}
			}
		})
	}
}

// unflag clears the mark of a file in use, as servers do when they send.
func unflag(body []byte) []byte {
	b := bytes.Clone(body)
	if len(b) > len(magic)+headerSize {
		b[len(magic)+17] &^= flagInUse
	}
	return b
}

// TestServer_DumpFromEveryEvent goes on from each event of a file.
func TestServer_DumpFromEveryEvent_SendsTheRest(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		t.Run(kind, func(t *testing.T) {
			_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, kind)})
			s := recordedStream(t, kind)
			body := s.bodies[0]
			for at := int64(4); at < int64(len(body)); at += int64(binary.LittleEndian.Uint32(body[at+9:])) {
				c := dial(t, addr, "repl", "other")
				query(t, c, "SET @source_binlog_checksum='CRC32'")
				dumpFile(t, c, dumpNonBlock|dumpAnnotate, 77, s.names[0], uint32(at))
				r := receive(t, c, false)
				if r.err != nil {
					t.Fatalf("from %d: %v", at, r.err)
				}
				if got := r.files(t)[s.names[0]][4:]; !bytes.Equal(unflag(append([]byte(magic), got...))[4:], unflag(body)[at:]) {
					t.Fatalf("from %d: %d bytes, want %d", at, len(got), int64(len(body))-at)
				}
				if at > 4 {
					fde := r.events[1]
					if f, err := DecodeFormat(fde); err != nil || f.Server == "" || binary.LittleEndian.Uint32(fde[13:]) != 0 || binary.LittleEndian.Uint32(fde[headerSize+52:]) != 0 {
						t.Fatalf("from %d: format description %+v %v", at, f, err)
					}
				}
				c.Close()
			}
			c := dial(t, addr, "repl", "other")
			query(t, c, "SET @master_binlog_checksum='CRC32'")
			dumpFile(t, c, dumpNonBlock, 77, s.names[0], 5)
			wantError(t, receive(t, c, false).err, 1236, "no event begins")
		})
	}
}

// groupsOf lists the GTIDs that a dump brought.
func (r received) groupsOf(t testing.TB) (list []string) {
	t.Helper()
	for _, e := range r.events {
		h, err := DecodeHeader(e)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Type {
		case replication.MARIADB_GTID_EVENT, replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
			g, _, err := decodeGTID(h, e[headerSize:len(e)-checksumSize])
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, g.String())
		}
	}
	return list
}

func TestServer_DumpByGTID_FromEveryGroup(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my97"} {
		t.Run(kind, func(t *testing.T) {
			l := recordedLog(t, kind)
			_, addr := serveLog(t, ServerOptions{Archive: l})
			ask := func(have *GTIDState) received {
				c := dial(t, addr, "repl", "other")
				query(t, c, "SET @master_binlog_checksum='CRC32', @mariadb_slave_capability=4")
				if kind == "my97" {
					dumpGTID(t, c, dumpNonBlock, 5, have.String())
				} else {
					query(t, c, "SET @slave_connect_state='"+have.Position()+"', @slave_gtid_strict_mode=1")
					dumpFile(t, c, dumpNonBlock|dumpAnnotate, 5, "", 4)
				}
				return receive(t, c, false)
			}
			have := NewGTIDState(l.State().Flavor())
			all := ask(have)
			if all.err != nil {
				t.Fatal(all.err)
			}
			groups := all.groupsOf(t)
			if len(groups) < 8 {
				t.Fatalf("only %d groups: %v", len(groups), groups)
			}
			for i, text := range groups {
				g, err := ParseGTID(have.Flavor(), text)
				if err != nil {
					t.Fatal(err)
				}
				have.Add(g)
				r := ask(have)
				if r.err != nil {
					t.Fatalf("from %s: %v", have, r.err)
				}
				if got := fmt.Sprint(r.groupsOf(t)); got != fmt.Sprint(groups[i+1:]) {
					t.Fatalf("from %s: groups %s, want %s", have, got, groups[i+1:])
				}
			}
			if have.String() != l.State().String() {
				t.Errorf("the groups make %s, the log says %s", have, l.State())
			}
		})
	}
}

func TestServer_DumpMariaDB_Until_StopsAfterTheGroup(t *testing.T) {
	l := recordedLog(t, "m118")
	_, addr := serveLog(t, ServerOptions{Archive: l})
	ask := func(from, until string) received {
		c := dial(t, addr, "repl", "other")
		query(t, c, "SET @master_binlog_checksum=@@global.binlog_checksum")
		query(t, c, "SET @mariadb_slave_capability=4, @slave_connect_state='"+from+"', @slave_until_gtid='"+until+"'")
		dumpFile(t, c, dumpAnnotate, 5, "", 4)
		return receive(t, c, false)
	}
	c := dial(t, addr, "repl", "other")
	query(t, c, "SET @master_binlog_checksum='CRC32', @slave_connect_state=''")
	dumpFile(t, c, dumpNonBlock|dumpAnnotate, 6, "", 4)
	groups := receive(t, c, false).groupsOf(t)
	domain := strings.SplitN(groups[3], "-", 2)[0]
	r := ask("", groups[3])
	if r.err != nil {
		t.Fatal(r.err)
	}
	got := r.groupsOf(t)
	if got[len(got)-1] != groups[3] {
		t.Errorf("groups %v, want up to %s of domain %s", got, groups[3], domain)
	}
	last := r.events[len(r.events)-1]
	h, err := DecodeHeader(last)
	if err != nil || h.Type != replication.MARIADB_GTID_LIST_EVENT || binary.LittleEndian.Uint32(last[headerSize:])&untilReached == 0 || !checksumFits(last) {
		t.Errorf("the last event is %+v, %v", h, err)
	}
	if r := ask(groups[3], groups[3]); r.err != nil || len(r.groupsOf(t)) != 0 {
		t.Errorf("asked from its UNTIL on: %v, %v", r.groupsOf(t), r.err)
	}
}

func TestServer_Dump_WhatIsNotThere_1236(t *testing.T) {
	maria, my := recordedLog(t, "m118"), recordedLog(t, "my97")
	_, mariaAddr := serveLog(t, ServerOptions{Archive: maria})
	_, myAddr := serveLog(t, ServerOptions{Archive: my})
	const own = "00000000-0000-0000-0000-00000000000d"
	domain := maria.State().Domains()[0]
	last := maria.State().Last(domain)
	cases := []struct{ addr, state, set, file, text string }{
		{mariaAddr, "-", "", "mysql-bin.000009", "Could not find first log file name in binary log index file"},
		{myAddr, "-", "", "mysql-bin.000009", "Could not find first log file name in binary log index file"},
		{mariaAddr, fmt.Sprintf("%d-999-1", domain), "", "", "which is not in the master's binlog. Since the master's"},
		{mariaAddr, fmt.Sprintf("%d-%d-99999", domain, last.ServerID), "", "", "which is not in the master's binlog"},
		{mariaAddr, "nonsense", "", "", "Got corrupted GTID position"},
		{myAddr, "-", own + ":1-5", "", "Replica has more GTIDs than the source has"},
		{mariaAddr, "-", own + ":1-5", "", "no GTIDs of MySQL's kind"},
	}
	for _, k := range cases {
		c := dial(t, k.addr, "repl", "other")
		query(t, c, "SET @master_binlog_checksum='CRC32'")
		if k.state != "-" {
			query(t, c, "SET @slave_connect_state='"+k.state+"'")
		}
		if k.set != "" {
			dumpGTID(t, c, 0, 5, k.set)
		} else {
			dumpFile(t, c, dumpNonBlock, 5, k.file, 4)
		}
		wantError(t, receive(t, c, false).err, 1236, k.text)
	}
	for _, pos := range []uint32{0, 1 << 30} {
		for addr, text := range map[string]string{mariaAddr: "impossible position", myAddr: "position"} {
			c := dial(t, addr, "repl", "other")
			dumpFile(t, c, dumpNonBlock, 5, "mysql-bin.000001", pos)
			wantError(t, receive(t, c, false).err, 1236, text)
		}
	}
	c := dial(t, mariaAddr, "repl", "other")
	dumpFile(t, c, dumpNonBlock, 5, "mysql-bin.000001", 4)
	wantError(t, receive(t, c, false).err, 1236, "checksum")
}

func TestServer_Dump_Purged_NamesWhatIsMissing(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		l := recordedLog(t, kind)
		_, addr := serveLog(t, ServerOptions{Archive: l, Keeper: l})
		admin := dial(t, addr, "admin", "secret")
		query(t, admin, "PURGE BINARY LOGS TO 'mysql-bin.000002'")
		if got := query(t, admin, "SHOW BINARY LOGS"); strings.Contains(got, "000001") || !strings.Contains(got, "000002") {
			t.Fatalf("%s: after the purge: %s", kind, got)
		}
		previous := l.Files()[0].Previous
		c := dial(t, addr, "repl", "other")
		query(t, c, "SET @master_binlog_checksum='CRC32', @slave_connect_state=''")
		if kind == "my97" {
			dumpGTID(t, c, 0, 5, "")
		} else {
			dumpFile(t, c, 0, 5, "", 4)
		}
		err := receive(t, c, false).err
		wantError(t, err, 1236, "purged")
		wantError(t, err, 1236, strings.Split(previous, ",")[0])
	}
}

// noted is a keeper that notes what it is told.
type noted struct {
	*Log
	mu    sync.Mutex
	calls []string
}

// Need implements Keeper.
func (n *noted) Need(_ any, pos Position) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, pos.File)
}

// Done implements Keeper.
func (n *noted) Done(any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, "done")
}

func TestServer_Dump_TellsTheKeeper_UntilKilled(t *testing.T) {
	l := recordedLog(t, "m118")
	keeper := &noted{Log: l}
	s, addr := serveLog(t, ServerOptions{Archive: l, Keeper: keeper})
	c := dial(t, addr, "repl", "other")
	query(t, c, "SET @master_binlog_checksum='CRC32', @master_heartbeat_period=20000000")
	dumpFile(t, c, 0, 9, "mysql-bin.000001", 4)
	awaitHeartbeat(t, c)
	admin := dial(t, addr, "admin", "secret")
	id := fmt.Sprint(s.Replicas()[0].ConnectionID)
	if got := query(t, admin, "SHOW PROCESSLIST"); !strings.Contains(got, id+"|repl|") || !strings.Contains(got, "Has sent all binlog") {
		t.Errorf("processes: %s", got)
	}
	query(t, admin, "KILL "+id)
	for err := error(nil); err == nil; {
		_, err = c.ReadPacket()
	}
	for len(s.list()) > 1 {
		time.Sleep(time.Millisecond)
	}
	if got := fmt.Sprint(keeper.calls); got != "[mysql-bin.000001 mysql-bin.000001 mysql-bin.000002 done]" {
		t.Errorf("the keeper was told %s", got)
	}
}

func awaitHeartbeat(t testing.TB, c *client.Conn) {
	t.Helper()
	var r received
	for !r.idle() {
		r.one(t, c)
	}
}

func TestServer_Dump_SameReplicaAgain_OlderOneIsSentAway(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, kind)})
		var c [2]*client.Conn
		for i := range c {
			c[i] = dial(t, addr, "repl", "other")
			query(t, c[i], "SET @master_binlog_checksum='CRC32', @master_heartbeat_period=20000000")
			if kind == "my97" {
				query(t, c[i], "SET @slave_uuid='99999999-0000-0000-0000-000000000000', @replica_uuid='99999999-0000-0000-0000-000000000000'")
			}
			dumpFile(t, c[i], dumpHeartbeatV2, 9, "mysql-bin.000001", 4)
			awaitHeartbeat(t, c[i])
		}
		wantError(t, receive(t, c[0], false).err, 1236, "same server_uuid/server_id")
		awaitHeartbeat(t, c[1])
	}
}

// TestServer_Dump_Live follows a log while it is appended to, byte for byte.
func TestServer_Dump_WhileAppended_FollowsGroupByGroup(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			l := p.log()
			a := p.appender(l)
			s := recordedStream(t, kind)
			in := s.from(t, "", 4)
			at := 0
			for end, _ := l.End(); end.Offset == 0; end, _ = l.End() {
				at = feedSome(t, a, in, at, 1)
			}
			_, addr := serveLog(t, ServerOptions{Archive: l})
			c := dial(t, addr, "repl", "other")
			query(t, c, "SET @master_binlog_checksum='CRC32', @mariadb_slave_capability=4")
			dumpFile(t, c, dumpAnnotate, 9, "", 4)
			got := make(chan received, 1)
			go func() { got <- receiveBytes(c, len(s.bodies[0])+len(s.bodies[1])-8) }()
			for at < len(in) {
				at = feedSome(t, a, in, at, 3)
			}
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			files := (<-got).files(t)
			for i, name := range s.names {
				if !bytes.Equal(unflag(files[name]), unflag(s.bodies[i])) {
					t.Errorf("%s has %d bytes that are not the source's %d", name, len(files[name]), len(s.bodies[i]))
				}
			}
		})
	}
}

// feedSome gives n events to an appender, and publishes them.
func feedSome(t testing.TB, a *Appender, in []byte, at, n int) int {
	t.Helper()
	end := at
	for i := 0; i < n && end < len(in); i++ {
		end += 4 + int(binary.LittleEndian.Uint32(in[end:]))
	}
	if err := feed(t.Context(), a, in[at:end], always); err != nil {
		t.Fatal(err)
	}
	if err := a.hard.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return end
}

// receiveBytes reads a dump until it has so many bytes of files.
func receiveBytes(c *client.Conn, want int) (r received) {
	for n := 0; n < want; {
		p, err := c.ReadPacket()
		if err != nil || p[0] != 0 {
			r.err = fmt.Errorf("after %d bytes: %v % x", n, err, p)
			return r
		}
		h, err := DecodeHeader(p[1:])
		if err != nil {
			r.err = err
			return r
		}
		if !h.Artificial() && h.Type != replication.HEARTBEAT_EVENT {
			n += int(h.Size)
		}
		r.events = append(r.events, p[1:])
	}
	return r
}

func TestServer_Dump_SemiSync_AsksAndTakesAcks(t *testing.T) {
	l := recordedLog(t, "m118")
	s, addr := serveLog(t, ServerOptions{Archive: l, SemiSync: true})
	c := dial(t, addr, "repl", "other")
	if got := query(t, c, "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'"); got != "rpl_semi_sync_master_enabled|ON\n" {
		t.Fatalf("enabled: %q", got)
	}
	query(t, c, "SET @master_binlog_checksum='CRC32', @rpl_semi_sync_slave=1, @master_heartbeat_period=20000000, @mariadb_slave_capability=4")
	dumpFile(t, c, dumpAnnotate, 9, "mysql-bin.000001", 4)
	for asked, idle := 0, false; !idle; {
		p, err := c.ReadPacket()
		if err != nil || p[0] != 0 || p[1] != semiSyncMagic {
			t.Fatalf("% x: %v", p, err)
		}
		asked += int(p[2])
		if idle = replication.EventType(p[7]) == replication.HEARTBEAT_EVENT; idle && (asked == 0 || p[2] != 0) {
			t.Fatalf("%d acknowledgements were asked for, %d by a heartbeat", asked, p[2])
		}
	}
	end, _ := l.End()
	ack := append(make([]byte, 4), semiSyncMagic)
	ack = binary.LittleEndian.AppendUint64(ack, uint64(end.Offset))
	send(t, c, append(ack, end.File...))
	for len(s.Replicas()) == 0 || s.Replicas()[0].Acked != end {
		time.Sleep(time.Millisecond)
	}
	// Without the option nobody may believe that it is there.
	_, addr = serveLog(t, ServerOptions{Archive: l})
	c = dial(t, addr, "repl", "other")
	if got := query(t, c, "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'"); got != "" {
		t.Errorf("enabled: %q", got)
	}
	if _, err := c.Execute("SELECT @@global.rpl_semi_sync_source_enabled"); err == nil {
		t.Error("@@global.rpl_semi_sync_source_enabled is there")
	} else {
		wantError(t, err, 1193, "")
	}
}

func TestServer_Dump_NewEpoch_GTIDsGoOnPositionsDoNot(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		for _, byGTID := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, byGTID), func(t *testing.T) {
				l, s, src := newPlace(t).log(), recordedStream(t, kind), testSource
				if kind == "my97" {
					src = Source{Flavor: MySQL, ServerID: 13, UUID: "00000000-0000-0000-0000-00000000000d"}
				}
				appendEpoch(t, l, s, src, 20)
				_, addr := serveLog(t, ServerOptions{Archive: l, Keeper: l})
				c := dial(t, addr, "repl", "other")
				query(t, c, "SET @master_binlog_checksum='CRC32', @master_heartbeat_period=20000000")
				switch {
				case byGTID && kind == "my97":
					dumpGTID(t, c, dumpHeartbeatV2, 9, "")
				case byGTID:
					query(t, c, "SET @slave_connect_state=''")
					fallthrough
				default:
					dumpFile(t, c, dumpAnnotate, 9, "", 4)
				}
				var r received
				for !r.idle() {
					r.one(t, c)
				}
				before := r.groupsOf(t)
				// The new source has the same groups in its own first file, and more.
				src.ServerID, src.UUID = 77, strings.Replace(src.UUID, "d", "e", 1)
				appendEpoch(t, l, s, src, 1<<30)
				if !byGTID {
					wantError(t, receive(t, c, false).err, 1236, "Could not find first log file name")
					return
				}
				last := l.State()
				got := NewGTIDState(last.Flavor())
				for got.String() != last.String() {
					r.one(t, c)
					got = NewGTIDState(last.Flavor())
					seen := map[string]bool{}
					for _, text := range r.groupsOf(t) {
						g, err := ParseGTID(last.Flavor(), text)
						if err != nil || seen[text] {
							t.Fatalf("%s came twice (%v)", text, err)
						}
						seen[text] = true
						got.Add(g)
					}
				}
				if len(before) == 0 || len(before) >= len(r.groupsOf(t)) {
					t.Errorf("%d groups of the first source, %d in all", len(before), len(r.groupsOf(t)))
				}
			})
		}
	}
}

// appendEpoch gives a log the first events of a source as an epoch of its own.
func appendEpoch(t testing.TB, l *Log, s *stream, src Source, events int) {
	t.Helper()
	a, err := l.Append(t.Context(), src, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	feedSome(t, a, s.from(t, "", 4), 0, events)
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// one reads one event of a dump.
func (r *received) one(t testing.TB, c *client.Conn) {
	t.Helper()
	p, err := c.ReadPacket()
	if err != nil || p[0] != 0 {
		t.Fatalf("after %d events: % x %v", len(r.events), p, err)
	}
	r.events = append(r.events, p[1:])
}

// idle says that the last event was a heartbeat.
func (r *received) idle() bool {
	if len(r.events) == 0 {
		return false
	}
	k := replication.EventType(r.events[len(r.events)-1][4])
	return k == replication.HEARTBEAT_EVENT || k == replication.HEARTBEAT_LOG_EVENT_V2
}

func TestServer_Users_AllWaysIn(t *testing.T) {
	cert := selfSigned(t)
	l := recordedLog(t, "my97")
	tlsConf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	_, addr := serveLog(t, ServerOptions{Archive: l, TLS: tlsConf})
	insecure := func(c *client.Conn) error {
		c.SetTLSConfig(&tls.Config{InsecureSkipVerify: true})
		return nil
	}
	for _, o := range [][]client.Option{nil, {insecure}} {
		for _, u := range testUsers {
			for range 2 { // the second time caching_sha2 has it cached
				c := dial(t, addr, u.Name, u.Password, o...)
				if got := query(t, c, "SELECT CURRENT_USER(), VERSION()"); !strings.HasPrefix(got, u.Name+"@%|9.") {
					t.Errorf("%s: %q", u.Name, got)
				}
			}
			if _, err := client.Connect(addr, u.Name, "wrong", "", o...); err == nil {
				t.Errorf("%s came in with a wrong password", u.Name)
			}
		}
	}
	if _, err := client.Connect(addr, "nobody", "", ""); err == nil {
		t.Error("an unknown user came in")
	}
	_, addr = serveLog(t, ServerOptions{Archive: l, TLS: tlsConf, RequireTLS: true})
	if _, err := client.Connect(addr, "repl", "other", ""); err == nil || !strings.Contains(err.Error(), "requires it") {
		t.Errorf("without TLS: %v", err)
	}
	dial(t, addr, "repl", "other", insecure)
	mutual := tlsConf.Clone()
	mutual.ClientAuth = tls.RequireAnyClientCert
	_, addr = serveLog(t, ServerOptions{Archive: l, TLS: mutual, RequireTLS: true})
	if c, err := client.Connect(addr, "repl", "other", "", insecure); err == nil {
		if err := c.Ping(); err == nil {
			t.Error("it came in without a client's certificate")
		}
	}
	dial(t, addr, "repl", "other", func(c *client.Conn) error {
		c.SetTLSConfig(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}})
		return nil
	})
}

func TestServer_MaxConnections_OneTooMany(t *testing.T) {
	_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, "my56"), MaxConnections: 2})
	a, _ := dial(t, addr, "repl", "other"), dial(t, addr, "repl", "other")
	if _, err := client.Connect(addr, "repl", "other", ""); err == nil || !strings.Contains(err.Error(), "Too many connections") {
		t.Errorf("the third: %v", err)
	}
	a.Close()
	for {
		c, err := client.Connect(addr, "repl", "other", "")
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServer_Garbage_HarmsNobody(t *testing.T) {
	_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, "my97")})
	for i, junk := range [][]byte{{}, {0, 0, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 1, 0xff}, {36, 0, 0, 1, 0x0f, 0xa2, 0x3a, 0}, bytes.Repeat([]byte{0xff}, 200_000), []byte("GET / HTTP/1.1\r\n\r\n")} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(junk); err != nil {
			t.Logf("junk %d: %v", i, err) // it was sent away at once
		}
		if err := c.(*net.TCPConn).CloseWrite(); err == nil {
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Logf("junk %d: %v", i, err)
			}
		}
		c.Close()
	}
	for _, data := range [][]byte{nil, {mysql.COM_BINLOG_DUMP}, {mysql.COM_BINLOG_DUMP_GTID, 1, 2, 3}, {mysql.COM_REGISTER_SLAVE, 1}, {mysql.COM_REGISTER_SLAVE, 1, 0, 0, 0, 200, 1},
		append([]byte{mysql.COM_BINLOG_DUMP_GTID, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 20)...), {0x77}} {
		c := dial(t, addr, "repl", "other")
		send(t, c, append(make([]byte, 4), data...))
		if p, err := c.ReadPacket(); err == nil && p[0] != mysql.ERR_HEADER {
			t.Errorf("% x was answered with % x", data, p)
		}
	}
	if got := query(t, dial(t, addr, "repl", "other"), "SELECT 1"); got != "1\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// selfSigned makes a certificate for a test.
func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
