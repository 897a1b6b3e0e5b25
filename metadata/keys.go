package metadata

import (
	"fmt"
	"strconv"
	"strings"
)

// Keys of the documents of which a volume has one.
const (
	VolumeKey = "volume.json"
	LeaseKey  = "lease.json"
)

// Prefixes of the keys in the bucket, for listings.
const (
	CommitPrefix   = "commits/"
	ManifestPrefix = "manifests/"
	PagePrefix     = "manifests/pages/"
	SegmentPrefix  = "segments/"
	ObjectPrefix   = "objects/"
	PinPrefix      = "pins/"

	// AdoptedPrefix stands before the key of an object that was there before the
	// volume, and lies where VolumeDoc.Adopted says: nothing is stored under it.
	AdoptedPrefix = "adopted/"
)

// maxObjectPath is how many bytes of a file's path an object's key shows.
const maxObjectPath = 150

// maxPinName is how many bytes of a pin's name its key shows.
const maxPinName = 100

// CommitKey is where the commit or seal with this number lies.
func CommitKey(id CommitID) string { return CommitPrefix + numberedName(id) }

// EpochPrefix is the prefix of all commits and the seal of one epoch.
func EpochPrefix(epoch uint64) string { return fmt.Sprintf("%s%010d/", CommitPrefix, epoch) }

// ManifestKey is where the manifest as of a commit lies.
func ManifestKey(id CommitID) string { return ManifestPrefix + numberedName(id) }

// PageKey names a manifest's page: the manifest that it was first written for
// and the hex SHA-256 of its uncompressed bytes.
func PageKey(id CommitID, hash string) string {
	return fmt.Sprintf("%s%010d-%020d-%s", PagePrefix, id.Epoch, id.N, hash)
}

// SegmentKey names a segment by the LSNs that it covers; random makes it unique.
func SegmentKey(epoch, first, last uint64, random string) string {
	return fmt.Sprintf("%s%010d/%020d-%020d-%s.seg", SegmentPrefix, epoch, first, last, random)
}

// ObjectUUID makes an object's uuid: 12 hex digits of the epoch (modulo 2^48),
// then 80 random bits.
func ObjectUUID(epoch uint64, random [10]byte) string {
	e := fmt.Sprintf("%012x", epoch&(1<<48-1))
	return fmt.Sprintf("%s-%s-%x-%x-%x", e[:8], e[8:], random[:2], random[2:4], random[4:])
}

// ObjectKey names a slot's object in the manner of Storage Manager. offset and
// length are in bytes; path is the file's path when the object was born, for
// people only: cut to 150 bytes, unusual bytes replaced.
func ObjectKey(uuid string, offset, length int64, path string) string {
	path = strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "~")
	if len(path) > maxObjectPath {
		path = path[:maxObjectPath]
	}
	return fmt.Sprintf("%s%s_%d_%d_%s", ObjectPrefix, uuid, offset, length, plainName(path, true))
}

// PinKey names a pin. Unusual bytes of the name are replaced: Pin.Name is the
// name as it was given.
func PinKey(name, random string) string {
	if len(name) > maxPinName {
		name = name[:maxPinName]
	}
	return PinPrefix + plainName(name, false) + "~" + random + ".json"
}

// ParseCommitKey reads a key that CommitKey made.
func ParseCommitKey(key string) (CommitID, bool) {
	return parseNumberedName(key, CommitPrefix)
}

// ParseManifestKey reads a key that ManifestKey made.
func ParseManifestKey(key string) (CommitID, bool) {
	return parseNumberedName(key, ManifestPrefix)
}

// ParsePageKey returns the manifest that a page was first written for.
func ParsePageKey(key string) (CommitID, bool) {
	rest, ok := strings.CutPrefix(key, PagePrefix)
	if !ok {
		return CommitID{}, false
	}
	parts := strings.SplitN(rest, "-", 3)
	if len(parts) != 3 || parts[2] == "" {
		return CommitID{}, false
	}
	epoch, ok1 := parseDigits(parts[0], 10)
	n, ok2 := parseDigits(parts[1], 20)
	return CommitID{Epoch: epoch, N: n}, ok1 && ok2
}

// ManifestEpoch returns the epoch in the key of a manifest, or of one of its pages.
func ManifestEpoch(key string) (uint64, bool) {
	id, ok := ParsePageKey(key)
	if !ok {
		id, ok = ParseManifestKey(key)
	}
	return id.Epoch, ok
}

// SegmentEpoch returns the epoch in a segment's key.
func SegmentEpoch(key string) (uint64, bool) {
	rest, ok := strings.CutPrefix(key, SegmentPrefix)
	if !ok {
		return 0, false
	}
	epoch, name, ok := strings.Cut(rest, "/")
	if !ok || !strings.HasSuffix(name, ".seg") {
		return 0, false
	}
	return parseDigits(epoch, 10)
}

// ObjectEpoch returns the epoch in the key of an object under objects/.
func ObjectEpoch(key string) (uint64, bool) {
	rest, ok := strings.CutPrefix(key, ObjectPrefix)
	if !ok || len(rest) < 14 || rest[8] != '-' || rest[13] != '-' {
		return 0, false
	}
	e, err := strconv.ParseUint(rest[:8]+rest[9:13], 16, 64)
	return e, err == nil
}

// ParsePinKey splits a pin's key.
func ParsePinKey(key string) (name, random string, ok bool) {
	rest, ok := strings.CutPrefix(key, PinPrefix)
	if !ok {
		return "", "", false
	}
	rest, ok = strings.CutSuffix(rest, ".json")
	if !ok {
		return "", "", false
	}
	name, random, ok = strings.Cut(rest, "~")
	return name, random, ok && name != "" && random != ""
}

func numberedName(id CommitID) string { return fmt.Sprintf("%010d/%020d.json", id.Epoch, id.N) }

func parseNumberedName(key, prefix string) (CommitID, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return CommitID{}, false
	}
	rest, ok = strings.CutSuffix(rest, ".json")
	if !ok {
		return CommitID{}, false
	}
	e, n, ok := strings.Cut(rest, "/")
	if !ok {
		return CommitID{}, false
	}
	epoch, ok1 := parseDigits(e, 10)
	number, ok2 := parseDigits(n, 20)
	return CommitID{Epoch: epoch, N: number}, ok1 && ok2
}

// parseDigits reads a number written with at least width digits, and with more
// only when it needs them, so that each number has one spelling.
func parseDigits(s string, width int) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && s == fmt.Sprintf("%0*d", width, n)
}

func plainName(s string, tilde bool) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		case c == '~' && tilde:
		default:
			b[i] = '_'
		}
	}
	return string(b)
}
