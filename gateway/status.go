package gateway

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// counters count since the mount.
type counters struct {
	written, fetched, uploaded atomic.Int64 // bytes
	fetches, uploads, commits  atomic.Int64
	folds, collected           atomic.Int64
	throttled, cacheErrors     atomic.Int64
	damage                     atomic.Int64

	up, down outage // of requests that store, and of those that read
}

// storeError is the failure of the last request that stored, or of the last that
// read, and since when they fail; nil when both succeeded.
func (c *counters) storeError() (error, time.Time) {
	if err, since := c.up.last(); err != nil {
		return err, since
	}
	return c.down.last()
}

// progress changes whenever something reaches the bucket.
func (c *counters) progress() int64 { return c.uploads.Load() + c.commits.Load() }

// Status is a picture of a mounted volume. Sizes are in bytes.
type Status struct {
	Volume     string            `json:"volume"`
	URL        string            `json:"url"`
	StateDir   string            `json:"state_dir"`
	Epoch      uint64            `json:"epoch"`
	Commit     metadata.CommitID `json:"commit"`
	CommitTime time.Time         `json:"commit_time"`
	Durability string            `json:"durability"`
	ReadOnly   string            `json:"read_only,omitempty"` // why, when it is
	Owns       bool              `json:"owns"`                // neither handed over nor, as far as is known, taken over

	Compress string   `json:"compress,omitempty"`        // lz4 or zstd
	Keys     []string `json:"encryption_keys,omitempty"` // names of those that the volume needs, the one for writing first

	DirtyBytes     int64   `json:"dirty_bytes"`
	DirtySeconds   float64 `json:"dirty_seconds"` // age of the oldest uncommitted change
	Inodes         uint64  `json:"inodes"`
	UsedBytes      int64   `json:"used_bytes"`
	QuotaBytes     int64   `json:"quota_bytes"`
	ReferenceBytes int64   `json:"reference_bytes"`
	MemoryBytes    int64   `json:"memory_bytes"` // of uncommitted changes
	OpenInodes     int     `json:"open_inodes"`

	Journal      JournalStatus `json:"journal"`
	Cache        CacheStatus   `json:"cache"`
	Written      int64         `json:"written_bytes"`
	Uploaded     int64         `json:"uploaded_bytes"`
	Fetched      int64         `json:"fetched_bytes"`
	Uploads      int64         `json:"uploads"`
	Fetches      int64         `json:"fetches"`
	Commits      int64         `json:"commits"`
	Folds        int64         `json:"folds"`
	Collected    int64         `json:"collected"`
	Throttled    int64         `json:"throttled"` // times that a writer waited for a commit
	Damage       int64         `json:"damage"`    // checksum mismatches and missing objects seen
	CacheErrors  int64         `json:"cache_errors"`
	StoreError   string        `json:"store_error,omitempty"`
	StoreSince   *time.Time    `json:"store_error_since,omitempty"`
	LeaseRenewed float64       `json:"lease_renewed_seconds"`        // since the last renewal
	LeaseLost    float64       `json:"lease_lost_seconds,omitempty"` // since it ran out without a renewal
	WritersHeld  string        `json:"writers_held,omitempty"`       // why writers wait whatever the limits, when they do
	LeaseError   string        `json:"lease_error,omitempty"`
	CommitError  string        `json:"commit_error,omitempty"`
	Failing      []Failing     `json:"failing,omitempty"` // background work that does not get on
	Damaged      bool          `json:"damaged,omitempty"` // damage on the local disk keeps commits from getting on
	PatchedSlots int           `json:"patched_slots"`
	Patches      int           `json:"patches"`

	Follow *FollowStatus `json:"follow,omitempty"` // of a mount that follows its writer
}

// JournalStatus is the journal's part of Status.
type JournalStatus struct {
	End      journal.LSN `json:"end_lsn"`
	Durable  journal.LSN `json:"durable_lsn"`
	Live     int64       `json:"live_bytes"`
	Limit    int64       `json:"limit_bytes"`
	Unsynced int64       `json:"unsynced_bytes"`
	Syncs    uint64      `json:"syncs"`
	Error    string      `json:"error,omitempty"`
}

