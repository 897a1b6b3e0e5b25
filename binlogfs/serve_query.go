package binlogfs

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// HandleQuery implements server.Handler.
func (x *session) HandleQuery(sql string) (*mysql.Result, error) {
	if len(sql) > maxQuery {
		return nil, mysql.NewError(mysql.ER_NET_PACKET_TOO_LARGE, "A statement that is too long for a binlog relay")
	}
	x.doing("Query")
	st := parse(strings.Clone(sql)) // the library's buffer is used again
	switch {
	case st.done():
		return nil, mysql.NewDefaultError(mysql.ER_EMPTY_QUERY)
	case st.accept("SELECT"):
		return x.selectList(st)
	case st.accept("SET"):
		return nil, x.set(st)
	case st.accept("SHOW"):
		return x.show(st)
	case st.accept("KILL"):
		if !st.accept("CONNECTION") {
			st.accept("QUERY")
		}
		id, ok := st.number()
		if !ok || !st.done() {
			return nil, st.wrong()
		}
		return nil, x.killOther(uint64(id))
	case st.oneOf("USE", "BEGIN", "COMMIT", "ROLLBACK"):
		return nil, nil // what clients send by habit, and what changes nothing here
	}
	return nil, x.manage(st)
}

// set takes user variables; system variables are the client's habit, and nothing
// here depends on them.
func (x *session) set(st *statement) error {
	for !st.done() {
		t := st.next()
		if t.kind != tokenUser {
			skipExpression(st)
			continue
		}
		if !st.assign() {
			return st.wrong()
		}
		name, value := t.text, ""
		switch t = st.next(); t.kind {
		case tokenSystem:
			v, ok := x.systemVariable(t.text)
			if !ok {
				return mysql.NewDefaultError(mysql.ER_UNKNOWN_SYSTEM_VARIABLE, t.text)
			}
			value = v
		case tokenUser:
			value = x.vars[canonical(t.text)]
		default:
			if value = t.text; !t.value() {
				return st.wrong()
			}
		}
		if err := x.setVariable(name, value); err != nil {
			return err
		}
		if !st.done() && !st.acceptMark(",") {
			return st.wrong()
		}
	}
	return nil
}

// skipExpression goes to behind the next comma that is outside of brackets.
func skipExpression(st *statement) {
	for depth := 0; !st.done(); {
		switch t := st.next(); {
		case t.mark("("):
			depth++
		case t.mark(")"):
			depth--
		case t.mark(",") && depth == 0:
			return
		}
	}
}

// selectList answers SELECT of variables, constants and a few functions.
func (x *session) selectList(st *statement) (*mysql.Result, error) {
	var names []string
	var values []any
	for {
		from := st.peek().start
		v, err := x.expression(st)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSpace(st.sql[from:st.tokens[st.at-1].end])
		if st.accept("AS") || st.peek().value() && !st.peek().is("LIMIT") && !st.peek().is("FROM") {
			t := st.next()
			if !t.value() {
				return nil, st.wrong()
			}
			name = t.text
		}
		names, values = append(names, name), append(values, v)
		if !st.acceptMark(",") {
			break
		}
	}
	if st.accept("FROM") && !st.accept("DUAL") {
		return nil, st.wrong()
	}
	if st.accept("LIMIT") {
		if _, ok := st.number(); !ok {
			return nil, st.wrong()
		}
	}
	if !st.done() {
		return nil, st.wrong()
	}
	return row(names, values)
}

// maxDepth bounds how deep a statement's functions may be nested: a stack that is
// too small for them would end the process.
const maxDepth = 20

// expression evaluates one expression: text, or nil for NULL.
func (x *session) expression(st *statement) (any, error) {
	if st.depth == maxDepth {
		return nil, st.wrong()
	}
	st.depth++
	defer func() { st.depth-- }()
	t := st.next()
	switch t.kind {
	case tokenText, tokenNumber:
		return t.text, nil
	case tokenUser:
		if v, ok := x.vars[canonical(t.text)]; ok {
			return v, nil
		}
		return nil, nil
	case tokenSystem:
		if v, ok := x.systemVariable(t.text); ok {
			return v, nil
		}
		return nil, mysql.NewDefaultError(mysql.ER_UNKNOWN_SYSTEM_VARIABLE, t.text)
	case tokenWord:
		if t.is("NULL") {
			return nil, nil
		}
		if !st.acceptMark("(") {
			if t.is("CURRENT_USER") {
				return x.user + "@%", nil
			}
			break
		}
		var args []any
		for !st.acceptMark(")") {
			v, err := x.expression(st)
			if err != nil {
				return nil, err
			}
			if args = append(args, v); !st.acceptMark(",") && !st.peek().mark(")") {
				return nil, st.wrong()
			}
		}
		return x.function(t.text, args, st)
	}
	st.at--
	return nil, st.wrong()
}

