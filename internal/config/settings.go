package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"gopkg.in/ini.v1"
)

// maxFile bounds a configuration file in bytes.
const maxFile = 1 << 20

// Apply fills the flags that were not given on the command line from the
// environment and then from the given section of the file's text; path names
// the file in messages, and an empty one means that there is none. Flags in
// only are not settings: neither the environment nor the file may give them. The
// error joins all that is wrong in the section.
func Apply(flags *pflag.FlagSet, lookup func(string) (string, bool), path string, text []byte, section string, only ...string) error {
	file, err := readSection(path, text, section, lookup)
	errs := []error{err}
	used := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(only, f.Name) || f.Hidden {
			return
		}
		key := strings.ReplaceAll(f.Name, "-", "_")
		value, inFile := file[key]
		used[key] = inFile
		variable := "CISTERN_" + strings.ToUpper(key)
		fromEnv, inEnv := lookup(variable)
		switch {
		case f.Changed:
		case inEnv:
			if err := flags.Set(f.Name, fromEnv); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q in the environment: %w", variable, fromEnv, reason(err)))
			}
		case inFile:
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: [%s] %s = %q: %w", path, section, key, value, reason(err)))
			}
		}
	})
	for _, key := range slices.Sorted(maps.Keys(file)) {
		if !used[key] {
			errs = append(errs, fmt.Errorf("%s: [%s] %s = %q: there is no such setting", path, section, key, file[key]))
		}
	}
	return errors.Join(errs...)
}

// reason is what a flag's value said, without pflag's own words around it.
func reason(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return invalid.Unwrap()
	}
	return err
}

// Section returns the values that a file's text has in a section, by key; keys
// are those that there are, with _ between their words, and any other is an
// error. path names the file in messages, and an empty one means that there is
// none. ${NAME} in a value stands for an environment variable, which must be set.
// The error joins all that is wrong; the values are those in which nothing is.
func Section(path string, text []byte, section string, keys []string, lookup func(string) (string, bool)) (map[string]string, error) {
	file, err := readSection(path, text, section, lookup)
	errs := []error{err}
	for _, key := range slices.Sorted(maps.Keys(file)) {
		if !slices.Contains(keys, key) {
			errs = append(errs, fmt.Errorf("%s: [%s] %s: there is no such setting", path, section, key))
			delete(file, key)
		}
	}
	return file, errors.Join(errs...)
}

// sections are those that a file may have: one file serves all commands.
func sections() []string {
	return []string{"mount", "relay", "Cistern", "ObjectStorage", "S3", "GCS", "LocalStorage", "Cache", "Encryption"}
}

// load parses a file.
func load(path string, text []byte) (*ini.File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: a configuration file of %d bytes is too large", path, len(text))
	}
	f, err := ini.LoadSources(ini.LoadOptions{AllowBooleanKeys: false, IgnoreInlineComment: false}, text)
	var bare ini.ErrDelimiterNotFound
	if errors.As(err, &bare) {
		// Not the whole line, which may hold a secret.
		word, _, _ := strings.Cut(strings.TrimSpace(bare.Line), " ")
		return nil, fmt.Errorf("%s is not an INI file: the line that begins with %q has no =", path, word)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not an INI file: %w", path, err)
	}
	return f, nil
}

// readSection returns a section's keys, with _ between their words, and all that is
// wrong with them and with the names of sections.
func readSection(path string, text []byte, section string, lookup func(string) (string, bool)) (map[string]string, error) {
	keys := map[string]string{}
	if path == "" {
		return keys, nil
	}
	f, err := load(path, text)
	if err != nil {
		return keys, err
	}
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", path, fmt.Errorf(format, args...)))
	}
	for _, s := range f.Sections() {
		if s.Name() == ini.DefaultSection && len(s.Keys()) == 0 {
			continue
		}
		if !slices.Contains(sections(), s.Name()) {
			fail("section [%s] is not known: write settings under [%s]", s.Name(), strings.Join(sections(), "], ["))
		}
		if s.Name() != section {
			continue
		}
		seen := map[string]bool{}
		for _, k := range s.Keys() {
			name := strings.ReplaceAll(k.Name(), "-", "_")
			if seen[name] {
				fail("[%s] %s = %q: it is set twice", section, name, k.String())
				continue
			}
			seen[name] = true
			value, err := expand(k.Value(), lookup)
			if err != nil {
				fail("[%s] %s: %w", section, name, err)
				continue
			}
			keys[name] = value
		}
	}
	return keys, errors.Join(errs...)
}

// RawSection is a section as it is written, with no variable put in.
type RawSection struct {
	Name string
	Keys []RawKey
}

// RawKey is a key of a section, with _ between its words.
type RawKey struct {
	Name, Value string
}

// Raw returns a file's sections in their order.
func Raw(path string, text []byte) ([]RawSection, error) {
	f, err := load(path, text)
	if err != nil {
		return nil, err
	}
	var out []RawSection
	for _, s := range f.Sections() {
		if s.Name() == ini.DefaultSection {
			continue
		}
		r := RawSection{Name: s.Name()}
		for _, k := range s.Keys() {
			r.Keys = append(r.Keys, RawKey{strings.ReplaceAll(k.Name(), "-", "_"), k.Value()})
		}
		out = append(out, r)
	}
	return out, nil
}

// expand puts environment variables in the place of ${NAME}.
func expand(value string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(value, "${")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", errors.New("a ${ without its }")
		}
		v, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		b.WriteString(v)
		value = after
	}
}
