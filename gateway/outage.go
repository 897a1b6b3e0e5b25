package gateway

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// Bounds of what is told about one outage.
const (
	outageReasons = 8           // told apart; more are not logged
	outageAgain   = time.Minute // in which the same failure is still the old outage
)

// outage is what one kind of background work tells of its failures, which it
// repeats for as long as they last: a line in the log when it begins to fail, one
// when the reason changes, and one when it works again; and for status, since
// when. The zero value is ready; its methods may be called concurrently.
type outage struct {
	mu      sync.Mutex // guards the fields below
	err     error      // the last failure; nil while it works
	since   time.Time  // when it began to fail
	ended   time.Time  // when the outage before ended
	times   int        // failures in a row
	reasons []string   // those that were logged
	told    bool       // this outage was
}

// Failing is background work that does not get on.
type Failing struct {
	Work  string    `json:"work"`
	Error string    `json:"error"` // of the last attempt
	Since time.Time `json:"since"`
	Times int       `json:"times"`           // attempts since
	Store bool      `json:"store,omitempty"` // it is the object store that failed
}

// failed notes a failure and says whether it is to be logged.
func (o *outage) failed(err error, now time.Time) (tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.since, o.times, o.told = now, 0, false
		// What comes and goes all the time is one outage.
		if now.Sub(o.ended) >= outageAgain {
			o.reasons = nil
		}
	}
	o.err = err
	o.times++
	why := rootReason(err)
	if slices.Contains(o.reasons, why) || len(o.reasons) >= outageReasons {
		return false
	}
	o.reasons = append(o.reasons, why)
	o.told = true
	return true
}

// worked notes a success and returns how long the outage was that it ends, if
// that is to be logged.
func (o *outage) worked(now time.Time) (lasted time.Duration, tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return 0, false
	}
	o.err, o.ended = nil, now
	return now.Sub(o.since), o.told
}

// last returns the last failure and since when there are some, or nil.
func (o *outage) last() (error, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err, o.since
}

// note notes how an attempt at some work ended, and logs what is new of it. args
// go with a failure's line.
func (o *outage) note(log *slog.Logger, work string, err error, args ...any) {
	now := time.Now()
	if err == nil {
		if lasted, tell := o.worked(now); tell {
			log.Info(work+" works again", "failed for", lasted.Round(time.Second))
		}
		return
	}
	if o.failed(err, now) {
		log.Warn(work+" fails; it is tried again", append(args, "error", err)...)
	}
}

// appendTo appends the outage to a status's list, if there is one.
func (o *outage) appendTo(list []Failing, work string) []Failing {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return list
	}
	return append(list, Failing{Work: work, Error: o.err.Error(), Since: o.since.UTC(), Times: o.times, Store: storeFailed(o.err)})
}

// storeFailed says whether an error is the object store's.
func storeFailed(err error) bool {
	for _, class := range []error{ErrStore, objstore.ErrUnavailable, objstore.ErrPermission, objstore.ErrNoBucket} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// rootReason is what an error comes down to: the texts of the errors at the ends
// of its chain, without the names of objects and files that are others each time.
func rootReason(err error) string {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		var parts []string
		for _, e := range list.Unwrap() {
			parts = append(parts, rootReason(e))
		}
		return strings.Join(parts, ": ")
	}
	if inner := errors.Unwrap(err); inner != nil {
		return rootReason(inner)
	}
	return err.Error()
}

// outages are those of a volume's background work.
type outages struct {
	commit, lease, fold, deadSegments, manifest, collect, orphans, journal, schedule outage
}

// failing lists the work that does not get on.
func (o *outages) failing() (list []Failing) {
	list = o.commit.appendTo(list, workCommit)
	list = o.lease.appendTo(list, workLease)
	list = o.journal.appendTo(list, workJournal)
	list = o.fold.appendTo(list, workFold)
	list = o.deadSegments.appendTo(list, workDeadSegments)
	list = o.manifest.appendTo(list, workManifest)
	list = o.collect.appendTo(list, workCollect)
	list = o.schedule.appendTo(list, workSchedule)
	return o.orphans.appendTo(list, workOrphans)
}

// Background work, as log and status name it.
const (
	workCommit       = "commit"
	workLease        = "renewal of the lease"
	workJournal      = "sync of the journal"
	workFold         = "folding"
	workDeadSegments = "search for mostly dead segments"
	workManifest     = "manifest"
	workCollect      = "collection"
	workSchedule     = "a scheduled snapshot"
	workOrphans      = "scan for orphans"
)
