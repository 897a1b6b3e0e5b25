package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/gcs"
)

// sectionGCS is the section of settings for gs:// volumes.
const sectionGCS = "GCS"

func gcsKeys() []string {
	return []string{"bucket", "prefix", "key_file", "anonymous", "endpoint", "user_project"}
}

// openGCS opens the bucket of a gs:// URL.
func (a *app) openGCS(ctx context.Context, u objstore.URL) (objstore.Store, error) {
	o, err := a.gcsOptions(u)
	if err != nil {
		return nil, usage(err)
	}
	s, err := gcs.Open(ctx, o)
	if err != nil {
		return nil, usage(err)
	}
	return s, nil
}

// gcsOptions reads the settings for a volume. STORAGE_EMULATOR_HOST is the
// variable that Google's own tools and libraries know.
func (a *app) gcsOptions(u objstore.URL) (gcs.Options, error) {
	set, err := a.sectionSettings(sectionGCS, gcsKeys())
	if err != nil {
		return gcs.Options{}, err
	}
	// A file made for one volume keeps its key away from others.
	if b := set["bucket"]; b != "" && b != u.Bucket {
		return gcs.Options{}, fmt.Errorf("the GCS settings are for bucket %s, and %s is in another: use a configuration file for that", b, u)
	}
	if p := strings.Trim(set["prefix"], "/"); p != "" && p != u.Path && !strings.HasPrefix(u.Path, p+"/") {
		return gcs.Options{}, fmt.Errorf("the GCS settings are for the prefix %s, and %s is outside it: use a configuration file for that", p, u)
	}
	o, err := a.gcsValues(set)
	o.Bucket = u.Bucket
	return o, err
}

// gcsValues reads the section's values.
func (a *app) gcsValues(set map[string]string) (gcs.Options, error) {
	o := gcs.Options{KeyFile: a.fileName(set["key_file"]), Endpoint: set["endpoint"], UserProject: set["user_project"]}
	o.Emulator, _ = a.lookup("STORAGE_EMULATOR_HOST")
	if v := set["anonymous"]; v != "" {
		if err := setSwitch(&o.Anonymous, v); err != nil {
			return o, a.settingError(sectionGCS, "anonymous", v, err)
		}
	}
	return o, nil
}
