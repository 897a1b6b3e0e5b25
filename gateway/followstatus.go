package gateway

import (
	"errors"
	"time"
)

// followState is what a follower knows of the writer.
type followState struct {
	current  time.Time // when what is shown was the last commit, as far as was known
	ahead    uint64    // number of the latest commit that is known of
	rebuilds int64
}

// FollowStatus says how far a follower is behind its writer.
type FollowStatus struct {
	IntervalSeconds  float64    `json:"interval_seconds"`
	LagSeconds       float64    `json:"lag_seconds"` // since what is shown was known to be the last commit
	LagCommits       uint64     `json:"lag_commits"` // numbers between it and the latest that is known of
	RetentionSeconds int64      `json:"retention_seconds"`
	Overdue          bool       `json:"overdue"`  // further behind than the retention: what is not in the cache may be gone
	Rebuilds         int64      `json:"rebuilds"` // times that the state was loaded anew
	Error            string     `json:"error,omitempty"`
	ErrorSince       *time.Time `json:"error_since,omitempty"`
}

// overdueLeast is the least lag that counts as too much: without a retention,
// too, a follower can only be as quick as its interval.
const overdueLeast = time.Minute

// noteLook notes how a look for the next commit ended.
func (f *Follower) noteLook(err error) {
	now := time.Now()
	f.looks.note(f.o.Logger, "following the writer", err, "volume", f.o.URL)
	switch {
	case err == nil:
		f.view.stats.down.worked(now)
		f.mu.Lock()
		f.stat.current = now
		f.mu.Unlock()
	case errors.Is(err, ErrStore):
		f.view.stats.down.failed(err, now)
	}
}

func (f *Follower) noteAhead(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stat.ahead = max(f.stat.ahead, n)
}

func (f *Follower) noteRebuilt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stat.rebuilds++
}

// Status is a picture of the follower. It never waits for the store or the disk.
func (f *Follower) Status() Status {
	s := f.view.Status()
	h := f.view.Head()
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.stat
	lag := time.Since(st.current)
	s.Follow = &FollowStatus{
		IntervalSeconds: f.o.Interval.Seconds(), LagSeconds: lag.Seconds(), RetentionSeconds: h.Settings.RetentionSec,
		Overdue:  lag > max(overdueLeast, time.Duration(h.Settings.RetentionSec)*time.Second),
		Rebuilds: st.rebuilds,
	}
	if st.ahead > h.N {
		s.Follow.LagCommits = st.ahead - h.N
	}
	if err, since := f.looks.last(); err != nil {
		since = since.UTC()
		s.Follow.Error, s.Follow.ErrorSince = err.Error(), &since
	}
	return s
}
