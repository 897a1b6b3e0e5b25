package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/objstore"
)

// The sections of ColumnStore's storagemanager.cnf beside [S3], and Cistern's own.
const (
	sectionLocal   = "LocalStorage"
	sectionCache   = "Cache"
	sectionCistern = "Cistern"
)

// storageKeys are the keys of the section ObjectStorage.
func storageKeys() []string {
	return []string{"service", "object_size", "metadata_path", "journal_path", keyDownloads, keyUploads, "common_prefix_depth", keyTimeout}
}

func localKeys() []string   { return []string{"path", "fake_latency", "max_latency"} }
func cacheKeys() []string   { return []string{"cache_size", "path"} }
func cisternKeys() []string { return []string{"volumes", "dbroots"} }

// storageManager is what storagemanager.cnf says, with Cistern's additions.
type storageManager struct {
	file      string // empty: there is none
	service   string // s3 or localstorage
	requests  requestOptions
	object    config.Size
	tree      storagemanager.Tree
	depth     int // directories before data1, data2, …
	cache     config.Size
	local     string // LocalStorage's path
	latency   bool
	bucket    string
	keyPrefix string // before each key in the bucket, as it stands
	volumes   string // URL below which the volumes are; empty: below the bucket
	dbroots   []string
	given     map[string]bool // "section/key" of what is set
}

// smDefaults are storagemanager.cnf's own defaults.
func smDefaults() *storageManager {
	const dir = "/var/lib/columnstore/storagemanager/"
	return &storageManager{
		service: "localstorage", requests: defaultRequests(), depth: 3, local: dir + "fake-cloud",
		object: config.Size{Bytes: 5 << 20, Min: 1 << 20, Max: 64 << 20},
		cache:  config.Size{Bytes: 2 << 30, Min: 16 << 20},
		tree:   storagemanager.Tree{Metadata: dir + "metadata", Journal: dir + "journal", Cache: dir + "cache"},
		given:  map[string]bool{},
	}
}

// smSetting reads one value.
type smSetting struct {
	section, key string
	set          func(*storageManager, string) error
}

// smSettings are all keys of the file but those of [S3], which opening a bucket reads.
func smSettings() []smSetting {
	path := func(field func(*storageManager) *string) func(*storageManager, string) error {
		return func(s *storageManager, v string) error { *field(s) = filepath.Clean(v); return absolute(v) }
	}
	list := []smSetting{
		{sectionStorage, "service", (*storageManager).setService},
		{sectionStorage, "object_size", func(s *storageManager, v string) error { return setObjectSize(&s.object, v) }},
		{sectionStorage, "metadata_path", path(func(s *storageManager) *string { return &s.tree.Metadata })},
		{sectionStorage, "journal_path", path(func(s *storageManager) *string { return &s.tree.Journal })},
		{sectionStorage, "common_prefix_depth", (*storageManager).setDepth},
		{sectionLocal, "path", path(func(s *storageManager) *string { return &s.local })},
		{sectionLocal, "fake_latency", func(s *storageManager, v string) error { return setSwitch(&s.latency, v) }},
		{sectionLocal, "max_latency", func(_ *storageManager, v string) error { _, err := inRange(v, 0, 1e9); return err }},
		{sectionCache, "cache_size", func(s *storageManager, v string) error { return s.cache.Set(v) }},
		{sectionCache, "path", path(func(s *storageManager) *string { return &s.tree.Cache })},
		{sectionCistern, "volumes", (*storageManager).setVolumes},
		{sectionCistern, "dbroots", (*storageManager).setDBRoots},
	}
	for _, k := range requestSettings() {
		list = append(list, smSetting{sectionStorage, k.key, func(s *storageManager, v string) error { return k.set(&s.requests, v) }})
	}
	return list
}

func absolute(v string) error {
	if !filepath.IsAbs(v) {
		return errors.New("it is not an absolute path")
	}
	return nil
}

func inRange(v string, least, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("must be a number from %d to %d", least, most)
	}
	return n, nil
}

