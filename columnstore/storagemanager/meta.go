package storagemanager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrDamaged marks metadata and journals that are not what they should be.
var ErrDamaged = errors.New("damaged")

// MetaSuffix ends the names of metadata files.
const MetaSuffix = ".meta"

// MaxMeta bounds a metadata file in bytes: some 500,000 objects.
const MaxMeta = 128 << 20

// MaxObject bounds an object in bytes. Storage Manager takes any object_size; its
// default is 5 MiB.
const MaxObject = 256 << 20

// Meta is a file's metadata: its objects, ascending by offset.
type Meta struct {
	Objects []Object
}

// Object is a piece of a file.
type Object struct {
	Offset int64 // in the file, bytes
	Length int64 // of the file that it is, bytes
	Key    string
}

// Size returns the file's size in bytes.
func (m *Meta) Size() int64 {
	if len(m.Objects) == 0 {
		return 0
	}
	last := m.Objects[len(m.Objects)-1]
	return last.Offset + last.Length
}

// ParseMeta reads a metadata file. ErrDamaged: it is no JSON, lacks a value, has
// one that is no number, or objects that overlap.
func ParseMeta(body []byte) (*Meta, error) {
	var doc struct {
		Version string          `json:"version"`
		Objects json.RawMessage `json:"objects"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON document: %w", ErrDamaged, err)
	}
	if doc.Version != "1" {
		return nil, fmt.Errorf("%w: version %q; only version 1 is known", ErrDamaged, doc.Version)
	}
	m := &Meta{}
	if bytes.Equal(bytes.TrimSpace(doc.Objects), []byte(`""`)) {
		return m, nil
	}
	var list []struct{ Offset, Length, Key string }
	if err := json.Unmarshal(doc.Objects, &list); err != nil {
		return nil, fmt.Errorf("%w: its list of objects does not parse", ErrDamaged)
	}
	end := int64(0)
	for i, o := range list {
		off, err := strconv.ParseUint(o.Offset, 10, 62)
		n, nerr := strconv.ParseUint(o.Length, 10, 62)
		switch {
		case err != nil || nerr != nil:
			return nil, fmt.Errorf("%w: object %d has offset %q and length %q", ErrDamaged, i, o.Offset, o.Length)
		case n > MaxObject:
			return nil, fmt.Errorf("%w: object %d has a length of %d bytes", ErrDamaged, i, n)
		case o.Key == "" || strings.ContainsAny(o.Key, "/\x00"):
			return nil, fmt.Errorf("%w: object %d has the key %q", ErrDamaged, i, o.Key)
		case int64(off) < end:
			return nil, fmt.Errorf("%w: object %d begins at %d, before the end of the one before it", ErrDamaged, i, off)
		}
		m.Objects = append(m.Objects, Object{int64(off), int64(n), o.Key})
		end = int64(off + n)
	}
	return m, nil
}

// Encode writes the metadata as Storage Manager does.
func (m *Meta) Encode() []byte {
	var b bytes.Buffer
	b.WriteString("{\n    \"version\": \"1\",\n    \"revision\": \"1\",\n    \"objects\": ")
	if len(m.Objects) == 0 {
		b.WriteString("\"\"\n}\n")
		return b.Bytes()
	}
	b.WriteString("[\n")
	for i, o := range m.Objects {
		fmt.Fprintf(&b, "        {\n            \"offset\": \"%d\",\n            \"length\": \"%d\",\n            \"key\": %s\n        }", o.Offset, o.Length, quote(o.Key))
		if i < len(m.Objects)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("    ]\n}\n")
	return b.Bytes()
}

// quote writes a JSON string and leaves <, > and & as they are.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string into a buffer can't fail
	return strings.TrimSuffix(b.String(), "\n")
}

// Key makes an object's key. path begins with the prefix.
func Key(uuid string, offset, length int64, path string) string {
	return fmt.Sprintf("%s_%d_%d_%s", uuid, offset, length, strings.ReplaceAll(path, "/", "~"))
}

// KeyPrefix returns the prefix (data1, data2, …) in an object's key; false: it is
// no such key.
func KeyPrefix(key string) (string, bool) {
	part := strings.SplitN(key, "_", 4)
	if len(part) != 4 || len(part[0]) != 36 {
		return "", false
	}
	for _, n := range part[1:3] {
		if _, err := strconv.ParseUint(n, 10, 62); err != nil {
			return "", false
		}
	}
	prefix, _, _ := strings.Cut(part[3], "~")
	return prefix, prefix != ""
}
