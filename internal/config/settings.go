package config

import (
	"errors"
	"fmt"
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
// only are not settings: neither the environment nor the file may give them.
func Apply(flags *pflag.FlagSet, lookup func(string) (string, bool), path string, text []byte, section string, only ...string) error {
	file, err := readSection(path, text, section, lookup)
	if err != nil {
		return err
	}
	var first error
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
		case first != nil || f.Changed:
		case inEnv:
			if err := flags.Set(f.Name, fromEnv); err != nil {
				first = fmt.Errorf("%s=%q in the environment: %w", variable, fromEnv, reason(err))
			}
		case inFile:
			if err := flags.Set(f.Name, value); err != nil {
				first = fmt.Errorf("%s: [%s] %s = %q: %w", path, section, key, value, reason(err))
			}
		}
	})
	if first != nil {
		return first
	}
	for key, value := range file {
		if !used[key] {
			return fmt.Errorf("%s: [%s] %s = %q: there is no such setting", path, section, key, value)
		}
	}
	return nil
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
func Section(path string, text []byte, section string, keys []string, lookup func(string) (string, bool)) (map[string]string, error) {
	file, err := readSection(path, text, section, lookup)
	if err != nil {
		return nil, err
	}
	for key := range file {
		if !slices.Contains(keys, key) {
			return nil, fmt.Errorf("%s: [%s] %s: there is no such setting", path, section, key)
		}
	}
	return file, nil
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

// readSection returns a section's keys, with _ between their words.
func readSection(path string, text []byte, section string, lookup func(string) (string, bool)) (map[string]string, error) {
	keys := map[string]string{}
	if path == "" {
		return keys, nil
	}
	f, err := load(path, text)
	if err != nil {
		return nil, err
	}
	for _, s := range f.Sections() {
		if s.Name() == ini.DefaultSection && len(s.Keys()) == 0 {
			continue
		}
		if !slices.Contains(sections(), s.Name()) {
			return nil, fmt.Errorf("%s: section [%s] is not known: write settings under [%s]", path, s.Name(), strings.Join(sections(), "], ["))
		}
		if s.Name() != section {
			continue
		}
		for _, k := range s.Keys() {
			name := strings.ReplaceAll(k.Name(), "-", "_")
			if _, twice := keys[name]; twice {
				return nil, fmt.Errorf("%s: [%s] %s = %q: it is set twice", path, section, name, k.String())
			}
			if keys[name], err = expand(k.Value(), lookup); err != nil {
				return nil, fmt.Errorf("%s: [%s] %s: %w", path, section, name, err)
			}
		}
	}
	return keys, nil
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
