package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// sectionStorage is the section of settings for object stores of any kind. Its
// keys are those of ColumnStore's storagemanager.cnf, and mean the same.
const (
	sectionStorage = "ObjectStorage"
	keyUploads     = "max_concurrent_uploads"
	keyDownloads   = "max_concurrent_downloads"
	keyTimeout     = "request_timeout" // Cistern's own, in seconds

	maxConcurrent = 1024 // of either; each takes a connection
	maxTimeout    = 600  // seconds
)

// requestOptions bound the requests of a store.
type requestOptions struct {
	uploads, downloads int // at a time
	bandwidth          objstore.BandwidthOptions
	engine             int           // requests of the engine at a time; 0: its own default
	timeout            time.Duration // of a request without its body; 0: the default
}

// requests reads the settings.
func (a *app) requests() (requestOptions, error) {
	o := requestOptions{uploads: 16, downloads: 32}
	set, err := a.sectionSettings(sectionStorage, storageKeys())
	if err != nil {
		return o, err
	}
	for key, to := range map[string]*int{keyUploads: &o.uploads, keyDownloads: &o.downloads} {
		if _, given := set[key]; !given {
			continue
		}
		if *to, err = whole(set, key, maxConcurrent); err != nil {
			return o, err
		}
		o.engine = max(o.engine, *to)
	}
	if _, given := set[keyTimeout]; given {
		seconds, err := whole(set, keyTimeout, maxTimeout)
		if err != nil {
			return o, err
		}
		o.timeout = time.Duration(seconds) * time.Second
	}
	return o, nil
}

// whole reads a number from 1 to most.
func whole(set map[string]string, key string, most int) (int, error) {
	n, err := strconv.Atoi(set[key])
	if err != nil || n < 1 || n > most {
		return 0, usage(fmt.Errorf("[%s] %s = %q: must be a number from 1 to %d", sectionStorage, key, set[key], most))
	}
	return n, nil
}
