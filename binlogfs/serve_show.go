package binlogfs

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// show answers SHOW.
func (x *session) show(st *statement) (*mysql.Result, error) {
	switch {
	case st.accept("GLOBAL", "VARIABLES"), st.accept("SESSION", "VARIABLES"), st.accept("VARIABLES"):
		return x.showVariables(st)
	case st.accept("GLOBAL", "STATUS"), st.accept("SESSION", "STATUS"), st.accept("STATUS"):
		return x.showStatus(st)
	case st.accept("BINARY", "LOGS"), st.accept("MASTER", "LOGS"):
		return x.end1(st, x.showLogs)
	case st.accept("MASTER", "STATUS"), st.accept("BINLOG", "STATUS"), st.accept("BINARY", "LOG", "STATUS"):
		return x.end1(st, x.showMasterStatus)
	case st.accept("BINLOG", "EVENTS"):
		return x.showEvents(st)
	case st.accept("SLAVE", "HOSTS"):
		return x.end1(st, func() (*mysql.Result, error) { return x.showReplicas(false) })
	case st.accept("REPLICA", "HOSTS"), st.accept("REPLICAS"):
		return x.end1(st, func() (*mysql.Result, error) { return x.showReplicas(true) })
	case st.accept("ALL", "SLAVES", "STATUS"), st.accept("ALL", "REPLICAS", "STATUS"):
		return x.end1(st, func() (*mysql.Result, error) { return x.showSource(false, true) })
	case st.accept("SLAVE", "STATUS"):
		return x.endChannel(st, false)
	case st.accept("REPLICA", "STATUS"):
		return x.endChannel(st, x.s.flavor() == MySQL)
	case st.accept("FULL", "PROCESSLIST"), st.accept("PROCESSLIST"):
		return x.end1(st, x.showProcesses)
	case st.accept("WARNINGS"), st.accept("ERRORS"):
		return rows([]string{"Level", "Code", "Message"}, nil)
	case st.accept("DATABASES"), st.accept("SCHEMAS"):
		return rows([]string{"Database"}, nil)
	}
	return nil, st.wrong()
}

// end1 answers when the statement ends here.
func (x *session) end1(st *statement, answer func() (*mysql.Result, error)) (*mysql.Result, error) {
	if !st.done() {
		return nil, st.wrong()
	}
	return answer()
}

// endChannel takes the name of a connection, of which there is one without a
// name, and answers.
func (x *session) endChannel(st *statement, renamed bool) (*mysql.Result, error) {
	if st.accept("FOR", "CHANNEL") && st.next().text != "" {
		return nil, mysql.NewError(errNoChannel, "A binlog relay has one source, without a channel's name")
	}
	return x.end1(st, func() (*mysql.Result, error) { return x.showSource(renamed, false) })
}

func (x *session) showVariables(st *statement) (*mysql.Result, error) {
	match, err := st.filter()
	if err != nil {
		return nil, err
	}
	all := x.variables()
	for name, value := range fixedVariables {
		all = append(all, setting{name, value})
	}
	return settings(all, match)
}

func (x *session) showStatus(st *statement) (*mysql.Result, error) {
	match, err := st.filter()
	if err != nil {
		return nil, err
	}
	replicas, semi := x.s.Replicas(), 0
	for _, r := range replicas {
		if r.SemiSync {
			semi++
		}
	}
	onOff := map[bool]string{true: "ON", false: "OFF"}
	clients := strconv.Itoa(semi)
	return settings([]setting{
		{"Rpl_semi_sync_master_clients", clients}, {"Rpl_semi_sync_master_status", onOff[x.s.opt.SemiSync]},
		{"Rpl_semi_sync_source_clients", clients}, {"Rpl_semi_sync_source_status", onOff[x.s.opt.SemiSync]},
		{"Slaves_connected", strconv.Itoa(len(replicas))}, {"Threads_connected", strconv.Itoa(len(x.s.list()))},
		{"Uptime", strconv.FormatInt(int64(time.Since(x.s.began)/time.Second), 10)},
	}, match)
}

func settings(all []setting, match func(string) bool) (*mysql.Result, error) {
	var out [][]any
	for _, v := range sortedSettings(all) {
		if match(v.name) {
			out = append(out, []any{v.name, v.value})
		}
	}
	return rows([]string{"Variable_name", "Value"}, out)
}

