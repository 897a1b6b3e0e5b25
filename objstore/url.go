package objstore

import (
	"fmt"
	"path"
	"strings"
)

// The schemes that a URL can have.
const (
	SchemeFile = "file"
	SchemeS3   = "s3"
	SchemeGCS  = "gs"
)

// URL names a volume, or a point in its history:
//
//	file:///dir[@point]   s3://bucket/prefix[@point]   gs://bucket/prefix[@point]
//
// It is cut into its parts and nothing more: percent signs stand for
// themselves, as they do in keys.
type URL struct {
	Scheme string // SchemeFile, SchemeS3 or SchemeGCS
	Bucket string // empty for SchemeFile
	// Path is a clean absolute path for SchemeFile, a prefix without slashes
	// at its ends otherwise.
	Path string
	// Point is what follows the last @ after the last slash: a snapshot's
	// name, a commit's number, a time; empty for the present.
	Point string
}

// ParseURL cuts s into its parts. Its errors say what is wrong and how it
// should look.
func ParseURL(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return URL{}, fmt.Errorf("%q is not a volume's URL: expected s3://bucket/prefix, gs://bucket/prefix or file:///dir", s)
	}
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return URL{}, fmt.Errorf("URL %q contains a control character", s)
	}
	u := URL{Scheme: scheme}
	if i := strings.LastIndexByte(rest, '@'); i > strings.LastIndexByte(rest, '/') {
		rest, u.Point = rest[:i], rest[i+1:]
		if u.Point == "" {
			return URL{}, fmt.Errorf("URL %q ends with @ but names no point: expected a snapshot, a commit's number or a time after it", s)
		}
	}
	switch scheme {
	case SchemeFile:
		return u.withFile(s, rest)
	case SchemeS3, SchemeGCS:
		return u.withBucket(s, rest)
	default:
		return URL{}, fmt.Errorf("URL %q has the unknown scheme %q: expected s3, gs or file", s, scheme)
	}
}

func (u URL) withFile(s, rest string) (URL, error) {
	if !strings.HasPrefix(rest, "/") {
		return URL{}, fmt.Errorf("URL %q does not name an absolute directory: expected file:///dir, with three slashes", s)
	}
	u.Path = path.Clean(rest)
	if u.Path == "/" {
		return URL{}, fmt.Errorf("URL %q names the root directory, which can't be a volume", s)
	}
	return u, nil
}

func (u URL) withBucket(s, rest string) (URL, error) {
	bucket, prefix, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return URL{}, fmt.Errorf("URL %q names no bucket: expected %s://bucket/prefix", s, u.Scheme)
	}
	if strings.ContainsAny(bucket, "?#:@ \\%") {
		return URL{}, fmt.Errorf("URL %q: %q is not a bucket's name", s, bucket)
	}
	u.Bucket, u.Path = bucket, strings.Trim(prefix, "/")
	for seg := range strings.SplitSeq(u.Path, "/") {
		if seg == "." || seg == ".." || seg == "" && u.Path != "" {
			return URL{}, fmt.Errorf("URL %q: the prefix %q contains an empty, . or .. segment", s, u.Path)
		}
	}
	return u, nil
}

// String returns the URL in the form that ParseURL reads.
func (u URL) String() string {
	s := u.Scheme + "://" + u.Bucket
	if u.Scheme != SchemeFile && u.Path != "" {
		s += "/"
	}
	s += u.Path
	if u.Point != "" {
		s += "@" + u.Point
	}
	return s
}

// Parent returns the directory or prefix above; false where there is none that could
// be a volume's.
func (u URL) Parent() (URL, bool) {
	p := URL{Scheme: u.Scheme, Bucket: u.Bucket, Path: path.Dir(u.Path)}
	if u.Path == "" || u.Scheme == SchemeFile && p.Path == "/" {
		return URL{}, false
	}
	if p.Path == "." {
		p.Path = "" // the bucket
	}
	return p, true
}

// Child returns what lies below at a path without slashes at its ends.
func (u URL) Child(name string) URL {
	return URL{Scheme: u.Scheme, Bucket: u.Bucket, Path: path.Join(u.Path, name)}
}

// Prefix returns what every key of the volume begins with inside its bucket:
// Path with a slash at its end, or nothing. It is empty for SchemeFile, whose
// whole directory is the bucket.
func (u URL) Prefix() string {
	if u.Scheme == SchemeFile || u.Path == "" {
		return ""
	}
	return u.Path + "/"
}
