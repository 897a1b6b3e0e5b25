package binlogfs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-mysql-org/go-mysql/serialization"
)

// Flavor is whose dialect of the binary log and of GTIDs a source speaks.
type Flavor string

// The flavours.
const (
	MariaDB Flavor = mysql.MariaDBFlavor
	MySQL   Flavor = mysql.MySQLFlavor
)

// flavorOf tells the flavour from a server's version.
func flavorOf(version string) Flavor {
	if strings.Contains(strings.ToLower(version), "mariadb") {
		return MariaDB
	}
	return MySQL
}

// GTID names one group. The zero value names none.
type GTID struct {
	Flavor   Flavor
	Domain   uint32 // MariaDB's
	ServerID uint32 // MariaDB's
	SID      string // MySQL's: the UUID of the server
	Tag      string // MySQL's, from 8.3 on
	Number   uint64 // sequence number, or transaction number
}

// Zero says that there is no GTID.
func (g GTID) Zero() bool { return g.Number == 0 }

// String returns the GTID as servers write it.
func (g GTID) String() string {
	switch {
	case g.Zero():
		return ""
	case g.Flavor == MariaDB:
		return fmt.Sprintf("%d-%d-%d", g.Domain, g.ServerID, g.Number)
	case g.Tag != "":
		return fmt.Sprintf("%s:%s:%d", g.SID, g.Tag, g.Number)
	}
	return fmt.Sprintf("%s:%d", g.SID, g.Number)
}

// decodeGTID reads the event that begins a group.
func decodeGTID(h Header, body []byte) (g GTID, standalone bool, err error) {
	switch h.Type {
	case replication.MARIADB_GTID_EVENT:
		// sequence number 8B, domain 4B, flags 1B, …
		if len(body) < 13 {
			return g, false, fmt.Errorf("%w: a GTID event of %d bytes", ErrCorrupt, len(body))
		}
		g = GTID{Flavor: MariaDB, Domain: binary.LittleEndian.Uint32(body[8:]), ServerID: h.ServerID, Number: binary.LittleEndian.Uint64(body)}
		return g, body[12]&gtidStandalone != 0, nil
	case replication.ANONYMOUS_GTID_EVENT:
		return g, false, nil
	case replication.GTID_EVENT:
		// flags 1B, UUID 16B, number 8B, …
		if len(body) < 25 {
			return g, false, fmt.Errorf("%w: a Gtid event of %d bytes", ErrCorrupt, len(body))
		}
		return GTID{Flavor: MySQL, SID: uuidText(body[1:17]), Number: binary.LittleEndian.Uint64(body[17:])}, false, nil
	}
	g, err = decodeTagged(body)
	return g, false, err
}

// decodeTagged reads the first four fields of MySQL's tagged Gtid event: its flags,
// UUID, number and tag. go-mysql's own decoder panics at an event that is cut off
// and at the ticket of a group replication, and a damaged event comes here before
// its checksum is compared.
func decodeTagged(body []byte) (GTID, error) {
	uuid, number, tag := &serialization.FieldIntFixed{Length: 16}, &serialization.FieldIntVar{}, &serialization.FieldString{}
	fields := []serialization.Field{{Name: "gtid_flags", Type: &serialization.FieldIntFixed{Length: 1}}, {Name: "uuid", Type: uuid}, {Name: "gno", Type: number}, {Name: "tag", Type: tag}}
	if len(body) < 3 {
		return GTID{}, fmt.Errorf("%w: a tagged Gtid event of %d bytes", ErrCorrupt, len(body))
	}
	if err := serialization.Unmarshal(body, &serialization.Message{Format: serialization.Format{Fields: fields}}); err != nil {
		return GTID{}, fmt.Errorf("%w: a tagged Gtid event: %v", ErrCorrupt, err)
	}
	for _, f := range fields {
		if f.Skipped {
			return GTID{}, fmt.Errorf("%w: a tagged Gtid event without its field %s", ErrCorrupt, f.Name)
		}
	}
	if number.Value <= 0 {
		return GTID{}, fmt.Errorf("%w: a tagged Gtid event with the number %d", ErrCorrupt, number.Value)
	}
	return GTID{Flavor: MySQL, SID: uuidText(uuid.Value), Tag: mysql.NewTag(tag.Value).String(), Number: uint64(number.Value)}, nil
}

// uuidText writes 16 bytes as servers write UUIDs.
func uuidText(b []byte) string {
	s := hex.EncodeToString(b)
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