func (x *session) showLogs() (*mysql.Result, error) {
	files, end := usable(x.s.opt.Archive)
	names := []string{"Log_name", "File_size"}
	encrypted := x.s.flavor() == MySQL && !strings.HasPrefix(x.s.sourceVersion(), "5.")
	if encrypted {
		names = append(names, "Encrypted")
	}
	var out [][]any
	for _, f := range files {
		if f.Epoch != end.Epoch {
			continue
		}
		r := []any{f.Name, publishedEnd(x.s.opt.Archive, f)}
		if encrypted {
			r = append(r, "No")
		}
		out = append(out, r)
	}
	return rows(names, out)
}

func (x *session) showMasterStatus() (*mysql.Result, error) {
	names := []string{"File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB"}
	state := x.s.opt.Archive.State()
	end, _ := x.s.opt.Archive.End()
	if x.s.flavor() == MySQL {
		names = append(names, "Executed_Gtid_Set")
	}
	if state == nil || end.File == "" {
		return rows(names, nil)
	}
	values := []any{end.File, end.Offset, "", ""}
	if len(names) > len(values) {
		values = append(values, state.String())
	}
	return row(names, values)
}

func (x *session) showReplicas(renamed bool) (*mysql.Result, error) {
	names := []string{"Server_id", "Host", "Port", "Master_id"}
	if renamed && x.s.flavor() == MySQL {
		names = []string{"Server_Id", "Host", "Port", "Source_Id"}
	}
	withUUID := x.s.flavor() == MySQL
	if withUUID && renamed {
		names = append(names, "Replica_UUID")
	} else if withUUID {
		names = append(names, "Slave_UUID")
	}
	var out [][]any
	for _, r := range x.s.Replicas() {
		values := []any{uint64(r.ServerID), r.ReportHost, uint64(r.ReportPort), uint64(x.s.opt.ServerID)}
		if withUUID {
			values = append(values, r.UUID)
		}
		out = append(out, values)
	}
	return rows(names, out)
}

func (x *session) showProcesses() (*mysql.Result, error) {
	var out [][]any
	for _, o := range x.s.list() {
		o.mu.Lock()
		state := ""
		if o.dumping {
			state = "Sending binlog event to replica"
			if o.rep.Waiting {
				state = "Has sent all binlog to replica; waiting for more updates"
			}
		}
		out = append(out, []any{uint64(o.id), o.user, o.raw.RemoteAddr().String(), "", o.command, int64(time.Since(o.began) / time.Second), state, ""})
		o.mu.Unlock()
	}
	return rows([]string{"Id", "User", "Host", "db", "Command", "Time", "State", "Info"}, out)
}

