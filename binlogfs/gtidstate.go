package binlogfs

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"
)

// GTIDState is what has been logged up to some place: MySQL's set of executed
// GTIDs, or MariaDB's last sequence number of each server in each domain (its
// gtid_binlog_state). It is not safe for concurrent use.
type GTIDState struct {
	flavor  Flavor
	mysql   mysql.MysqlGTIDSet
	domains map[uint32]*gtidDomain
}

// gtidDomain is one of MariaDB's replication domains.
type gtidDomain struct {
	last    GTID
	servers map[uint32]uint64 // server id → its last sequence number
}

// NewGTIDState returns an empty state.
func NewGTIDState(f Flavor) *GTIDState {
	s := &GTIDState{flavor: f}
	if f == MariaDB {
		s.domains = map[uint32]*gtidDomain{}
	} else {
		s.mysql = mysql.NewMysqlGTIDSet()
	}
	return s
}

// ParseGTIDState reads a state as String writes it, or a position as operators
// give it: `0-1-5,1-2-7`, or `<uuid>:1-5:9,<uuid>:tag:1`.
func ParseGTIDState(f Flavor, text string) (*GTIDState, error) {
	s := NewGTIDState(f)
	text = strings.Join(strings.Fields(text), "")
	if text == "" {
		return s, nil
	}
	if f == MySQL {
		set, err := mysql.ParseMysqlGTIDSet(text)
		if err != nil {
			return nil, fmt.Errorf("GTID set %q: %w", text, err)
		}
		s.mysql = *set.(*mysql.MysqlGTIDSet)
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		g, err := parseMariaDB(part)
		if err != nil {
			return nil, err
		}
		s.Add(g)
	}
	return s, nil
}

// parseMariaDB reads domain-server-sequence.
func parseMariaDB(text string) (GTID, error) {
	parts := strings.Split(text, "-")
	g := GTID{Flavor: MariaDB}
	ok := len(parts) == 3
	for i, bits := range []int{32, 32, 64} {
		if !ok {
			break
		}
		n, err := strconv.ParseUint(parts[i], 10, bits)
		ok = err == nil
		switch i {
		case 0:
			g.Domain = uint32(n)
		case 1:
			g.ServerID = uint32(n)
		default:
			g.Number = n
		}
	}
	if !ok || g.Zero() {
		return GTID{}, fmt.Errorf("GTID %q: it is not like 0-1-100", text)
	}
	return g, nil
}

// ParseGTID reads one GTID.
func ParseGTID(f Flavor, text string) (GTID, error) {
	if f == MariaDB {
		return parseMariaDB(text)
	}
	parts := strings.Split(text, ":")
	bad := fmt.Errorf("GTID %q: it is not like 3e11fa47-71ca-11e1-9e33-c80aa9429562:23", text)
	if len(parts) != 2 && len(parts) != 3 {
		return GTID{}, bad
	}
	n, err := strconv.ParseUint(parts[len(parts)-1], 10, 63)
	id, uerr := uuid.Parse(parts[0])
	if err != nil || uerr != nil || n == 0 {
		return GTID{}, bad
	}
	g := GTID{Flavor: MySQL, SID: id.String(), Number: n}
	if len(parts) == 3 {
		g.Tag = strings.ToLower(parts[1])
	}
	return g, nil
}