// function calls one of the functions that replication tools use.
func (x *session) function(name string, args []any, st *statement) (any, error) {
	text := make([]string, len(args))
	for i, a := range args {
		if a != nil {
			text[i] = a.(string) // every expression is text or NULL
		}
	}
	switch name = strings.ToUpper(name); {
	case name == "VERSION":
		return x.s.sourceVersion(), nil
	case name == "UNIX_TIMESTAMP" && len(args) == 0:
		return strconv.FormatInt(time.Now().Unix(), 10), nil
	case name == "NOW" || name == "CURRENT_TIMESTAMP" || name == "UTC_TIMESTAMP":
		return time.Now().UTC().Format(time.DateTime), nil
	case name == "CONNECTION_ID":
		return strconv.FormatUint(uint64(x.conn.ConnectionID()), 10), nil
	case name == "DATABASE" || name == "SCHEMA":
		return nil, nil
	case name == "USER" || name == "CURRENT_USER" || name == "SESSION_USER":
		return x.user + "@%", nil
	case name == "CONCAT":
		return strings.Join(text, ""), nil
	case (name == "GTID_SUBSET" || name == "GTID_SUBTRACT") && len(args) == 2:
		return subset(name == "GTID_SUBSET", text[0], text[1])
	case name == "BINLOG_GTID_POS" && len(args) == 2:
		return x.gtidAt(text[0], text[1])
	case (name == "WAIT_FOR_EXECUTED_GTID_SET" || name == "MASTER_GTID_WAIT") && (len(args) == 1 || len(args) == 2):
		return x.waitForGTIDs(name == "MASTER_GTID_WAIT", text)
	}
	return nil, mysql.NewError(mysql.ER_SP_DOES_NOT_EXIST, "FUNCTION "+name+" does not exist in a binlog relay")
}

// subset is GTID_SUBSET or GTID_SUBTRACT of two of MySQL's sets.
func subset(compare bool, a, b string) (any, error) {
	x, err := ParseGTIDState(MySQL, a)
	if err != nil {
		return nil, mysql.NewError(mysql.ER_MALFORMED_GTID_SET_SPECIFICATION, "Malformed GTID set specification '"+a+"'.")
	}
	y, err := ParseGTIDState(MySQL, b)
	if err != nil {
		return nil, mysql.NewError(mysql.ER_MALFORMED_GTID_SET_SPECIFICATION, "Malformed GTID set specification '"+b+"'.")
	}
	left := y.Missing(x)
	switch {
	case !compare:
		return left, nil
	case left == "":
		return "1", nil
	}
	return "0", nil
}

// gtidAt is MariaDB's BINLOG_GTID_POS: the GTIDs up to a place in a file.
func (x *session) gtidAt(file, offset string) (any, error) {
	pos, err := strconv.ParseInt(offset, 10, 64)
	f := x.s.fileNamed(file)
	if err != nil || f == nil || pos < int64(len(magic)) {
		return nil, nil
	}
	state, err := stateAt(x.ctx, x.s.opt.Archive, f, pos)
	switch {
	case errors.Is(err, errNoEvent) || errors.Is(err, errWithin):
		return nil, nil // as servers answer for a place that is none
	case err != nil:
		return nil, mysql.NewError(mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, err.Error())
	}
	return state.Position(), nil
}

// waitForGTIDs waits until the archive has GTIDs, or for a time in seconds.
func (x *session) waitForGTIDs(mariadb bool, args []string) (any, error) {
	flavor, late := MySQL, "1"
	if mariadb {
		flavor, late = MariaDB, "-1"
	}
	want, err := ParseGTIDState(flavor, args[0])
	if err != nil {
		return nil, mysql.NewError(mysql.ER_MALFORMED_GTID_SET_SPECIFICATION, err.Error())
	}
	var timeout <-chan time.Time
	if len(args) == 2 {
		seconds, err := strconv.ParseFloat(args[1], 64)
		if err != nil || seconds < 0 || seconds > 1e9 {
			return nil, mysql.NewError(mysql.ER_WRONG_ARGUMENTS, "Incorrect timeout: it is in seconds")
		}
		t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
		defer t.Stop()
		timeout = t.C
	}
	for {
		_, changed := x.s.opt.Archive.End()
		if have := x.s.opt.Archive.State(); have != nil && have.Flavor() == flavor && have.Contains(want) {
			return "0", nil
		}
		select {
		case <-changed:
		case <-timeout:
			return late, nil
		case <-x.ctx.Done():
			return nil, mysql.NewDefaultError(mysql.ER_QUERY_INTERRUPTED)
		}
	}
}

