package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

func TestServer_Query_Answers(t *testing.T) {
	maria, my := recordedLog(t, "m118"), recordedLog(t, "my97")
	_, mariaAddr := serveLog(t, ServerOptions{Archive: maria, SemiSync: true})
	_, myAddr := serveLog(t, ServerOptions{Archive: my, SemiSync: true})
	mc, yc := dial(t, mariaAddr, "repl", "other"), dial(t, myAddr, "repl", "other")
	size := fmt.Sprint(maria.Files()[0].Size)
	end, _ := my.End()
	state := my.State().String()
	sid, _, _ := strings.Cut(state, ":")
	for _, c := range []struct {
		mariadb   bool
		sql, want string
	}{
		{true, "SELECT @@version_comment LIMIT 1", "Cistern binlog relay\n"},
		{true, "select @@GLOBAL.gtid_domain_id", "0\n"},
		{true, "SHOW VARIABLES LIKE 'SERVER\\_ID'", "server_id|4000\n"},
		{true, "show global variables where variable_name in ('SERVER_ID', 'nothing')", "server_id|4000\n"},
		{true, "SELECT @@global.binlog_checksum, @@server_id AS id, 'it''s' x, NULL", "CRC32|4000|it's|\n"},
		{true, "SET @a = 5, @Source_B := 'x;y' /* comment */;", ""},
		{true, "SELECT @A, @master_b, @nothing", "5|x;y|\n"},
		{true, "SET NAMES utf8mb4", ""},
		{true, "/*!40101 SET SESSION sql_mode=CONCAT(@@sql_mode, ',x') */", ""},
		{true, "SHOW MASTER LOGS", "mysql-bin.000001|" + size + "\nmysql-bin.000002|" + fmt.Sprint(maria.Files()[1].Size) + "\n"},
		{true, "SHOW BINLOG EVENTS LIMIT 1", "mysql-bin.000001|4|Format_desc|12|256|Server ver: " + maria.Files()[0].Server + ", Binlog ver: 4\n"},
		{true, "SHOW SLAVE STATUS", ""},
		{true, "SHOW SLAVE HOSTS", ""},
		{true, "SHOW DATABASES", ""},
		{true, "SELECT BINLOG_GTID_POS('mysql-bin.000001', " + size + ")", mustState(t, maria.Files()[0]).Position() + "\n"},
		{true, "SELECT MASTER_GTID_WAIT('" + maria.State().Position() + "', 10)", "0\n"},
		{true, "SELECT MASTER_GTID_WAIT('77-7-7', 0.01)", "-1\n"},
		{false, "SHOW BINARY LOG STATUS", end.File + "|" + fmt.Sprint(end.Offset) + "|||" + state + "\n"},
		{false, "SHOW BINARY LOGS", "mysql-bin.000001|" + fmt.Sprint(my.Files()[0].Size) + "|No\nmysql-bin.000002|" + fmt.Sprint(my.Files()[1].Size) + "|No\n"},
		{false, "SELECT @@GLOBAL.GTID_MODE, @@global.server_uuid, @@global.rpl_semi_sync_source_enabled", "ON|11111111-2222-3333-4444-555555555555|1\n"},
		{false, "SELECT @@gtid_executed, @@gtid_purged", state + "|\n"},
		{false, "SELECT GTID_SUBSET('" + sid + ":1-2', '" + state + "'), GTID_SUBTRACT('" + sid + ":1-4', '" + sid + ":2-3')", "1|" + sid + ":1:4\n"},
		{false, "SELECT WAIT_FOR_EXECUTED_GTID_SET('" + sid + ":99999', 0.01)", "1\n"},
		{false, "SHOW REPLICAS", ""},
		{false, "SHOW WARNINGS", ""},
	} {
		conn := yc
		if c.mariadb {
			conn = mc
		}
		if got := query(t, conn, c.sql); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.sql, got, c.want)
		}
	}
	for sql, code := range map[string]uint16{
		"SELECT @@no_such_thing": mysql.ER_UNKNOWN_SYSTEM_VARIABLE, "SELECT 1 FROM t": mysql.ER_PARSE_ERROR, "INSERT INTO t VALUES (1)": mysql.ER_PARSE_ERROR,
		"SELECT SLEEP(1)": mysql.ER_SP_DOES_NOT_EXIST, "SHOW BINLOG EVENTS IN 'x'": mysql.ER_ERROR_WHEN_EXECUTING_COMMAND,
		"SHOW BINLOG EVENTS FROM 5": mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, "SET @a": mysql.ER_PARSE_ERROR, "SELECT": mysql.ER_PARSE_ERROR, "SELECT (": mysql.ER_PARSE_ERROR,
		"SELECT " + strings.Repeat("f(", 1_000_000): mysql.ER_PARSE_ERROR, "SELECT " + strings.Repeat("CONCAT(", 30) + strings.Repeat(")", 30): mysql.ER_PARSE_ERROR,
		"PURGE BINARY LOGS TO 'mysql-bin.000002'": mysql.ER_NOT_SUPPORTED_YET, "FLUSH BINARY LOGS": mysql.ER_BAD_SLAVE,
		"START SLAVE": mysql.ER_BAD_SLAVE, "KILL 1": mysql.ER_NO_SUCH_THREAD, "KILL": mysql.ER_PARSE_ERROR, ";": mysql.ER_EMPTY_QUERY,
		"SELECT GTID_SUBSET('x','y')": mysql.ER_MALFORMED_GTID_SET_SPECIFICATION,
	} {
		_, err := mc.Execute(sql)
		if my, ok := errors.AsType[*mysql.MyError](err); !ok || my.Code != code {
			t.Errorf("%s: %v, want %d", sql, err, code)
		}
	}
}

