package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
// CISTERN_<SECTION>_<KEY> beats the file. keys are those that there are. The error
// joins all that is wrong; the settings are those in which nothing is.
func (a *app) sectionSettings(section string, keys []string) (map[string]string, error) {
	f, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	set, err := config.Section(f.path, f.text, section, keys, a.lookup)
	for _, key := range keys {
		if v, ok := a.lookup(envOf(section, key)); ok {
			set[key] = v
		}
	}
	return set, usage(err)
}

// problems collects what is wrong in a configuration, each thing once: several
// readers of a file meet the same. The zero value is none.
type problems struct{ list []string }

// add adds an error, or each of those that are joined in it.
func (p *problems) add(err error) {
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.Contains(p.list, line) {
			p.list = append(p.list, line)
		}
	}
}

// err is nil when nothing is wrong.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return usage(errors.New(strings.Join(p.list, "\n")))
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