// DecodePreviousGTIDs reads the state that a file begins with: MySQL's
// Previous_gtids event, or MariaDB's Gtid_list. A checksum must have been cut off.
func DecodePreviousGTIDs(f Flavor, body []byte) (*GTIDState, error) {
	s := NewGTIDState(f)
	if f == MySQL {
		set, err := mysql.DecodeMysqlGTIDSet(body)
		if err != nil {
			return nil, fmt.Errorf("%w: a Previous_gtids event: %v", ErrCorrupt, err)
		}
		s.mysql = *set
		return s, nil
	}
	// count 4B (of which the upper four bits are flags), then domain 4B, server 4B, number 8B
	if len(body) < 4 {
		return nil, fmt.Errorf("%w: a Gtid_list event of %d bytes", ErrCorrupt, len(body))
	}
	n := int(binary.LittleEndian.Uint32(body) & (1<<28 - 1))
	if body = body[4:]; len(body) < 16*n {
		return nil, fmt.Errorf("%w: a Gtid_list event of %d GTIDs in %d bytes", ErrCorrupt, n, len(body))
	}
	for ; n > 0; n-- {
		s.Add(GTID{
			Flavor: MariaDB, Domain: binary.LittleEndian.Uint32(body), ServerID: binary.LittleEndian.Uint32(body[4:]),
			Number: binary.LittleEndian.Uint64(body[8:]),
		})
		body = body[16:]
	}
	return s, nil
}

// Flavor is whose GTIDs these are.
func (s *GTIDState) Flavor() Flavor { return s.flavor }

// Add counts a group in. The zero GTID changes nothing.
func (s *GTIDState) Add(g GTID) {
	if g.Zero() {
		return
	}
	if s.flavor == MySQL {
		id, err := uuid.Parse(g.SID)
		if err != nil {
			panic("binlogfs: GTID with a UUID that is none: " + g.SID)
		}
		s.mysql.AddGTIDWithTag(id, mysql.NewTag(g.Tag), int64(g.Number))
		return
	}
	d := s.domains[g.Domain]
	if d == nil {
		d = &gtidDomain{servers: map[uint32]uint64{}}
		s.domains[g.Domain] = d
	}
	d.last = g
	d.servers[g.ServerID] = g.Number
}

// Has says whether a group is in the state. For MariaDB a server's later
// sequence number stands for all its earlier ones.
func (s *GTIDState) Has(g GTID) bool {
	if s.flavor == MySQL {
		id, err := uuid.Parse(g.SID)
		if err != nil {
			return false
		}
		one := mysql.NewMysqlGTIDSet()
		one.AddGTIDWithTag(id, mysql.NewTag(g.Tag), int64(g.Number))
		return s.mysql.Contain(&one)
	}
	d := s.domains[g.Domain]
	return d != nil && d.servers[g.ServerID] >= g.Number
}

// Contains says whether everything in o is in s.
func (s *GTIDState) Contains(o *GTIDState) bool {
	if s.flavor == MySQL {
		return s.mysql.Contain(&o.mysql)
	}
	for _, d := range o.domains {
		for server, n := range d.servers {
			if !s.Has(GTID{Flavor: MariaDB, Domain: d.last.Domain, ServerID: server, Number: n}) {
				return false
			}
		}
	}
	return true
}

// Missing returns what of o is not in s, as text; empty when s contains o.
func (s *GTIDState) Missing(o *GTIDState) string {
	if s.flavor == MySQL {
		return mysqlMinus(o.mysql, s.mysql).String()
	}
	var list []string
	for _, g := range o.list() {
		if !s.Has(g) {
			list = append(list, g.String())
		}
	}
	return strings.Join(list, ",")
}

// mysqlMinus returns what is in a and not in b.
func mysqlMinus(a, b mysql.MysqlGTIDSet) *mysql.MysqlGTIDSet {
	out := mysql.NewMysqlGTIDSet()
	for id, tags := range a {
		for tag, intervals := range tags {
			left := intervals
			for _, cut := range b[id][tag] {
				var next mysql.IntervalSlice
				for _, i := range left { // [Start, Stop)
					if cut.Stop <= i.Start || cut.Start >= i.Stop {
						next = append(next, i)
						continue
					}
					if i.Start < cut.Start {
						next = append(next, mysql.Interval{Start: i.Start, Stop: cut.Start})
					}
					if cut.Stop < i.Stop {
						next = append(next, mysql.Interval{Start: cut.Stop, Stop: i.Stop})
					}
				}
				left = next
			}
			if len(left) > 0 {
				if out[id] == nil {
					out[id] = map[mysql.Tag]mysql.IntervalSlice{}
				}
				out[id][tag] = left
			}
		}
	}
	return &out
}

