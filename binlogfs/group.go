package binlogfs

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// Step is what an event is for the groups of its file.
type Step int

// The steps.
const (
	StepHead  Step = iota // outside of groups: format description, lists of GTIDs, Rotate, Stop, …
	StepBegin             // the first event of a group; it may be its last, too: see Groups.Open
	StepInner             // neither its first nor its last
	StepEnd               // the last event of the open group
	StepWhole             // a group of one event
)

// MaxPrefix is how many bytes of an event's body Groups.Next needs to see when
// the body is longer: the fixed part, the variables and the database of a Query
// event, and a few bytes of its text.
const MaxPrefix = 13 + 1<<16 + 256 + 16

// MariaDB's flags of a GTID event (its source: sql/log_event.h, class Gtid_log_event).
const (
	gtidStandalone    = 0x01 // a group of one statement that ends with its Query event
	gtidGroupCommitID = 0x02
)

// Groups follows the groups of a file, event by event. The zero value stands at
// a file's beginning. It is not safe for concurrent use.
type Groups struct {
	open       bool
	gtid       GTID // of the open group; zero when it has none
	standalone bool
	queried    bool // the open group had its first Query event
	body       bool // the open group has more than its GTID
	began      bool // by BEGIN or XA START
}

// Open says whether a group is under way.
func (g *Groups) Open() bool { return g.open }

// GTID is that of the group that is under way, or that has just ended.
func (g *Groups) GTID() GTID { return g.gtid }

// Reset forgets the open group, as a format description event does: a server
// that crashed left its last group open.
func (g *Groups) Reset() { *g = Groups{} }

// Next takes an event's header and the first bytes of its body, all of them or
// MaxPrefix, without its checksum; whole is the length of the body. It returns
// ErrCorrupt for an event that can't be there.
func (g *Groups) Next(f *Format, h Header, body []byte, whole int) (Step, error) {
	switch h.Type {
	case replication.FORMAT_DESCRIPTION_EVENT:
		g.Reset()
		return StepHead, nil
	case replication.ROTATE_EVENT, replication.STOP_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_GTID_LIST_EVENT,
		replication.MARIADB_BINLOG_CHECKPOINT_EVENT, replication.MARIADB_START_ENCRYPTION_EVENT,
		replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2, replication.IGNORABLE_EVENT, replication.SLAVE_EVENT:
		if g.open {
			return 0, fmt.Errorf("%w: an event %v within the group of %s", ErrCorrupt, h.Type, g.name())
		}
		return StepHead, nil
	case replication.MARIADB_GTID_EVENT, replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return g.begin(h, body)
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return g.query(h, body, whole)
	case replication.XID_EVENT, replication.XA_PREPARE_LOG_EVENT:
		if !g.open {
			return 0, fmt.Errorf("%w: an event %v outside of a group", ErrCorrupt, h.Type)
		}
		return g.end(), nil
	case replication.TRANSACTION_PAYLOAD_EVENT, replication.INCIDENT_EVENT:
		if g.open && !g.body {
			return g.end(), nil
		}
		if !g.open {
			return g.single(), nil
		}
	}
	return g.inner(), nil
}

// begin opens a group with its GTID.
func (g *Groups) begin(h Header, body []byte) (Step, error) {
	if g.open {
		return 0, fmt.Errorf("%w: an event %v within the group of %s", ErrCorrupt, h.Type, g.name())
	}
	gtid, standalone, err := decodeGTID(h, body)
	if err != nil {
		return 0, err
	}
	*g = Groups{open: true, gtid: gtid, standalone: standalone}
	return StepBegin, nil
}

// inner takes an event that neither begins nor ends a group by itself. Without
// GTIDs the first of them begins one.
func (g *Groups) inner() Step {
	if !g.open {
		*g = Groups{open: true, body: true}
		return StepBegin
	}
	g.body = true
	return StepInner
}

// single is a group of one event without a GTID.
func (g *Groups) single() Step {
	*g = Groups{}
	return StepWhole
}

func (g *Groups) end() Step {
	gtid := g.gtid
	*g = Groups{gtid: gtid}
	return StepEnd
}

// query takes a Query event. The texts that open and close transactions are
// compared whole: a statement may begin with the same word.
func (g *Groups) query(h Header, body []byte, whole int) (Step, error) {
	text, err := queryText(h, body, whole)
	if err != nil {
		return 0, err
	}
	first := !g.queried
	switch {
	case first && !g.standalone && (text == "BEGIN" || strings.HasPrefix(text, "XA START")):
		step := g.inner()
		g.queried, g.began = true, true
		return step, nil
	case text == "COMMIT" || text == "ROLLBACK":
		if !g.open {
			return g.single(), nil
		}
		return g.end(), nil
	case g.open && g.standalone, g.open && first && !g.began && g.gtid.Flavor != MariaDB:
		return g.end(), nil
	case !g.open:
		return g.single(), nil
	}
	step := g.inner()
	g.queried = true
	return step, nil
}

// queryText returns the beginning of a Query event's statement, all of it when
// it is short; empty for a compressed one, which neither opens nor closes.
func queryText(h Header, body []byte, whole int) (string, error) {
	const fixed = 13 // thread 4B, time 4B, length of database 1B, error 2B, length of variables 2B
	if len(body) < fixed {
		return "", fmt.Errorf("%w: a Query event of %d bytes", ErrCorrupt, whole)
	}
	at := fixed + int(binary.LittleEndian.Uint16(body[11:])) + int(body[8]) + 1
	if at > whole {
		return "", fmt.Errorf("%w: a Query event whose statement lies outside it", ErrCorrupt)
	}
	if h.Type != replication.QUERY_EVENT {
		return "", nil
	}
	const longest = 16
	return string(body[min(at, len(body)):min(at+longest, len(body))]), nil
}

func (g *Groups) name() string {
	if g.gtid.Zero() {
		return "a group without GTID"
	}
	return g.gtid.String()
}
