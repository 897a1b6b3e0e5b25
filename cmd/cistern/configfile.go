package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cisternfs/cistern/internal/config"
)

// configFile is what --config or CISTERN_CONFIG names.
type configFile struct {
	path string // absolute; empty: there is none
	text []byte
}

// readConfig reads the configuration file at its first call. A mount calls it
// before it leaves the working directory.
func (a *app) readConfig() (*configFile, error) {
	if a.config != nil {
		return a.config, nil
	}
	path := a.configFlag
	if path == "" {
		path, _ = a.lookup("CISTERN_CONFIG")
	}
	f := &configFile{}
	if path != "" {
		var err error
		if f.path, err = filepath.Abs(path); err != nil {
			return nil, usage(fmt.Errorf("%s: %w", path, err))
		}
		if f.text, err = readSmall(f.path); err != nil {
			return nil, usage(err)
		}
	}
	a.config = f
	return f, nil
}

// sectionSettings returns a section's settings: the environment's
// CISTERN_<SECTION>_<KEY> beats the file. keys are those that there are.
func (a *app) sectionSettings(section string, keys []string) (map[string]string, error) {
	f, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	set, err := config.Section(f.path, f.text, section, keys, a.lookup)
	if err != nil {
		return nil, usage(err)
	}
	for _, key := range keys {
		if v, ok := a.lookup(envOf(section, key)); ok {
			set[key] = v
		}
	}
	return set, nil
}

// envOf is the variable that beats a setting of the file.
func envOf(section, key string) string { return "CISTERN_" + strings.ToUpper(section+"_"+key) }

func (a *app) inEnv(name string) bool {
	_, ok := a.lookup(name)
	return ok
}

// warnOfBucket tells what of a bucket's settings hurts a volume.
func (a *app) warnOfBucket(ctx context.Context, s *store) {
	list, err := s.warnings(ctx)
	if err != nil {
		list = append(list, fmt.Sprintf("the bucket's settings can't be read: %v", err))
	}
	for _, w := range list {
		a.note("warning: %s", w)
	}
}