// systemVariable answers @@name and SHOW VARIABLES.
func (x *session) systemVariable(name string) (string, bool) {
	name = strings.ToLower(name)
	if v, ok := fixedVariables[name]; ok {
		return v, true
	}
	for _, v := range x.variables() {
		if v.name == name {
			return v.value, true
		}
	}
	return "", false
}

// fixedVariables are what clients ask for when they connect. Nothing here
// depends on them.
var fixedVariables = map[string]string{
	"autocommit": "1", "auto_increment_increment": "1", "character_set_client": "utf8mb4", "character_set_connection": "utf8mb4",
	"character_set_results": "utf8mb4", "character_set_server": "utf8mb4", "collation_connection": "utf8mb4_general_ci",
	"collation_server": "utf8mb4_general_ci", "init_connect": "", "interactive_timeout": "28800", "license": "Apache-2.0",
	"lower_case_table_names": "0", "max_allowed_packet": "1073741824", "net_read_timeout": "30", "net_write_timeout": "60",
	"slave_net_timeout": "60", "replica_net_timeout": "60", "sql_mode": "", "system_time_zone": "UTC", "time_zone": "SYSTEM",
	"transaction_isolation": "REPEATABLE-READ", "tx_isolation": "REPEATABLE-READ", "tx_read_only": "0", "transaction_read_only": "0",
	"wait_timeout": "28800", "log_bin": "1", "log_slave_updates": "1", "log_replica_updates": "1", "read_only": "1", "super_read_only": "1",
}

// setting is a system variable.
type setting struct{ name, value string }

// variables are those that depend on the archive and its source.
func (x *session) variables() []setting {
	version := x.s.sourceVersion()
	v := []setting{
		{"version", version},
		{"version_comment", "Cistern binlog relay"},
		{"server_id", strconv.FormatUint(uint64(x.s.opt.ServerID), 10)},
		{"binlog_checksum", x.s.checksumName()},
	}
	if host, err := os.Hostname(); err == nil {
		v = append(v, setting{"hostname", host})
	}
	state := x.s.opt.Archive.State()
	if flavorOf(version) == MariaDB {
		if state == nil {
			state = NewGTIDState(MariaDB)
		}
		v = append(v, setting{"gtid_domain_id", "0"}, setting{"gtid_binlog_pos", state.Position()}, setting{"gtid_binlog_state", state.String()},
			setting{"gtid_current_pos", state.Position()}, setting{"gtid_slave_pos", state.Position()}, setting{"gtid_strict_mode", "1"})
		if x.s.opt.SemiSync {
			v = append(v, setting{"rpl_semi_sync_master_enabled", "ON"})
		}
		return v
	}
	if state == nil {
		state = NewGTIDState(MySQL)
	}
	v = append(v, setting{"server_uuid", x.s.opt.UUID}, setting{"gtid_executed", state.String()}, setting{"gtid_purged", x.s.purged().String()},
		setting{"gtid_mode", x.s.gtidMode(state)}, setting{"enforce_gtid_consistency", x.s.gtidMode(state)})
	if x.s.opt.SemiSync {
		v = append(v, setting{"rpl_semi_sync_master_enabled", "ON"}, setting{"rpl_semi_sync_source_enabled", "1"})
	}
	return v
}

// checksumName is binlog_checksum of the newest file.
func (s *Server) checksumName() string {
	files := s.opt.Archive.Files()
	for i := len(files) - 1; i >= 0; i-- {
		if files[i].Size > 0 {
			if files[i].Checksum {
				return "CRC32"
			}
			return "NONE"
		}
	}
	return "CRC32"
}

// gtidMode is MySQL's: a log with groups of which none has a GTID is of a server
// without them.
func (s *Server) gtidMode(state *GTIDState) string {
	if !state.Empty() {
		return "ON"
	}
	for _, f := range s.opt.Archive.Files() {
		if f.Groups > 0 {
			return "OFF"
		}
	}
	return "ON"
}

// purged are the GTIDs before the oldest file.
func (s *Server) purged() *GTIDState {
	files := s.opt.Archive.Files()
	if len(files) == 0 || files[0].Size == 0 {
		return NewGTIDState(s.flavor())
	}
	p, err := ParseGTIDState(files[0].Flavor, files[0].Previous)
	if err != nil {
		return NewGTIDState(files[0].Flavor)
	}
	return p
}
