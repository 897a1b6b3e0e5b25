package binlogfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Flags of a dump (MySQL Internals, "COM_BINLOG_DUMP"; MariaDB, "COM_BINLOG_DUMP").
const (
	dumpNonBlock    = 0x01 // end where the log ends
	dumpAnnotate    = 0x02 // MariaDB's: Annotate_rows events, too
	dumpHeartbeatV2 = 0x02 // MySQL's: it knows heartbeats with long positions
)

// dumpRequest is what a replica asks for.
type dumpRequest struct {
	flags    uint16
	serverID uint32
	file     string
	pos      int64
	set      *GTIDState // of COM_BINLOG_DUMP_GTID; nil without
}

// parseDump reads COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID:
//
//	pos 4B | flags 2B | server id 4B | file
//	flags 2B | server id 4B | length 4B, file | pos 8B | length 4B, GTID set
func parseDump(gtid bool, data []byte) (*dumpRequest, error) {
	bad := mysql.NewError(mysql.ER_MALFORMED_PACKET, "Malformed request for a binary log")
	if len(data) < 10 {
		return nil, bad
	}
	if !gtid {
		return &dumpRequest{
			pos: int64(binary.LittleEndian.Uint32(data)), flags: binary.LittleEndian.Uint16(data[4:]),
			serverID: binary.LittleEndian.Uint32(data[6:]), file: strings.TrimRight(string(data[10:]), "\x00"),
		}, nil
	}
	r := &dumpRequest{flags: binary.LittleEndian.Uint16(data), serverID: binary.LittleEndian.Uint32(data[2:])}
	n := uint64(binary.LittleEndian.Uint32(data[6:]))
	rest := data[10:]
	if uint64(len(rest)) < n+12 {
		return nil, bad
	}
	r.file, rest = strings.TrimRight(string(rest[:n]), "\x00"), rest[n:]
	r.pos = int64(binary.LittleEndian.Uint64(rest))
	n, rest = uint64(binary.LittleEndian.Uint32(rest[8:])), rest[12:]
	if uint64(len(rest)) < n {
		return nil, bad
	}
	set, err := mysql.DecodeMysqlGTIDSet(rest[:n])
	if err != nil {
		return nil, fatal("Malformed GTID set: %v", err)
	}
	r.set = &GTIDState{flavor: MySQL, mysql: *set}
	return r, nil
}

// fatal is the error that stops a replica: it does not try again.
func fatal(format string, args ...any) *mysql.MyError {
	return mysql.NewError(mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG, fmt.Sprintf(format, args...))
}

// errNoFile is the servers' text for a file that they don't have.
func errNoFile() *mysql.MyError {
	return fatal("Could not find first log file name in binary log index file")
}

// usable are the files in which something is published, the oldest first.
func usable(a Archive) (files []*FileInfo, end Position) {
	end, _ = a.End()
	for _, f := range a.Files() {
		if publishedEnd(a, f) > int64(len(magic)) && f.Server != "" && !end.before(f) {
			files = append(files, f)
		}
	}
	return files, end
}

// before says whether a place is before all of a file.
func (p Position) before(f *FileInfo) bool {
	return p.Epoch < f.Epoch || p.Epoch == f.Epoch && logNumber(p.File) < logNumber(f.Name)
}

// fileNamed finds a file of the present epoch.
func (s *Server) fileNamed(name string) *FileInfo {
	files, end := usable(s.opt.Archive)
	for _, f := range files {
		if f.Epoch == end.Epoch && (f.Name == path.Base(name) || name == "") {
			return f
		}
	}
	return nil
}

// startByPosition finds where a replica that names a file and position begins.
func (s *Server) startByPosition(r *dumpRequest) (*FileInfo, int64, error) {
	f := s.fileNamed(r.file)
	if f == nil {
		return nil, 0, errNoFile()
	}
	limit := publishedEnd(s.opt.Archive, f)
	mariadb := f.Flavor == MariaDB
	switch {
	case mariadb && (r.pos < int64(len(magic)) || r.pos > limit):
		return nil, 0, fatal("Client requested master to start replication from impossible position; the first event '%s' at %d, and the relay has %d bytes of that file", r.file, r.pos, limit)
	case r.pos < int64(len(magic)):
		return nil, 0, fatal("Client requested source to start replication from position < 4")
	case r.pos > limit:
		return nil, 0, fatal("Client requested source to start replication from position > file size; the first event '%s' at %d, and the relay has %d bytes of that file", r.file, r.pos, limit)
	}
	return f, r.pos, nil
}

