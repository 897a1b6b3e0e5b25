package binlogfs

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// EventName is what servers call a type of event in SHOW BINLOG EVENTS.
func EventName(t EventType) string {
	switch t {
	case replication.QUERY_EVENT:
		return "Query"
	case replication.STOP_EVENT:
		return "Stop"
	case replication.ROTATE_EVENT:
		return "Rotate"
	case replication.INTVAR_EVENT:
		return "Intvar"
	case replication.RAND_EVENT:
		return "RAND"
	case replication.USER_VAR_EVENT:
		return "User var"
	case replication.FORMAT_DESCRIPTION_EVENT:
		return "Format_desc"
	case replication.XID_EVENT:
		return "Xid"
	case replication.APPEND_BLOCK_EVENT:
		return "Append_block"
	case replication.DELETE_FILE_EVENT:
		return "Delete_file"
	case replication.BEGIN_LOAD_QUERY_EVENT:
		return "Begin_load_query"
	case replication.EXECUTE_LOAD_QUERY_EVENT:
		return "Execute_load_query"
	case replication.TABLE_MAP_EVENT:
		return "Table_map"
	case replication.WRITE_ROWS_EVENTv1:
		return "Write_rows_v1"
	case replication.UPDATE_ROWS_EVENTv1:
		return "Update_rows_v1"
	case replication.DELETE_ROWS_EVENTv1:
		return "Delete_rows_v1"
	case replication.INCIDENT_EVENT:
		return "Incident"
	case replication.HEARTBEAT_EVENT:
		return "Heartbeat"
	case replication.IGNORABLE_EVENT:
		return "Ignorable"
	case replication.ROWS_QUERY_EVENT:
		return "Rows_query"
	case replication.WRITE_ROWS_EVENTv2:
		return "Write_rows"
	case replication.UPDATE_ROWS_EVENTv2:
		return "Update_rows"
	case replication.DELETE_ROWS_EVENTv2:
		return "Delete_rows"
	case replication.GTID_EVENT, replication.MARIADB_GTID_EVENT:
		return "Gtid"
	case replication.ANONYMOUS_GTID_EVENT:
		return "Anonymous_Gtid"
	case replication.PREVIOUS_GTIDS_EVENT:
		return "Previous_gtids"
	case replication.TRANSACTION_CONTEXT_EVENT:
		return "Transaction_context"
	case replication.VIEW_CHANGE_EVENT:
		return "View_change"
	case replication.XA_PREPARE_LOG_EVENT:
		return "XA_prepare"
	case replication.PARTIAL_UPDATE_ROWS_EVENT:
		return "Update_rows_partial"
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return "Transaction_payload"
	case replication.HEARTBEAT_LOG_EVENT_V2:
		return "Heartbeat_v2"
	case replication.GTID_TAGGED_LOG_EVENT:
		return "Gtid_tagged"
	case replication.MARIADB_ANNOTATE_ROWS_EVENT:
		return "Annotate_rows"
	case replication.MARIADB_BINLOG_CHECKPOINT_EVENT:
		return "Binlog_checkpoint"
	case replication.MARIADB_GTID_LIST_EVENT:
		return "Gtid_list"
	case replication.MARIADB_START_ENCRYPTION_EVENT:
		return "Start_encryption"
	case replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return "Query_compressed"
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		return "Write_rows_compressed_v1"
	case replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
		return "Update_rows_compressed_v1"
	case replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return "Delete_rows_compressed_v1"
	}
	return fmt.Sprintf("Unknown_%d", byte(t))
}

// describeText is how much of a statement is shown.
const describeText = 200

// Describe says in a few words what an event does, as SHOW BINLOG EVENTS does.
// It is empty where its type tells everything, or where its bytes contradict it.
func (e *Event) Describe(f Flavor) string {
	b := e.Body
	switch e.Type {
	case replication.QUERY_EVENT:
		return describeQuery(b)
	case replication.MARIADB_ANNOTATE_ROWS_EVENT:
		return shorten(string(b), e.Whole)
	case replication.ROWS_QUERY_EVENT:
		if len(b) > 1 {
			return shorten(string(b[1:]), e.Whole-1)
		}
	case replication.XID_EVENT:
		if len(b) >= 8 {
			return fmt.Sprintf("COMMIT /* xid=%d */", binary.LittleEndian.Uint64(b))
		}
	case replication.ROTATE_EVENT:
		if name, pos, err := DecodeRotate(b); err == nil {
			return fmt.Sprintf("%s;pos=%d", name, pos)
		}
	case replication.TABLE_MAP_EVENT:
		return describeTable(b)
	case replication.FORMAT_DESCRIPTION_EVENT:
		if len(b) > 52 {
			return "Server ver: " + cString(b[2:52]) + ", Binlog ver: 4"
		}
	case replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_GTID_LIST_EVENT:
		if s, err := DecodePreviousGTIDs(f, b); err == nil {
			return "[" + s.String() + "]"
		}
	case replication.MARIADB_GTID_EVENT, replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return e.GTID.String()
	case replication.MARIADB_BINLOG_CHECKPOINT_EVENT:
		if len(b) > 4 {
			return string(b[4:])
		}
	}
	return ""
}

// describeQuery is a Query event's database and the beginning of its statement.
func describeQuery(b []byte) string {
	const fixed = 13
	if len(b) < fixed {
		return ""
	}
	at := fixed + int(binary.LittleEndian.Uint16(b[11:]))
	db := int(b[8])
	if at+db+1 > len(b) {
		return ""
	}
	text := shorten(string(b[at+db+1:]), len(b)-at-db-1)
	if db == 0 {
		return text
	}
	return "use `" + string(b[at:at+db]) + "`; " + text
}

// describeTable is the table that row events after a Table_map are about: table
// id 6B, flags 2B, length 1B, database, 0, length 1B, table, 0, …
func describeTable(b []byte) string {
	names := make([]string, 0, 2)
	for b = b[min(8, len(b)):]; len(names) < 2; {
		if len(b) < 1 || len(b) < int(b[0])+2 {
			return ""
		}
		names = append(names, string(b[1:1+b[0]]))
		b = b[int(b[0])+2:]
	}
	return names[0] + "." + names[1]
}

// shorten is the beginning of a text of whole bytes on one line.
func shorten(text string, whole int) string {
	cut := len(text) < whole
	if len(text) > describeText {
		text, cut = text[:describeText], true
	}
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "")
	if cut {
		text += "…"
	}
	return text
}
