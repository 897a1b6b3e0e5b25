package gcs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/storage"

	"github.com/cisternfs/cistern/objstore"
)

// Warnings returns one sentence for each of the bucket's settings that costs
// money or data when a volume lies under prefix. Reading them needs the
// permission storage.buckets.get; without it there are none.
func (s *Store) Warnings(ctx context.Context, prefix string) ([]string, error) {
	a, err := s.bucket.Attrs(ctx)
	if notFound(err) {
		return nil, s.noBucket("look at the settings of", "the bucket")
	}
	if err != nil {
		err = s.fail(ctx, "look at the settings of", "bucket "+s.o.Bucket, err)
		if errors.Is(err, objstore.ErrPermission) {
			return nil, nil
		}
		return nil, err
	}
	all := append(locks(a), keeps(a)...)
	for _, rule := range a.Lifecycle.Rules {
		if w := lifecycle(rule, prefix); w != "" {
			all = append(all, w)
		}
	}
	for i := range all {
		all[i] = "bucket " + s.o.Bucket + " " + all[i]
	}
	return all, nil
}

// locks are settings under which the lease can't be renewed, or nothing be
// deleted.
func locks(a *storage.BucketAttrs) []string {
	var all []string
	if p := a.RetentionPolicy; p != nil {
		all = append(all, fmt.Sprintf("forbids to replace or delete objects for %s (retention policy): a volume there can't renew its lease; remove the policy or take another bucket", span(p.RetentionPeriod)))
	}
	if a.DefaultEventBasedHold {
		all = append(all, "holds every new object (default event-based hold): a volume there can't renew its lease; turn the hold off")
	}
	if a.ObjectRetentionMode == "Enabled" {
		all = append(all, "lets single objects be locked (object retention): a locked object of a volume can't be collected, and a locked lease not be renewed")
	}
	return all
}

// keeps are settings under which what was deleted, or is young, costs more than
// its bytes.
func keeps(a *storage.BucketAttrs) []string {
	var all []string
	if a.VersioningEnabled {
		all = append(all, "keeps old generations of objects (Object Versioning): each renewal of the lease leaves one, and what collection deletes is still paid for; turn it off, or delete noncurrent generations by a lifecycle rule")
	}
	if p := a.SoftDeletePolicy; p != nil && p.RetentionDuration > 0 {
		all = append(all, fmt.Sprintf("keeps deleted objects for %s (soft delete): they are paid for as long; set the duration to 0 unless you want that", span(p.RetentionDuration)))
	}
	switch a.StorageClass {
	case "NEARLINE", "COLDLINE", "ARCHIVE":
		all = append(all, fmt.Sprintf("stores new objects as %s, which bills a minimum time for each: segments and the lease live shorter; make STANDARD its default class", a.StorageClass))
	}
	return all
}

// lifecycle says what a rule does to live objects under prefix; nothing for one
// that doesn't touch them.
func lifecycle(rule storage.LifecycleRule, prefix string) string {
	c := rule.Condition
	if c.Liveness == storage.Archived || c.NumNewerVersions > 0 || c.DaysSinceNoncurrentTime > 0 || !c.NoncurrentTimeBefore.IsZero() || !touches(c.MatchesPrefix, prefix) {
		return ""
	}
	switch rule.Action.Type {
	case storage.DeleteAction:
		return "has a lifecycle rule that deletes objects by itself: it destroys volumes; remove it, or limit it to another prefix"
	case storage.SetStorageClassAction:
		return fmt.Sprintf("has a lifecycle rule that moves objects to %s: reading or deleting them then costs extra", rule.Action.StorageClass)
	}
	return ""
}

// touches says whether a rule for these prefixes, or for all objects when there
// are none, can match keys under prefix.
func touches(prefixes []string, prefix string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(p, prefix) || strings.HasPrefix(prefix, p) {
			return true
		}
	}
	return len(prefixes) == 0
}

// span writes a duration of bucket settings, in days where it is whole days.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == day:
		return "1 day"
	case d > day && d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}
