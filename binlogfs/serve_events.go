package binlogfs

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// maxInfo bounds the text about an event.
const maxInfo = 4096

// eventNames are the servers' names of event types where the library's differ.
func eventName(t EventType) string {
	switch t {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return "Format_desc"
	case replication.MARIADB_GTID_LIST_EVENT:
		return "Gtid_list"
	case replication.MARIADB_BINLOG_CHECKPOINT_EVENT:
		return "Binlog_checkpoint"
	case replication.MARIADB_GTID_EVENT, replication.GTID_EVENT:
		return "Gtid"
	case replication.GTID_TAGGED_LOG_EVENT:
		return "Gtid_tagged_log_event"
	case replication.ANONYMOUS_GTID_EVENT:
		return "Anonymous_Gtid"
	case replication.PREVIOUS_GTIDS_EVENT:
		return "Previous_gtids"
	case replication.MARIADB_ANNOTATE_ROWS_EVENT:
		return "Annotate_rows"
	case replication.XA_PREPARE_LOG_EVENT:
		return "XA_prepare"
	case replication.TABLE_MAP_EVENT:
		return "Table_map"
	case replication.WRITE_ROWS_EVENTv1:
		return "Write_rows_v1"
	case replication.UPDATE_ROWS_EVENTv1:
		return "Update_rows_v1"
	case replication.DELETE_ROWS_EVENTv1:
		return "Delete_rows_v1"
	case replication.WRITE_ROWS_EVENTv2:
		return "Write_rows"
	case replication.UPDATE_ROWS_EVENTv2:
		return "Update_rows"
	case replication.DELETE_ROWS_EVENTv2:
		return "Delete_rows"
	case replication.ROWS_QUERY_EVENT:
		return "Rows_query"
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return "Transaction_payload"
	}
	return strings.TrimSuffix(t.String(), "Event")
}

// eventInfo is the text about the walker's event, as SHOW BINLOG EVENTS has it.
func eventInfo(w *walker) (string, error) {
	body, err := w.body(MaxPrefix + maxInfo)
	if err != nil {
		return "", err
	}
	le := binary.LittleEndian
	switch w.head.Type {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return "Server ver: " + w.format.Server + ", Binlog ver: 4", nil
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
		text := "GTID " + w.groups.GTID().String()
		if len(body) > 12 && body[12]&gtidStandalone == 0 {
			text = "BEGIN " + text
		}
		return text, nil
	case replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return "SET @@SESSION.GTID_NEXT= '" + w.groups.GTID().String() + "'", nil
	case replication.ANONYMOUS_GTID_EVENT:
		return "SET @@SESSION.GTID_NEXT= 'ANONYMOUS'", nil
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return queryInfo(w.head.Type, body), nil
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
