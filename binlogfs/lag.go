package binlogfs

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// lagUnknown is a lag in bytes that nobody has told yet.
const lagUnknown = -1

// lagEvery is how often a source is asked for the end of its log while it sends.
const lagEvery = 2 * time.Second

// watchLag asks the source on a connection of its own how long its log is, until ctx
// ends. A source that does not tell leaves the lag in bytes unknown.
func (p *Puller) watchLag(ctx context.Context, addr string, a *Appender) {
	var s *sourceConn
	defer func() {
		if s != nil {
			s.close()
		}
	}()
	tick := time.NewTicker(lagEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := error(nil)
		if s == nil {
			s, err = p.connect(ctx, addr, false)
		}
		lag := int64(lagUnknown)
		if err == nil {
			lag, err = s.lag(a.Received())
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.o.Logger.Debug("the source does not tell how long its log is", "error", err)
			if s != nil {
				s.close()
				s = nil
			}
		}
		p.update(func(st *PullStatus) { st.LagBytes = lag })
	}
}

// lag is how many bytes the source has logged behind a place.
func (s *sourceConn) lag(at SourcePlace) (int64, error) {
	file, end, err := s.writes()
	if err != nil || at.File == "" {
		return lagUnknown, err
	}
	if file == at.File {
		return max(0, end-at.Offset), nil
	}
	total, seen := int64(0), false
	err = s.query("SHOW BINARY LOGS", func(row []string) {
		if len(row) < 2 {
			return // a source that is none
		}
		size, perr := strconv.ParseInt(row[1], 10, 64)
		switch {
		case perr != nil:
		case row[0] == at.File:
			seen, total = true, size-at.Offset
		case seen:
			total += size
		}
	})
	if err != nil || !seen {
		return lagUnknown, err
	}
	return max(0, total), nil
}

// writes is the place where the source writes its log.
func (s *sourceConn) writes() (file string, offset int64, err error) {
	first := func(row []string) {
		if file != "" || len(row) < 2 {
			return
		}
		if n, perr := strconv.ParseInt(row[1], 10, 64); perr == nil {
			file, offset = row[0], n
		}
	}
	err = s.query("SHOW MASTER STATUS", first)
	var my *mysql.MyError
	if errors.As(err, &my) && my.Code == mysql.ER_PARSE_ERROR { // MySQL from 8.4 on
		err = s.query("SHOW BINARY LOG STATUS", first)
	}
	if err == nil && file == "" {
		err = &fatalError{errors.New("the source writes no binary log: set log_bin there")}
	}
	return file, offset, err
}

// took notes what an event that came at now tells of the lag. What a file begins
// with, and what a source says when it has nothing else, is as old as it may be.
func (st *PullStatus) took(h Header, now time.Time) {
	st.LastEvent = now
	switch h.Type {
	case replication.FORMAT_DESCRIPTION_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_GTID_LIST_EVENT,
		replication.MARIADB_BINLOG_CHECKPOINT_EVENT, replication.MARIADB_START_ENCRYPTION_EVENT, replication.ROTATE_EVENT, replication.STOP_EVENT:
		return
	case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
		st.LagSeconds = 0
		if st.LagBytes != lagUnknown {
			st.LagBytes = 0
		}
		return
	}
	if h.Time != 0 && !h.Artificial() {
		st.LagSeconds = max(0, now.Sub(time.Unix(int64(h.Time), 0)).Seconds()-1) // a header has whole seconds
	}
}