func TestServer_Query_EmptyIsNotNull(t *testing.T) {
	_, addr := serveLog(t, ServerOptions{Archive: recordedLog(t, "m1011"), Version: func() string { return "5.5.5-10.11.6-MariaDB" }})
	r, err := dial(t, addr, "repl", "other").Execute("SELECT '', NULL, VERSION()")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, false} {
		if null, err := r.IsNull(0, i); err != nil || null != want {
			t.Errorf("column %d is NULL: %v, %v", i, null, err)
		}
	}
	if v, err := r.GetString(0, 2); err != nil || v != "10.11.6-MariaDB" {
		t.Errorf("version %q, %v", v, err)
	}
}

func mustState(t testing.TB, f *FileInfo) *GTIDState {
	t.Helper()
	s, err := stateAfter(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each event must follow the one before it, and have a server's name for its type.
func TestServer_ShowBinlogEvents_EveryEventAndItsEnd(t *testing.T) {
	for _, kind := range kinds {
		l := recordedLog(t, kind)
		_, addr := serveLog(t, ServerOptions{Archive: l})
		c := dial(t, addr, "repl", "other")
		for _, f := range l.Files() {
			r, err := c.Execute("SHOW BINLOG EVENTS IN '" + f.Name + "'")
			if err != nil {
				t.Fatal(err)
			}
			if int64(r.RowNumber()) != f.Events {
				t.Errorf("%s %s: %d events, the catalogue has %d", kind, f.Name, r.RowNumber(), f.Events)
			}
			end := int64(len(magic))
			for i := range r.RowNumber() {
				at, err := r.GetInt(i, 1)
				name, nerr := r.GetString(i, 2)
				if err != nil || nerr != nil || at != end || name == "" || strings.HasSuffix(name, "Event") {
					t.Errorf("%s %s: event %d %q is at %d, want %d (%v, %v)", kind, f.Name, i, name, at, end, err, nerr)
				}
				if end, err = r.GetInt(i, 4); err != nil {
					t.Fatal(err)
				}
			}
			if end != f.Size {
				t.Errorf("%s %s: the events end at %d, want %d", kind, f.Name, end, f.Size)
			}
		}
	}
}

// fakeControl notes what a client asks of the pulling half.
type fakeControl struct {
	asked []string
	err   error
}

func (f *fakeControl) Status() SourceStatus {
	return SourceStatus{Host: "db1", Port: 3307, User: "relay", ConnectRetry: 3 * time.Second, State: "Waiting for master to send event", Started: true, Connected: true,
		UseGTID: true, ServerID: 11, Read: Position{1, "mysql-bin.000009", 4711}, Lag: 7 * time.Second, LagKnown: true, ErrorCode: 1236, Error: "it was so"}
}

func (f *fakeControl) Start(context.Context) error { f.asked = append(f.asked, "start"); return f.err }

func (f *fakeControl) Stop(context.Context) error { f.asked = append(f.asked, "stop"); return f.err }

func (f *fakeControl) Change(_ context.Context, c SourceChange) error {
	f.asked = append(f.asked, fmt.Sprint(*c.Host, *c.Port, *c.UseGTID, c.User == nil, *c.ConnectRetry))
	return f.err
}

func (f *fakeControl) Cut(context.Context) error { f.asked = append(f.asked, "cut"); return f.err }

func TestServer_Manage_BothSpellings(t *testing.T) {
	for _, kind := range []string{"m118", "my97"} {
		control := &fakeControl{}
		l := recordedLog(t, kind)
		_, addr := serveLog(t, ServerOptions{Archive: l, Keeper: l, Control: control})
		admin := dial(t, addr, "admin", "secret")
		for _, sql := range []string{
			"STOP SLAVE", "stop replica io_thread", "START ALL SLAVES", "START REPLICA FOR CHANNEL ''", "STOP SLAVE SQL_THREAD",
			"STOP SLAVE IO_THREAD, SQL_THREAD", "STOP SLAVE SQL_THREAD, IO_THREAD",
			"CHANGE MASTER TO MASTER_HOST='h1', MASTER_PORT=3308, master_use_gtid=slave_pos, MASTER_CONNECT_RETRY=1",
			"CHANGE REPLICATION SOURCE TO SOURCE_HOST='h2', SOURCE_PORT=3309, SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=2, GET_SOURCE_PUBLIC_KEY=1",
			"FLUSH BINARY LOGS", "flush local logs",
		} {
			query(t, admin, sql)
		}
		if got, want := fmt.Sprintf("%q", control.asked), `["stop" "stop" "start" "start" "stop" "stop" "h13308 true true 1s" "h23309 true true 2s" "cut" "cut"]`; got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
		for _, sql := range []string{"CHANGE MASTER TO MASTER_DELAY=5", "CHANGE MASTER TO MASTER_PORT='x'", "STOP SLAVE 'other'", "CHANGE MASTER TO", "FLUSH TABLES", "FLUSH"} {
			if _, err := admin.Execute(sql); err == nil {
				t.Errorf("%s was taken", sql)
			}
		}
		control.err = ErrPulling
		_, err := admin.Execute("CHANGE MASTER TO MASTER_HOST='h1', MASTER_PORT=1, MASTER_USE_GTID=no, MASTER_CONNECT_RETRY=1")
		wantError(t, err, mysql.ER_SLAVE_MUST_STOP, "run STOP SLAVE")
		control.err = errors.New("the source is db2, which lacks 0-1-5: choose another")
		_, err = admin.Execute("START SLAVE")
		wantError(t, err, mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, control.err.Error())
		want, status := "Waiting for master to send event|db1|relay|3307|3|mysql-bin.000009|4711|", "SHOW SLAVE STATUS"
		if got := query(t, admin, status); !strings.HasPrefix(got, want) || !strings.Contains(got, "|Yes|Yes|1236|it was so|") {
			t.Errorf("%s: %s", status, got)
		}
		r, err := admin.Execute("SHOW REPLICA STATUS")
		if err != nil {
			t.Fatal(err)
		}
		if _, renamed := r.FieldNames["Source_Host"]; renamed != (kind == "my97") {
			t.Errorf("%s: SHOW REPLICA STATUS has %v", kind, r.FieldNames)
		}
		repl := dial(t, addr, "repl", "other")
		for _, sql := range []string{"STOP SLAVE", "FLUSH BINARY LOGS", "PURGE BINARY LOGS BEFORE NOW()", "CHANGE MASTER TO MASTER_HOST='h'"} {
			_, err := repl.Execute(sql)
			wantError(t, err, mysql.ER_SPECIFIC_ACCESS_DENIED_ERROR, "not change it")
		}
		for _, sql := range []string{"PURGE BINARY LOGS BEFORE '2001-01-01 00:00:00'", "PURGE MASTER LOGS BEFORE NOW() - INTERVAL 3650 DAY"} {
			query(t, admin, sql)
			if n := len(l.Files()); n != 2 {
				t.Fatalf("%s left %d files", sql, n)
			}
		}
		query(t, admin, "PURGE BINARY LOGS BEFORE NOW()")
		if n := len(l.Files()); n != 1 {
			t.Errorf("%d files are left", n)
		}
	}
}

func TestLike_Cases(t *testing.T) {
	for _, c := range []struct {
		name, pattern string
		want          bool
	}{
		{"server_id", "SERVER_ID", true}, {"server_id", "server\\_id", true}, {"serverXid", "server\\_id", false}, {"server_uuid", "server%", true},
		{"server_uuid", "%uuid", true}, {"server_uuid", "%x%", false}, {"a", "", false}, {"", "%", true}, {"abcabd", "%abd", true}, {"ab", "a_", true}, {"ab", "a__", false},
		{"a\\", "a\\\\", true}, {"a", "a\\", false},
	} {
		if got := like(c.name, c.pattern); got != c.want {
			t.Errorf("%q like %q: %v", c.name, c.pattern, got)
		}
	}
}

// FuzzParse_AnyStatement must come to an end and stay within the text.
func FuzzParse_AnyStatement(f *testing.F) {
	for _, sql := range []string{"SELECT @@a.b, 'x''y', `z` -- c", "/*!5 SET @`a` = 1", "'", "@", "@@", "\\", "SHOW VARIABLES LIKE 'a\\"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		last := 0
		for _, tk := range parse(sql).tokens {
			if tk.start < last || tk.end <= tk.start || tk.end > len(sql) {
				t.Fatalf("token %+v after %d of %q", tk, last, sql)
			}
			last = tk.end
		}
	})
}