func setObjectSize(s *config.Size, v string) error {
	if err := s.Set(v); err != nil {
		return err
	}
	if s.Bytes%4096 != 0 {
		return errors.New("must be a multiple of 4096 bytes")
	}
	return nil
}

func (s *storageManager) setService(v string) error {
	s.service = strings.ToLower(v)
	if s.service != "s3" && s.service != "localstorage" {
		return errors.New("choose S3 or LocalStorage")
	}
	return nil
}

func (s *storageManager) setDepth(v string) error {
	n, err := inRange(v, 0, 64)
	s.depth = n
	return err
}

func (s *storageManager) setVolumes(v string) error {
	u, err := objstore.ParseURL(v)
	if err != nil {
		return err
	}
	if u.Point != "" {
		return errors.New("a point in the past can't be meant here")
	}
	s.volumes = u.String()
	return nil
}

func (s *storageManager) setDBRoots(v string) error {
	for _, name := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		if strings.ContainsAny(name, "/@\x00") || name == "." || name == ".." {
			return fmt.Errorf("%q is not a directory's name", name)
		}
		s.dbroots = append(s.dbroots, name)
	}
	if len(s.dbroots) == 0 {
		return errors.New("it is empty: give names like data1, data2")
	}
	return nil
}

// readStorageManager reads the configuration file as storagemanager.cnf. All that is
// wrong in any of its sections is an error that names section, key, value and reason.
func (a *app) readStorageManager() (*storageManager, error) {
	f, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	s := smDefaults()
	s.file = f.path
	var wrong problems
	sections := map[string]map[string]string{}
	for _, x := range []struct {
		name string
		keys []string
	}{{sectionStorage, storageKeys()}, {sectionLocal, localKeys()}, {sectionCache, cacheKeys()}, {sectionCistern, cisternKeys()}} {
		sections[x.name], err = a.sectionSettings(x.name, x.keys)
		wrong.add(err)
	}
	before := len(wrong.list)
	for _, k := range smSettings() {
		value, ok := sections[k.section][k.key]
		if !ok {
			continue
		}
		s.given[k.section+"/"+k.key] = true
		if value == "" {
			err = errors.New("it is empty: give a value, or leave the line out")
		} else {
			err = k.set(s, value)
		}
		if err != nil {
			wrong.add(a.settingError(k.section, k.key, value, err))
		}
	}
	if len(wrong.list) == before && s.given[sectionCache+"/cache_size"] && s.cache.Bytes < 2*s.object.Bytes {
		wrong.add(fmt.Errorf("%s: [%s] cache_size = %q: it must hold two objects of object_size = %s at least", s.file, sectionCache, sections[sectionCache]["cache_size"], s.object.String()))
	}
	s3, err := a.readS3Section()
	wrong.add(err)
	if err := wrong.err(); err != nil {
		return nil, err
	}
	s.bucket, s.keyPrefix = s3.bucket, s3.prefix
	return s, nil
}

// bucketURL is where Storage Manager's objects lie.
func (s *storageManager) bucketURL() (string, error) {
	if s.service == "localstorage" {
		return objstore.SchemeFile + "://" + s.local, nil
	}
	if s.bucket == "" {
		return "", usage(fmt.Errorf("%s: [S3] bucket is not set", s.file))
	}
	return objstore.SchemeS3 + "://" + s.bucket, nil
}

// objectPrefix stands before each of Storage Manager's keys in its bucket.
func (s *storageManager) objectPrefix() string {
	if s.service == "localstorage" {
		return ""
	}
	return s.keyPrefix
}

// volumeURL is where the volume of a DBRoot (data1, data2, …) is.
func (s *storageManager) volumeURL(dbroot string) (objstore.URL, error) {
	base := s.volumes
	if base == "" {
		bucket, err := s.bucketURL()
		if err != nil {
			return objstore.URL{}, err
		}
		base = bucket
		if p := strings.Trim(s.objectPrefix(), "/"); p != "" {
			base += "/" + p
		}
		base += "/cistern"
	}
	u, err := objstore.ParseURL(base + "/" + dbroot)
	return u, usage(err)
}