// Last is the last GTID of a domain of MariaDB's; zero when it has none.
func (s *GTIDState) Last(domain uint32) GTID {
	if d := s.domains[domain]; d != nil {
		return d.last
	}
	return GTID{}
}

// follows says whether the groups so far and one more are told apart by their GTIDs,
// of MariaDB's by the last one of each domain.
func (s *GTIDState) follows(g GTID) bool {
	return !g.Zero() && (s.flavor == MySQL || g.Number > s.Last(g.Domain).Number)
}

// Domains returns MariaDB's domains in ascending order.
func (s *GTIDState) Domains() []uint32 { return slices.Sorted(maps.Keys(s.domains)) }

// Empty says that nothing was logged.
func (s *GTIDState) Empty() bool {
	return len(s.domains) == 0 && s.mysql.IsEmpty()
}

// list returns MariaDB's GTIDs by domain, the last one of each domain behind
// the others, as servers do.
func (s *GTIDState) list() (all []GTID) {
	for _, id := range s.Domains() {
		d := s.domains[id]
		for _, server := range slices.Sorted(maps.Keys(d.servers)) {
			if server != d.last.ServerID {
				all = append(all, GTID{Flavor: MariaDB, Domain: id, ServerID: server, Number: d.servers[server]})
			}
		}
		all = append(all, d.last)
	}
	return all
}

// String returns the state as gtid_binlog_state or gtid_executed show it.
func (s *GTIDState) String() string {
	if s.flavor == MySQL {
		return s.mysql.String()
	}
	return joinGTIDs(s.list())
}

// Position returns what a replica that has it all would ask to go on from:
// MariaDB's last GTID of each domain, MySQL's whole set.
func (s *GTIDState) Position() string {
	if s.flavor == MySQL {
		return s.mysql.String()
	}
	var all []GTID
	for _, id := range s.Domains() {
		all = append(all, s.domains[id].last)
	}
	return joinGTIDs(all)
}

func joinGTIDs(all []GTID) string {
	text := make([]string, len(all))
	for i, g := range all {
		text[i] = g.String()
	}
	return strings.Join(text, ",")
}

// Encode returns MySQL's set as the body of a Previous_gtids event and of
// COM_BINLOG_DUMP_GTID; nil for MariaDB.
func (s *GTIDState) Encode() []byte {
	if s.flavor == MySQL {
		return s.mysql.Encode()
	}
	return nil
}

// Clone returns a copy.
func (s *GTIDState) Clone() *GTIDState {
	c := NewGTIDState(s.flavor)
	if s.flavor == MySQL {
		c.mysql = *s.mysql.Clone().(*mysql.MysqlGTIDSet)
		return c
	}
	for id, d := range s.domains {
		c.domains[id] = &gtidDomain{last: d.last, servers: maps.Clone(d.servers)}
	}
	return c
}

// Merge adds what was logged after s.
func (s *GTIDState) Merge(later *GTIDState) {
	if s.flavor == MySQL {
		for id, tags := range later.mysql {
			for tag, intervals := range tags {
				if s.mysql[id] == nil {
					s.mysql[id] = map[mysql.Tag]mysql.IntervalSlice{}
				}
				s.mysql[id][tag] = append(slices.Clone(s.mysql[id][tag]), intervals...).Normalize()
			}
		}
		return
	}
	for _, g := range later.list() {
		s.Add(g)
	}
}

// MergeNew adds what of o is not in s yet, and keeps the order of what is.
func (s *GTIDState) MergeNew(o *GTIDState) {
	if s.flavor == MySQL {
		s.Merge(o)
		return
	}
	for _, g := range o.list() {
		s.AddNew(g)
	}
}

// AddNew is Add for a group that may be in s already.
func (s *GTIDState) AddNew(g GTID) {
	if !s.Has(g) {
		s.Add(g)
	}
}
