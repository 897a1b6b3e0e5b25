package binlogfs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// manageTime is how long a change may take that a client asked for.
const manageTime = time.Minute

// errNoChannel is ER_SLAVE_CHANNEL_DOES_NOT_EXIST, which the library lacks.
const errNoChannel = 3074

func sortedSettings(all []setting) []setting {
	slices.SortFunc(all, func(a, b setting) int { return cmp.Compare(a.name, b.name) })
	return all
}

// manage takes the statements that change something.
func (x *session) manage(st *statement) error {
	var do func(ctx context.Context) error
	var err error
	switch {
	case st.accept("PURGE", "BINARY", "LOGS"), st.accept("PURGE", "MASTER", "LOGS"):
		do, err = x.purge(st)
	case st.accept("FLUSH"):
		do, err = x.flush(st)
	case st.accept("CHANGE", "MASTER"), st.accept("CHANGE", "REPLICATION", "SOURCE"):
		do, err = x.change(st)
	case st.accept("START"):
		do, err = x.startStop(st, Control.Start)
	case st.accept("STOP"):
		do, err = x.startStop(st, Control.Stop)
	default:
		return st.wrong()
	}
	if err != nil {
		return err
	}
	if err := x.may(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(x.ctx, manageTime)
	defer cancel()
	err = do(ctx)
	switch {
	case errors.Is(err, ErrPulling):
		return mysql.NewError(mysql.ER_SLAVE_MUST_STOP, "This operation cannot be performed while the relay pulls; run STOP SLAVE or STOP REPLICA first")
	case errors.Is(err, ErrMode):
		return mysql.NewError(mysql.ER_NOT_SUPPORTED_YET, err.Error())
	case err != nil:
		return mysql.NewError(mysql.ER_ERROR_WHEN_EXECUTING_COMMAND, err.Error())
	}
	return nil
}

// purge reads PURGE BINARY LOGS TO 'file' or BEFORE time.
func (x *session) purge(st *statement) (func(context.Context) error, error) {
	keeper := x.s.opt.Keeper
	if keeper == nil {
		return nil, mysql.NewError(mysql.ER_NOT_SUPPORTED_YET, "This archive is served as it is: nothing of it can be purged here")
	}
	var f *FileInfo
	switch {
	case st.accept("TO"):
		t := st.next()
		if t.kind != tokenText || !st.done() {
			return nil, st.wrong()
		}
		if f = x.s.fileNamed(t.text); f == nil || t.text == "" {
			return nil, mysql.NewDefaultError(mysql.ER_UNKNOWN_TARGET_BINLOG)
		}
	case st.accept("BEFORE"):
		at, ok := st.moment(time.Now())
		if !ok || !st.done() {
			return nil, st.wrong()
		}
		files, _ := usable(x.s.opt.Archive)
		for _, g := range files {
			if f = g; !g.LastTime.Before(at) {
				break
			}
		}
		if f == nil {
			return func(context.Context) error { return nil }, nil
		}
	default:
		return nil, st.wrong()
	}
	return func(ctx context.Context) error {
		_, err := keeper.Purge(ctx, f.Epoch, f.Name)
		return err
	}, nil
}

// flush reads FLUSH BINARY LOGS, which begins the next file in own mode.
func (x *session) flush(st *statement) (func(context.Context) error, error) {
	if !st.accept("LOCAL") {
		st.accept("NO_WRITE_TO_BINLOG")
	}
	if !st.accept("BINARY", "LOGS") && !st.accept("LOGS") || !st.done() {
		return nil, st.wrong()
	}
	c, err := x.control()
	if err != nil {
		return nil, err
	}
	return c.Cut, nil
}

// control is the pulling half, or the answer that there is none.
func (x *session) control() (Control, error) {
	if x.s.opt.Control == nil {
		return nil, mysql.NewError(mysql.ER_BAD_SLAVE, "This archive is served without pulling from a source: there is nothing to start, stop or change")
	}
	return x.s.opt.Control, nil
}

// startStop reads what comes after START and STOP.
func (x *session) startStop(st *statement, do func(Control, context.Context) error) (func(context.Context) error, error) {
	if !st.oneOf("SLAVE", "REPLICA") && !st.accept("ALL", "SLAVES") && !st.accept("ALL", "REPLICAS") {
		return nil, st.wrong()
	}
	if st.accept("FOR", "CHANNEL") || st.peek().kind == tokenText {
		if st.next().text != "" {
			return nil, mysql.NewError(errNoChannel, "A binlog relay has one source, without a name")
		}
	}
	pulling, executing := false, false // which threads it names; none means both
	for !st.done() {
		switch {
		case st.accept("IO_THREAD"):
			pulling = true
		case st.accept("SQL_THREAD"):
			executing = true
		case st.acceptMark(","):
		default:
			return nil, st.wrong()
		}
	}
	c, err := x.control()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if executing && !pulling {
			return nil // a relay executes nothing
		}
		return do(c, ctx)
	}, nil
}