// CacheStatus is the cache's part of Status.
type CacheStatus struct {
	Limit     int64  `json:"limit_bytes"`
	Allocated int64  `json:"allocated_bytes"`
	Pinned    int64  `json:"pinned_bytes"`
	Hits      int64  `json:"hits"`
	Misses    int64  `json:"misses"`
	Evictions int64  `json:"evictions"`
	Error     string `json:"error,omitempty"`
}

// Status never waits for the store or the disk.
func (v *Volume) Status() Status {
	s := Status{Volume: v.doc.ID, URL: v.opt.URL, StateDir: v.opt.StateDir, Durability: v.opt.Durability.String()}
	v.mu.RLock()
	s.Commit, s.CommitTime = v.head.CommitID, time.Unix(0, v.head.Time).UTC()
	s.Inodes, s.UsedBytes, s.QuotaBytes, s.ReferenceBytes = v.inodes, v.used, v.settings.QuotaBytes, v.refBytes
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l != nil {
			s.DirtyBytes += l.data
			s.MemoryBytes += l.mem
		}
	}
	stopped := v.Stopped()
	s.Compress, s.Keys = v.doc.Compress, v.head.Settings.KeyNames()
	s.ReadOnly = text(stopped)
	s.Owns = !errors.Is(stopped, ErrFenced) && !errors.Is(stopped, ErrHandedOver)
	v.mu.RUnlock()
	s.DirtySeconds = v.dirtyAge().Seconds()
	s.OpenInodes = v.nodes.len()
	v.statusParts(&s, v.journal.Stats(), v.cache.Stats())
	return s
}

func (v *Volume) statusParts(s *Status, j journal.Stats, c cache.Stats) {
	s.Journal = JournalStatus{End: j.End, Durable: j.Durable, Live: j.LiveBytes, Limit: v.journalBytes, Unsynced: j.UnsyncedBytes, Syncs: j.Syncs, Error: text(j.LastError)}
	s.Cache = CacheStatus{Limit: c.Limit, Allocated: c.Allocated, Pinned: c.Pinned, Hits: c.Hits, Misses: c.Misses, Evictions: c.Evictions, Error: text(c.LastError)}
	n := v.stat
	s.Written, s.Uploaded, s.Fetched = n.written.Load(), n.uploaded.Load(), n.fetched.Load()
	s.Uploads, s.Fetches, s.Commits = n.uploads.Load(), n.fetches.Load(), n.commits.Load()
	s.Folds, s.Collected, s.Throttled = n.folds.Load(), n.collected.Load(), n.throttled.Load()
	s.Damage, s.CacheErrors = n.damage.Load(), n.cacheErrors.Load()
	if err, since := n.storeError(); err != nil {
		s.StoreError, s.StoreSince = err.Error(), &since
	}
	s.Failing = v.outages.failing()
	v.lease.mu.Lock()
	s.Epoch = v.lease.doc.Epoch
	s.LeaseRenewed, s.LeaseError = time.Since(v.lease.renewed).Seconds(), text(v.lease.err)
	v.lease.mu.Unlock()
	if s.LeaseLost = v.leaseLost().Seconds(); s.LeaseLost > 0 && v.opt.StopOnLeaseLost && s.ReadOnly == "" {
		s.WritersHeld = "the lease ran out, and this mount was told to stop then"
	}
	v.commit.mu.Lock()
	s.CommitError, s.Damaged = text(v.commit.lastErr), errors.Is(v.commit.lastErr, ErrDamaged)
	v.commit.mu.Unlock()
	s.PatchedSlots, s.Patches = v.folds.count()
}

// Stuck says why nothing can be committed although the object store may be there;
// empty when commits get on or only wait for it.
func (s *Status) Stuck() string {
	if s.Damaged {
		return s.CommitError
	}
	for _, f := range s.Failing {
		if f.Work == workCommit && !f.Store {
			return f.Error
		}
	}
	return ""
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
