package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/progress"
)

// privateOptions say which server to start on which directory.
type privateOptions struct {
	dir      string // for socket, log and temporary tables; made and removed
	data     string
	program  string
	defaults string    // option file; empty: none
	log      string    // how its binary logs begin; empty: it writes none
	owner    [2]uint32 // of the data: the server runs as this user
}

// private is a MariaDB server that nobody else reaches: no network, a socket in a
// directory of its own, and an account that only this process knows. stop takes the
// account and the replication out of the database again, or says that they stayed.
type private struct {
	*child
	o          privateOptions
	db         *sql.DB
	user       string
	replicates bool // the channel may be there
}

const (
	privateServerID = 4294967294
	privateChannel  = "cistern-restore" // the replication's name: others in the directory stay

	// Files in its directory.
	privateInit     = "init.sql"
	privateLog      = "log"
	privateDefaults = "my.cnf"

	privateStart  = 30 * time.Minute // for its crash recovery
	privateForget = 2 * time.Minute  // for taking back what it was told
	privateStop   = 10 * time.Minute // for its clean end
)

// startPrivate starts the server and returns when it answers.
func startPrivate(ctx context.Context, o privateOptions) (_ *private, err error) {
	m := &private{o: o, user: "cistern-" + strings.ToLower(rand.Text()[:12])}
	password := rand.Text()
	if err := os.Mkdir(o.dir, 0o700); err != nil {
		return nil, localError(o.dir, err)
	}
	if err := m.start(password); err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.dir))
	}
	c := mysql.NewConfig()
	c.User, c.Passwd, c.Net, c.Addr, c.Logger = m.user, password, "unix", filepath.Join(o.dir, "s"), &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err == nil {
		m.db = sql.OpenDB(connector)
		m.db.SetMaxOpenConns(1)
		err = m.wait(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, m.stop(ctx, false))
	}
	return m, nil
}

// start writes what the server reads and starts it as the user that owns the data.
func (m *private) start(password string) error {
	o := &m.o
	files := map[string]string{
		privateInit: fmt.Sprintf("SET SESSION sql_log_bin=0;\nCREATE USER '%[1]s'@'localhost' IDENTIFIED BY '%[2]s';\nGRANT ALL ON *.* TO '%[1]s'@'localhost' WITH GRANT OPTION;\n", m.user, password),
		privateLog:  "",
	}
	if o.defaults != "" {
		// That user may not be allowed to read the file itself.
		body, err := readSmall(o.defaults)
		if err != nil {
			return usage(fmt.Errorf("--server-defaults %w", err))
		}
		files[privateDefaults] = string(body)
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(o.dir, name), []byte(body), 0o600); err != nil {
			return localError(filepath.Join(o.dir, name), err)
		}
		if err := os.Chown(filepath.Join(o.dir, name), int(o.owner[0]), int(o.owner[1])); err != nil {
			return localError(filepath.Join(o.dir, name), err)
		}
	}
	if err := os.Chown(o.dir, int(o.owner[0]), int(o.owner[1])); err != nil {
		return localError(o.dir, err)
	}
	log, err := os.OpenFile(filepath.Join(o.dir, privateLog), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return localError(filepath.Join(o.dir, privateLog), err)
	}
	defer log.Close() // the server has its own
	c := exec.Command(o.program, m.args()...)
	c.Stdout, c.Stderr = log, log
	if o.otherUser() {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.owner[0], Gid: o.owner[1]}}
	}
	if m.child, err = startChild(c, syscall.SIGKILL); err != nil {
		return fmt.Errorf("start %s: %w", o.program, err)
	}
	return nil
}

// otherUser says whether the server is started as another user than this process's.
func (o *privateOptions) otherUser() bool { return os.Geteuid() == 0 && o.owner[0] != 0 }

