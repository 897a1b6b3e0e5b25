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
	err      error // of the last look
	since    time.Time
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

func (f *Follower) noteLook(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		f.view.stats.storeWorks()
	case errors.Is(err, ErrStore):
		f.view.stats.storeFailed(err, now)
	}
	if err == nil {
		f.stat.current = now
	} else if f.stat.err == nil {
		f.stat.since = now
	}
	f.stat.err = err
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
		Rebuilds: st.rebuilds, Error: text(st.err),
	}
	if st.ahead > h.N {
		s.Follow.LagCommits = st.ahead - h.N
	}
	if st.err != nil {
		since := st.since.UTC()
		s.Follow.ErrorSince = &since
	}
	return s
}