// startMySQL finds the file from which a replica of MySQL's, which has set, goes
// on: the newest whose beginning it has.
func (s *Server) startMySQL(set *GTIDState) (*FileInfo, error) {
	files, _ := usable(s.opt.Archive)
	state := s.opt.Archive.State()
	if len(files) == 0 || state == nil {
		return nil, fatal("Binary log is not open: the relay has received nothing yet")
	}
	if s.gtidMode(state) == "OFF" {
		return nil, fatal("The replica connects with auto-position, and the source's log has no GTIDs (GTID_MODE = OFF)")
	}
	if more := ownMissing(state, set, s.opt.Archive.Sources()); more != "" {
		return nil, fatal("Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the end of the binary log was truncated or that the last binary log file was lost, e.g., after a power or disk failure when sync_binlog != 1. The GTIDs that the source does not have are '%s'", more)
	}
	for i := len(files) - 1; i >= 0; i-- {
		p, err := ParseGTIDState(files[i].Flavor, files[i].Previous)
		if err != nil {
			return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, files[i].Name, err)
		}
		if p.Flavor() == MySQL && set.Contains(p) {
			return files[i], nil
		}
	}
	return nil, fatal("Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new replica from backup. Consider increasing the source's binary log expiration period. The GTID set sent by the replica is '%s', and the missing transactions are '%s'", set, set.Missing(s.purged()))
}

// ownMissing returns what a replica has of the sources' own GTIDs that is not in
// the archive.
func ownMissing(state, set *GTIDState, sources []Source) string {
	own := NewGTIDState(MySQL)
	for id, tags := range set.mysql {
		for _, src := range sources {
			if strings.EqualFold(id.String(), src.UUID) {
				own.mysql[id] = tags
			}
		}
	}
	return state.Missing(own)
}

// startMariaDB finds the file from which a replica of MariaDB's goes on that has
// come to the GTIDs of want, by domain, and the domains in which groups are to be
// passed over until one has been seen.
func (s *Server) startMariaDB(want map[uint32]GTID) (*FileInfo, map[uint32]GTID, error) {
	files, _ := usable(s.opt.Archive)
	state := s.opt.Archive.State()
	if len(files) == 0 || state == nil {
		return nil, nil, fatal("Binary log is not open: the relay has received nothing yet")
	}
	for _, g := range want {
		last := state.Last(g.Domain)
		switch {
		case last.Zero() || state.Has(g): // a domain that is new to the log begins later
		case last.Number > g.Number:
			return nil, nil, fatal("Error: connecting slave requested to start from GTID %s, which is not in the master's binlog. Since the master's binlog contains GTIDs with higher sequence numbers, it probably means that the slave has diverged due to executing extra erroneous transactions", g)
		default:
			return nil, nil, fatal("Error: connecting slave requested to start from GTID %s, which is not in the master's binlog", g)
		}
	}
	for i := len(files) - 1; i >= 0; i-- {
		p, err := ParseGTIDState(files[i].Flavor, files[i].Previous)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, files[i].Name, err)
		}
		if p.Flavor() != MariaDB || missingMariaDB(p, want) != nil {
			continue
		}
		wait := map[uint32]GTID{}
		for d, g := range want {
			if !state.Last(d).Zero() && p.Last(d) != g {
				wait[d] = g
			}
		}
		return files[i], wait, nil
	}
	p := s.purged()
	return nil, nil, fatal("Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required binlog files have been purged. The relay's oldest file begins after '%s', and of that the slave misses '%s'", p, joinGTIDs(missingMariaDB(p, want)))
}

// missingMariaDB returns the ends of the domains of p of which a replica that has
// come to want lacks something.
func missingMariaDB(p *GTIDState, want map[uint32]GTID) (missing []GTID) {
	for _, d := range p.Domains() {
		g, asked := want[d]
		if !asked || p.Has(g) && p.Last(d) != g {
			missing = append(missing, p.Last(d))
		}
	}
	return missing
}

// parsePositions reads @slave_connect_state and @slave_until_gtid: one GTID of
// each domain.
func parsePositions(text string) (map[uint32]GTID, error) {
	all := map[uint32]GTID{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		g, err := parseMariaDB(part)
		if err != nil {
			return nil, fatal("Got corrupted GTID position '%s' from slave: %v", text, err)
		}
		if _, twice := all[g.Domain]; twice {
			return nil, fatal("Got GTID position '%s' from slave with domain %d twice", text, g.Domain)
		}
		all[g.Domain] = g
	}
	return all, nil
}

// skipper decides which groups a replica gets.
type skipper struct {
	have    *GTIDState      // groups in it are passed over; nil: none
	wait    map[uint32]GTID // MariaDB's: those of a domain are, up to and with this one
	strict  bool            // MariaDB's gtid_strict_mode
	limited bool            // until counts
	until   map[uint32]GTID // MariaDB's: of each domain the last group to send
}

// active says whether group has anything to say.
func (s *skipper) active() bool { return s.have != nil || len(s.wait) > 0 || s.limited }