func (m *private) args() []string {
	args := []string{"--no-defaults"}
	if m.o.defaults != "" {
		args[0] = "--defaults-file=" + filepath.Join(m.o.dir, privateDefaults)
	}
	args = append(args,
		"--datadir="+m.o.data, "--socket="+filepath.Join(m.o.dir, "s"), "--pid-file="+filepath.Join(m.o.dir, "pid"), "--tmpdir="+m.o.dir,
		"--skip-networking", "--skip-name-resolve", "--skip-slave-start", "--event-scheduler=OFF", "--init-file="+filepath.Join(m.o.dir, privateInit),
		"--server-id="+strconv.Itoa(privateServerID), "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0", "--log-error="+filepath.Join(m.o.dir, privateLog),
	)
	if m.o.log != "" {
		args = append(args, "--log-bin="+m.o.log, "--log-slave-updates")
	} else {
		args = append(args, "--skip-log-bin") // what the options say may be another server's
	}
	if os.Geteuid() == 0 && !m.o.otherUser() {
		args = append(args, "--user=root") // which it refuses to be unless told
	}
	return args
}

// wait returns when the server answers: crash recovery may take its time.
func (m *private) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, privateStart)
	defer cancel()
	for {
		err := m.db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-m.ended:
			return fmt.Errorf("%s ended while starting on the restored directory: %s", m.o.program, m.why())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %s", m.o.program, err, m.why())
		case <-time.After(recoverTick):
		}
	}
}

// why is the last error in the server's log.
func (m *private) why() string {
	body, err := os.ReadFile(filepath.Join(m.o.dir, privateLog))
	if err != nil {
		return "and its log can't be read"
	}
	last := lastLine(body)
	for line := range strings.Lines(string(body)) {
		if strings.Contains(line, "[ERROR]") && !strings.Contains(line, "Aborting") {
			last = strings.TrimSpace(line)
		}
	}
	return last
}

// lastLine is the last line of a program's output.
func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(bytes.ToValidUTF8(out, []byte("?")))), "\n")
	return lines[len(lines)-1]
}

// forget takes the replication and the account out of the database, however far the
// server got: a normal start would resume the one, and the other may do everything.
func (m *private) forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), privateForget)
	defer cancel()
	list := []string{"SET SESSION sql_log_bin=0", "DROP USER IF EXISTS '" + m.user + "'@'localhost'"}
	stays := fmt.Sprintf("the account '%s'@'localhost', which may do everything, may be left in the database: DROP USER it", m.user)
	if m.replicates {
		list = append([]string{"STOP SLAVE '" + privateChannel + "'", "RESET SLAVE '" + privateChannel + "' ALL"}, list...)
		stays += fmt.Sprintf("; so may the replication '%[1]s': RESET SLAVE '%[1]s' ALL", privateChannel)
	}
	select {
	case <-m.ended:
		return fmt.Errorf("%s, since %s ended before it could be told", stays, m.o.program)
	default:
	}
	err := m.wait(ctx) // it may be about to make the account
	var c *sql.Conn    // one for all: the switch is the session's
	if err == nil {
		c, err = m.db.Conn(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", stays, err)
	}
	for _, q := range list {
		var none *mysql.MySQLError
		if _, qerr := c.ExecContext(ctx, q); qerr != nil && (!errors.As(qerr, &none) || none.Number != noChannel) {
			err = errors.Join(err, qerr)
		}
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return fmt.Errorf("%s: %w", stays, err)
	}
	return nil
}

// noChannel is MariaDB's error for a replication that is not there, WARN_NO_MASTER_INFO.
const noChannel = 1617

// stop takes back what the server was told and ends it in order; with clean it is an
// error when it ends otherwise.
func (m *private) stop(ctx context.Context, clean bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), privateStop)
	defer cancel()
	var err error
	if m.db != nil {
		err = errors.Join(m.forget(ctx), m.db.Close())
	}
	_ = m.cmd.Process.Signal(syscall.SIGTERM) // a shutdown in order, if it has not ended
	select {
	case <-m.ended:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("%s did not end in %v and is killed", m.o.program, privateStop), m.cmd.Process.Kill())
		<-m.ended
	}
	if clean && err == nil && m.cmd.ProcessState.ExitCode() != 0 {
		err = fmt.Errorf("%s ended with status %d: %s", m.o.program, m.cmd.ProcessState.ExitCode(), m.why())
	}
	return errors.Join(err, os.RemoveAll(m.o.dir))
}

