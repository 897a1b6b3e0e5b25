package main

import (
	"fmt"
	"strconv"

	"github.com/cisternfs/cistern/objstore"
)

// sectionStorage is the section of settings for object stores of any kind. Its
// keys are those of ColumnStore's storagemanager.cnf, and mean the same.
const (
	sectionStorage = "ObjectStorage"
	keyUploads     = "max_concurrent_uploads"
	keyDownloads   = "max_concurrent_downloads"

	maxConcurrent = 1024 // of either; each takes a connection
)

// requestOptions bound the requests of a store.
type requestOptions struct {
	uploads, downloads int // at a time
	bandwidth          objstore.BandwidthOptions
	engine             int // requests of the engine at a time; 0: its own default
}

// requests reads the settings.
func (a *app) requests() (requestOptions, error) {
	o := requestOptions{uploads: 16, downloads: 32}
	set, err := a.sectionSettings(sectionStorage, storageKeys())
	if err != nil {
		return o, err
	}
	for key, to := range map[string]*int{keyUploads: &o.uploads, keyDownloads: &o.downloads} {
		value, given := set[key]
		if !given {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxConcurrent {
			return o, usage(fmt.Errorf("[%s] %s = %q: must be a number from 1 to %d", sectionStorage, key, value, maxConcurrent))
		}
		*to = n
		o.engine = max(o.engine, n)
	}
	return o, nil
}