// group says whether to pass over the group.
func (s *skipper) group(g GTID) (skip bool, err error) {
	if g.Zero() {
		return false, nil
	}
	if s.have != nil && s.have.Has(g) {
		skip = true
	}
	if want, ok := s.wait[g.Domain]; ok && g.Flavor == MariaDB {
		skip = true
		if g.ServerID == want.ServerID && g.Number >= want.Number {
			delete(s.wait, g.Domain)
			if skip = g.Number == want.Number; !skip && s.strict {
				return false, mysql.NewError(mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG, fmt.Sprintf("The binlog on the master is missing the GTID %s requested by the slave (even though a subsequent sequence number does exist), and GTID strict mode is enabled", want))
			}
		}
	}
	if !s.limited {
		return skip, nil
	}
	last, ok := s.until[g.Domain]
	if !ok {
		return true, nil
	}
	if g.ServerID == last.ServerID && g.Number >= last.Number {
		delete(s.until, g.Domain)
		skip = skip || g.Number > last.Number
	}
	return skip, nil
}

// reached says that the last group was the last one asked for.
func (s *skipper) reached() bool { return s.limited && len(s.until) == 0 }

// newEpoch goes on with the log of another server, which may begin with groups
// that were sent: sent is the state at the end of the epoch before.
func (s *skipper) newEpoch(sent *GTIDState) {
	if s.have == nil || s.have.Flavor() != sent.Flavor() {
		s.have = sent
		return
	}
	s.have = s.have.Clone()
	s.have.Merge(sent)
}

// jump is the last indexed group of a file before which no group is for the
// replica, so that nothing before it need be read; the file's beginning if in
// doubt. It relies on the index only where that leaves no gap: of the groups
// between two marks all GTIDs are known if they are as many as the difference of
// their numbers.
func (s *skipper) jump(f *FileInfo) int64 {
	at := int64(len(magic))
	if len(f.Index) == 0 || s.limited || s.have != nil && len(s.wait) > 0 {
		return at
	}
	if at = s.jumpByState(f); at > int64(len(magic)) {
		return at
	}
	first, err := ParseGTID(f.Flavor, f.Index[0].GTID)
	if err != nil {
		return at
	}
	if f.Flavor == MariaDB {
		if added, err := ParseGTIDState(f.Flavor, f.Added); err != nil || len(added.Domains()) != 1 || len(s.wait) != 1 {
			return at
		}
	}
	for _, m := range f.Index {
		g, err := ParseGTID(f.Flavor, m.GTID)
		if err != nil || g.Domain != first.Domain || g.SID != first.SID || g.Tag != first.Tag || g.ServerID != first.ServerID ||
			g.Number-first.Number != uint64(m.Groups-f.Index[0].Groups) || !s.coversBefore(first, g) {
			break
		}
		at = m.Offset
	}
	return at
}

// jumpByState is jump by what the marks say of the groups before them, also of several
// domains and servers.
func (s *skipper) jumpByState(f *FileInfo) int64 {
	at := int64(len(magic))
	var seen []uint32 // domains whose wanted group lies before the mark
	for _, m := range f.Index {
		before, err := ParseGTIDState(f.Flavor, m.State)
		if err != nil || m.State == "" && m.Groups > 0 || f.Flavor == MySQL && (s.have == nil || !s.have.Contains(before)) {
			break
		}
		ended, all := s.endedBefore(before)
		if !all {
			break
		}
		at, seen = m.Offset, ended
	}
	for _, d := range seen {
		delete(s.wait, d)
	}
	return at
}

// endedBefore says whether a replica of MariaDB's has all groups up to a state in
// which numbers ascend, and in which domains it has exactly those.
func (s *skipper) endedBefore(state *GTIDState) (ended []uint32, all bool) {
	for _, d := range state.Domains() {
		want, ok := s.wait[d]
		last := state.Last(d)
		if !ok || want.Number < last.Number || want.Number == last.Number && want != last {
			return nil, false
		}
		if want == last {
			ended = append(ended, d)
		}
	}
	return ended, true
}

// coversBefore says whether all groups from first up to g, without g, are to be
// passed over.
func (s *skipper) coversBefore(first, g GTID) bool {
	if g == first {
		return true
	}
	if g.Flavor == MariaDB {
		want, ok := s.wait[g.Domain]
		return ok && want.ServerID == g.ServerID && want.Number >= g.Number
	}
	if s.have == nil {
		return false
	}
	all, err := ParseGTIDState(MySQL, rangeText(first, g))
	return err == nil && s.have.Contains(all)
}

// rangeText writes MySQL's GTIDs from first up to before end.
func rangeText(first, end GTID) string {
	name := first.SID
	if first.Tag != "" {
		name += ":" + first.Tag
	}
	return name + ":" + strconv.FormatUint(first.Number, 10) + "-" + strconv.FormatUint(end.Number-1, 10)
}

// asFatal makes an error one that a replica shows.
func asFatal(err error) *mysql.MyError {
	if my, ok := errors.AsType[*mysql.MyError](err); ok {
		return my
	}
	return fatal("%v", err)
}
