package main

import (
	"fmt"
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

// requestSetting reads one key of the section into the bounds.
type requestSetting struct {
	key string
	set func(o *requestOptions, v string) error
}

// requestSettings are the keys of the section that bound requests.
func requestSettings() []requestSetting {
	atATime := func(field func(*requestOptions) *int) func(*requestOptions, string) error {
		return func(o *requestOptions, v string) (err error) {
			to := field(o)
			if *to, err = inRange(v, 1, maxConcurrent); err == nil {
				o.engine = max(o.engine, *to)
			}
			return err
		}
	}
	return []requestSetting{
		{keyUploads, atATime(func(o *requestOptions) *int { return &o.uploads })},
		{keyDownloads, atATime(func(o *requestOptions) *int { return &o.downloads })},
		{keyTimeout, func(o *requestOptions, v string) error {
			n, err := inRange(v, 1, maxTimeout)
			o.timeout = time.Duration(n) * time.Second
			return err
		}},
	}
}

func defaultRequests() requestOptions { return requestOptions{uploads: 16, downloads: 32} }

// requests reads the bounds of requests alone: a volume needs no other setting of
// the section, and those of a DBRoot's file may be wrong for all it cares.
func (a *app) requests() (requestOptions, error) {
	o := defaultRequests()
	set, err := a.sectionSettings(sectionStorage, storageKeys())
	if err != nil {
		return o, err
	}
	for _, k := range requestSettings() {
		if v, given := set[k.key]; given {
			if err := k.set(&o, v); err != nil {
				return o, a.settingError(sectionStorage, k.key, v, err)
			}
		}
	}
	return o, nil
}

// settingError is the error of a setting with an unusable value, and says where it is.
func (a *app) settingError(section, key, value string, err error) error {
	where := ""
	if name := envOf(section, key); a.inEnv(name) {
		where = name + ", as "
	} else if f, ferr := a.readConfig(); ferr == nil && f.path != "" {
		where = f.path + ": "
	}
	return usage(fmt.Errorf("%s[%s] %s = %q: %w", where, section, key, value, err))
}