// change reads CHANGE MASTER TO … or CHANGE REPLICATION SOURCE TO ….
func (x *session) change(st *statement) (func(context.Context) error, error) {
	if !st.accept("TO") {
		return nil, st.wrong()
	}
	var c SourceChange
	for {
		t := st.next()
		if t.kind != tokenWord || !st.assign() {
			return nil, st.wrong()
		}
		v := st.next()
		if !v.value() {
			return nil, st.wrong()
		}
		if err := c.option(t.text, v.text); err != nil {
			return nil, err
		}
		if !st.acceptMark(",") {
			break
		}
	}
	if st.accept("FOR", "CHANNEL") && st.next().text != "" || !st.done() {
		return nil, st.wrong()
	}
	ctl, err := x.control()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return ctl.Change(ctx, c) }, nil
}

// option sets one option of CHANGE MASTER, in either spelling.
func (c *SourceChange) option(name, value string) error {
	key := strings.ToUpper(name)
	for _, p := range []string{"MASTER_", "SOURCE_"} {
		key = strings.TrimPrefix(key, p)
	}
	n, err := strconv.ParseInt(value, 10, 64)
	number := err == nil && n >= 0
	on := value == "1" || strings.EqualFold(value, "slave_pos") || strings.EqualFold(value, "current_pos") || strings.EqualFold(value, "replica_pos")
	port, retry := int(n), time.Duration(n)*time.Second
	seconds, err := strconv.ParseFloat(value, 64)
	beat := time.Duration(seconds * float64(time.Second))
	if err != nil || seconds > 60 {
		beat = 0
	}
	switch {
	case key == "HOST":
		c.Host = &value
	case key == "USER":
		c.User = &value
	case key == "PASSWORD":
		c.Password = &value
	case key == "LOG_FILE":
		c.File = &value
	case key == "USE_GTID" || key == "AUTO_POSITION":
		c.UseGTID = &on
	case key == "SSL" && number:
		c.TLS = &on
	case key == "SSL_VERIFY_SERVER_CERT" && number:
		c.Verify = &on
	case key == "SSL_CA":
		c.CA = &value
	case key == "SSL_CERT":
		c.Cert = &value
	case key == "SSL_KEY":
		c.Key = &value
	case key == "HEARTBEAT_PERIOD" && beat >= 100*time.Millisecond && beat <= time.Minute:
		c.Heartbeat = &beat
	case strings.HasPrefix(key, "GET_") && number, key == "DELAY" && value == "0":
		// A password is encrypted by the source's public key as needed, and nothing waits.
	case key == "LOG_POS" && number:
		c.Offset = &n
	case key == "PORT" && number && n < 1<<16:
		c.Port = &port
	case key == "CONNECT_RETRY" && number && n <= 86400:
		c.ConnectRetry = &retry
	default:
		return mysql.NewError(mysql.ER_NOT_SUPPORTED_YET, "A binlog relay can't change "+name+" to that value: it is one of its options, see cistern binlog relay --help")
	}
	return nil
}
