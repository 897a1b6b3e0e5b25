package objstoretest

import (
	"slices"
	"strings"
)

// Limits are what a real server is known not to do and no volume asks of it.
// The zero value is the whole contract.
type Limits struct {
	// Tree: keys are paths of a file system. No key is another one's folder,
	// none ends with a slash, has an empty part or one of more than 255 bytes.
	Tree bool
	// TornOverwrites: who reads a key while others overwrite it may get an
	// error, an older body, or one that is no version's. The engine overwrites
	// nothing but the lease, whose document has a checksum; what keeps two
	// writers apart are create-only PUTs.
	TornOverwrites bool
	// UnclearRaces: a PUT that races with others for one key may fail with
	// ErrUnavailable, as any request of a network may. Whether it took effect is
	// unknown then; everything else about the race holds.
	UnclearRaces bool
}

// leavesOut says whether a test asks for more than the limits allow.
func (l Limits) leavesOut(name string) bool {
	return l.TornOverwrites && (name == "Get_WhileOverwritten" || name == "Put_IfVersion_Incrementers")
}

// keep leaves out the keys that a store with these limits can't hold beside
// each other.
func (l Limits) keep(keys []string) []string {
	if !l.Tree {
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		for part := range strings.SplitSeq(key, "/") {
			if part == "" || len(part) > 255 {
				return true
			}
		}
		return slices.ContainsFunc(keys, func(other string) bool { return strings.HasPrefix(other, key+"/") })
	})
}
