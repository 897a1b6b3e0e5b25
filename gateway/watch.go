package gateway

import (
	"fmt"
	"time"
)

// When limits are looked at, and how often a warning is repeated.
const (
	watchEvery  = time.Second
	watchRepeat = time.Minute
)

// nearLimit says what of the limits that make writers wait is used to four
// fifths or more; empty when nothing is.
func (v *Volume) nearLimit() string {
	j := v.journal.Stats()
	switch mem := v.pending.Load(); {
	case j.Waiting > 0:
		return fmt.Sprintf("%d writers wait for room in the journal, whose limit is %d bytes", j.Waiting, v.journalBytes)
	case mem > v.opt.MemoryBytes:
		return fmt.Sprintf("writers wait: uncommitted changes take %d bytes of memory, the limit is %d", mem, v.opt.MemoryBytes)
	case j.FreeBytes < v.journalBytes/5:
		return fmt.Sprintf("journal is nearly full: writers will wait when the last %d of its %d bytes are used", j.FreeBytes, v.journalBytes)
	case mem > v.opt.MemoryBytes/5*4:
		return fmt.Sprintf("uncommitted changes take %d bytes of memory: writers will wait at %d", mem, v.opt.MemoryBytes)
	}
	return ""
}

// runWatch warns before and while writers wait, and says why the bucket does
// not take what they write.
func (v *Volume) runWatch() {
	defer v.group.Done()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var warned time.Time
	var blind bool
	for {
		select {
		case <-tick.C:
		case <-v.quit:
			return
		}
		err := v.cache.KeepFree()
		if err != nil && !blind {
			v.log.Warn("the cache does not know how full its disk is", "error", err)
		}
		blind = err != nil // told once, not at every tick
		what := v.nearLimit()
		if what == "" || !warned.IsZero() && time.Since(warned) < watchRepeat {
			continue
		}
		warned = time.Now()
		cause, _ := v.stat.storeError()
		v.log.Warn(what, "volume", v.opt.URL, "uncommitted", v.dirtyBytes(), "store", text(cause))
	}
}