// recover replicates up to the plan's point, and returns where the server was and
// where it is.
func (m *private) recover(ctx context.Context, addr string, user binlogfs.User, p *untilPlan, a *app) (from, at string, err error) {
	state, err := m.position(ctx)
	if err != nil {
		return "", "", err
	}
	if err := errors.Join(p.reachable(state), p.located(state)); err != nil {
		return "", "", err
	}
	from = state.Position()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return from, "", err
	}
	m.replicates = true
	for _, q := range []string{
		"SET GLOBAL gtid_slave_pos='" + from + "'",
		fmt.Sprintf("CHANGE MASTER '%s' TO MASTER_HOST='%s', MASTER_PORT=%s, MASTER_USER='%s', MASTER_PASSWORD='%s', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
			privateChannel, host, port, user.Name, user.Password),
		"START SLAVE '" + privateChannel + "'",
	} {
		if _, err := m.db.ExecContext(ctx, q); err != nil {
			return from, "", fmt.Errorf("let the server replicate: %w", err)
		}
	}
	at, err = m.follow(ctx, p, a)
	return from, at, err
}

// position is where the server is: of its own binary log and of what it had
// replicated, the later of each domain.
func (m *private) position(ctx context.Context) (*binlogfs.GTIDState, error) {
	var written, replicated string
	if err := m.db.QueryRowContext(ctx, "SELECT @@gtid_binlog_pos, @@gtid_slave_pos").Scan(&written, &replicated); err != nil {
		return nil, fmt.Errorf("ask the server where it is: %w", err)
	}
	state, err := binlogfs.ParseGTIDState(binlogfs.MariaDB, written)
	if err != nil {
		return nil, err
	}
	more, err := binlogfs.ParseGTIDState(binlogfs.MariaDB, replicated)
	if err != nil {
		return nil, err
	}
	for _, d := range more.Domains() {
		if g := more.Last(d); g.Number > state.Last(d).Number {
			state.Add(g)
		}
	}
	return state, nil
}

// follow waits until the server has all of the point's transactions.
func (m *private) follow(ctx context.Context, p *untilPlan, a *app) (at string, err error) {
	bar := progress.StartCount(a.stderr, a.terminal, "transactions")
	defer func() { bar.Done(err == nil) }()
	total := numbers(p.target)
	first := int64(-1)
	for {
		if err := m.db.QueryRowContext(ctx, "SELECT @@gtid_slave_pos").Scan(&at); err != nil {
			return at, fmt.Errorf("ask the server how far it is: %w", err)
		}
		state, err := binlogfs.ParseGTIDState(binlogfs.MariaDB, at)
		if err != nil {
			return at, err
		}
		done := numbers(state)
		if first < 0 {
			first = done
		}
		bar.Set(done-first, total-first)
		there := true
		for _, d := range p.target.Domains() {
			there = there && state.Last(d).Number >= p.target.Last(d).Number
		}
		if there {
			return at, nil
		}
		if err := m.replicationError(ctx); err != nil {
			return at, fmt.Errorf("replication stopped behind %s: %w", orDash(at), err)
		}
		select {
		case <-ctx.Done():
			return at, ctx.Err()
		case <-m.ended:
			return at, fmt.Errorf("%s ended: %s", m.o.program, m.why())
		case <-time.After(recoverTick):
		}
	}
}

// numbers sums a state's sequence numbers.
func numbers(s *binlogfs.GTIDState) (n int64) {
	for _, d := range s.Domains() {
		n += int64(s.Last(d).Number)
	}
	return n
}

// replicationError is why replication has stopped, if it has.
func (m *private) replicationError(ctx context.Context) error {
	rows, err := m.db.QueryContext(ctx, "SHOW SLAVE '"+privateChannel+"' STATUS")
	if err != nil {
		return err
	}
	defer rows.Close() // only read
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return errors.Join(err, rows.Err())
	}
	values := make([]sql.NullString, len(names))
	to := make([]any, len(names))
	for i := range values {
		to[i] = &values[i]
	}
	if err := rows.Scan(to...); err != nil {
		return err
	}
	of := map[string]string{}
	for i, n := range names {
		of[n] = values[i].String
	}
	for _, half := range []string{"IO", "SQL"} {
		if of["Slave_"+half+"_Running"] == "No" && of["Last_"+half+"_Error"] != "" {
			return errors.New(of["Last_"+half+"_Error"])
		}
	}
	return nil
}
