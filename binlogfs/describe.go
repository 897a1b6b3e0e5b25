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

// describeText is how much of a statement is shown on a line.
const describeText = 200

// Describe says on one short line what an event does. It is empty where its type
// tells everything, or where its bytes contradict it.
func (e *Event) Describe(f *Format) string {
	text, err := eventText(e.Type, f, e.GTID, e.Body)
	if err != nil {
		return ""
	}
	return shorten(text, len(text))
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

// maxInfo bounds the text about an event.
const maxInfo = 4096

// eventText is what an event does, as SHOW BINLOG EVENTS has it; gtid is that of
// its group, and body its first bytes.
func eventText(t EventType, f *Format, gtid GTID, body []byte) (string, error) {
	le := binary.LittleEndian
	switch t {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return "Server ver: " + f.Server + ", Binlog ver: 4", nil
	case replication.MARIADB_GTID_LIST_EVENT:
		s, err := DecodePreviousGTIDs(MariaDB, body)
		if err != nil {
			return "", err
		}
		return "[" + s.String() + "]", nil
	case replication.PREVIOUS_GTIDS_EVENT:
		s, err := DecodePreviousGTIDs(MySQL, body)
		if err != nil {
			return "", err
		}
		return s.String(), nil
	case replication.MARIADB_GTID_EVENT:
		text := "GTID " + gtid.String()
		if len(body) > 12 && body[12]&gtidStandalone == 0 {
			text = "BEGIN " + text
		}
		return text, nil
	case replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return "SET @@SESSION.GTID_NEXT= '" + gtid.String() + "'", nil
	case replication.ANONYMOUS_GTID_EVENT:
		return "SET @@SESSION.GTID_NEXT= 'ANONYMOUS'", nil
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return queryInfo(t, body), nil
	case replication.XID_EVENT:
		if len(body) >= 8 {
			return fmt.Sprintf("COMMIT /* xid=%d */", le.Uint64(body)), nil
		}
	case replication.ROTATE_EVENT:
		if file, pos, err := DecodeRotate(body); err == nil {
			return fmt.Sprintf("%s;pos=%d", file, pos), nil
		}
	case replication.MARIADB_BINLOG_CHECKPOINT_EVENT:
		if len(body) > 4 {
			return clip(string(body[4:])), nil
		}
	case replication.MARIADB_ANNOTATE_ROWS_EVENT:
		return clip(string(body)), nil
	case replication.ROWS_QUERY_EVENT:
		if len(body) > 1 {
			return clip("# " + string(body[1:])), nil
		}
	case replication.TABLE_MAP_EVENT:
		return tableInfo(body), nil
	case replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2:
		if len(body) >= 8 {
			text := fmt.Sprintf("table_id: %d", tableID(body))
			if le.Uint16(body[6:])&1 != 0 {
				text += " flags: STMT_END_F"
			}
			return text, nil
		}
	}
	return "", nil
}

// clip cuts a text that is too long.
func clip(text string) string {
	if len(text) > maxInfo {
		return text[:maxInfo] + " …"
	}
	return text
}

// queryInfo is a statement with its database.
func queryInfo(t EventType, body []byte) string {
	const fixed = 13
	if len(body) < fixed {
		return ""
	}
	at := fixed + int(binary.LittleEndian.Uint16(body[11:]))
	end := at + int(body[8])
	if end+1 > len(body) {
		return ""
	}
	db, text := string(body[at:end]), string(body[end+1:])
	if t == replication.MARIADB_QUERY_COMPRESSED_EVENT {
		text = "(a compressed statement)"
	}
	if text = clip(text); db != "" && text != "BEGIN" && text != "COMMIT" {
		return "use `" + db + "`; " + text
	}
	return text
}

func tableID(body []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
}

// tableInfo names the table of a Table_map event: id 6B, flags 2B, then database
// and table, each with its length before it and a zero behind it.
func tableInfo(body []byte) string {
	if len(body) < 9 {
		return ""
	}
	rest := body[8:]
	var names [2]string
	for i := range names {
		if len(rest) < 1 || len(rest) < 2+int(rest[0]) {
			return ""
		}
		names[i], rest = string(rest[1:1+int(rest[0])]), rest[2+int(rest[0]):]
	}
	return fmt.Sprintf("table_id: %d (%s.%s)", tableID(body), names[0], names[1])
}