// showSource answers SHOW SLAVE STATUS: how the relay pulls. renamed uses MySQL's
// newer words; all is MariaDB's SHOW ALL SLAVES STATUS.
func (x *session) showSource(renamed, all bool) (*mysql.Result, error) {
	if x.s.opt.Control == nil {
		return rows([]string{"Slave_IO_State", "Master_Host"}, nil) // as a server that replicates from none
	}
	c := x.s.opt.Control.Status()
	running := "No"
	if c.Connected {
		running = "Yes"
	} else if c.Started {
		running = "Connecting"
	}
	var lag any // NULL
	if c.LagKnown {
		lag = strconv.FormatInt(int64(c.Lag/time.Second), 10)
	}
	yes := map[bool]string{true: "Yes", false: "No"}
	end, _ := x.s.opt.Archive.End()
	list := []struct {
		name  string
		value any
	}{
		{"Slave_IO_State", c.State}, {"Master_Host", c.Host}, {"Master_User", c.User}, {"Master_Port", strconv.Itoa(c.Port)},
		{"Connect_Retry", strconv.Itoa(int(c.ConnectRetry / time.Second))}, {"Master_Log_File", c.Read.File},
		{"Read_Master_Log_Pos", strconv.FormatInt(c.Read.Offset, 10)}, {"Relay_Log_File", end.File}, {"Relay_Log_Pos", strconv.FormatInt(end.Offset, 10)},
		{"Relay_Master_Log_File", end.File}, {"Slave_IO_Running", running}, {"Slave_SQL_Running", yes[c.Started]},
		{"Last_Errno", strconv.Itoa(int(c.ErrorCode))}, {"Last_Error", c.Error}, {"Exec_Master_Log_Pos", strconv.FormatInt(end.Offset, 10)},
		{"Master_SSL_Allowed", yes[c.TLS]}, {"Seconds_Behind_Master", lag}, {"Last_IO_Errno", strconv.Itoa(int(c.ErrorCode))},
		{"Last_IO_Error", c.Error}, {"Last_SQL_Errno", "0"}, {"Last_SQL_Error", ""}, {"Master_Server_Id", strconv.FormatUint(uint64(c.ServerID), 10)},
		{"Slave_SQL_Running_State", "Binlog relay: events are kept, not executed"},
	}
	names, values := []string{}, []any{}
	if all {
		names, values = append(names, "Connection_name", "Slave_SQL_State"), append(values, "", "")
	}
	for _, v := range list {
		names, values = append(names, v.name), append(values, v.value)
	}
	state := ""
	if s := x.s.opt.Archive.State(); s != nil {
		state = s.Position()
	}
	if x.s.flavor() == MariaDB {
		using := "No"
		if c.UseGTID {
			using = "Slave_Pos"
		}
		names, values = append(names, "Using_Gtid", "Gtid_IO_Pos"), append(values, using, state)
	} else {
		errorTime := ""
		if !c.ErrorTime.IsZero() {
			errorTime = c.ErrorTime.UTC().Format("060102 15:04:05")
		}
		names = append(names, "Master_UUID", "Last_IO_Error_Timestamp", "Retrieved_Gtid_Set", "Executed_Gtid_Set", "Auto_Position")
		values = append(values, c.UUID, errorTime, state, state, map[bool]string{true: "1", false: "0"}[c.UseGTID])
	}
	if renamed {
		for i, n := range names {
			names[i] = strings.NewReplacer("Master", "Source", "Slave", "Replica").Replace(n)
		}
	}
	return row(names, values)
}

const (
	maxEventRows  = 10_000
	maxEventBytes = 16 << 20 // of the answer to SHOW BINLOG EVENTS
)

// showEvents answers SHOW BINLOG EVENTS [IN 'file'] [FROM pos] [LIMIT [offset,] n].
func (x *session) showEvents(st *statement) (*mysql.Result, error) {
	name, from, skip, limit := "", int64(len(magic)), int64(0), int64(-1)
	ok := true
	if st.accept("IN") {
		t := st.next()
		name, ok = t.text, t.kind == tokenText
	}
	if ok && st.accept("FROM") {
		from, ok = st.number()
	}
	if ok && st.accept("LIMIT") {
		if limit, ok = st.number(); ok && st.acceptMark(",") {
			skip = limit
			limit, ok = st.number()
		} else if ok && st.accept("OFFSET") {
			skip, ok = st.number()
		}
	}
	if !ok || !st.done() {
		return nil, st.wrong()
	}
	f := x.s.fileNamed(name)
	if f == nil {
		return nil, mysql.NewError(mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, "Error when executing command SHOW BINLOG EVENTS: Could not find target log")
	}
	var out [][]any
	size := 0
	err := walk(x.ctx, x.s.opt.Archive, f, max(from, int64(len(magic))), publishedEnd(x.s.opt.Archive, f), func(w *walker) error {
		if skip > 0 {
			skip--
			return nil
		}
		if limit == 0 {
			return errStop
		}
		limit--
		body, err := w.body(MaxPrefix + maxInfo)
		if err != nil {
			return err
		}
		info, err := eventText(w.head.Type, &w.format, w.groups.GTID(), body)
		if err != nil {
			return err
		}
		if size += len(info); len(out) == maxEventRows || size > maxEventBytes {
			return fmt.Errorf("there are more than %d events or %d bytes: ask for fewer with FROM and LIMIT", maxEventRows, maxEventBytes)
		}
		out = append(out, []any{f.Name, w.off, EventName(w.head.Type), uint64(w.head.ServerID), w.off + int64(w.head.Size), info})
		return nil
	})
	if err != nil {
		return nil, mysql.NewError(mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, "Error when executing command SHOW BINLOG EVENTS: "+err.Error())
	}
	return rows([]string{"Log_name", "Pos", "Event_type", "Server_id", "End_log_pos", "Info"}, out)
}
