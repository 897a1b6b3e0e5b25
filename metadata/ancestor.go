package metadata

import (
	"slices"
)

// Keys of the documents that only a clone has.
const (
	// ClaimKey holds what volume.json will be: it claims the prefix for one clone
	// and lets a later process go on with it.
	ClaimKey = "clone.json"
	// DetachedKey holds a Detached once the clone has copies of all that it shared.
	DetachedKey = "detached.json"
)

// Ancestor is a volume of which a clone's history goes on: all keys of commits
// up to Through, and of epochs up to its epoch, that no earlier ancestor has.
// A body under such a key was born in Volume, whatever volume holds it now.
type Ancestor struct {
	Volume  string   // id
	Through CommitID // the last commit that the clone's path shares with it
	URL     string   // of the volume that holds the bodies
	Place   string   // id of the volume at URL
}

// Base returns the commit after which a clone's own path begins; zero for a
// volume that is no clone.
func (v *VolumeDoc) Base() CommitID {
	if len(v.Ancestors) == 0 {
		return CommitID{}
	}
	return v.Ancestors[len(v.Ancestors)-1].Through
}

// Parent returns the volume that a clone was made of, as its identity says; zero for
// a volume that is no clone.
func (v *VolumeDoc) Parent() Ancestor {
	if len(v.Ancestors) == 0 {
		return Ancestor{}
	}
	return v.Ancestors[len(v.Ancestors)-1]
}

// First returns a clone's own first commit: a seal stands between it and Base.
// Zero for a volume that is no clone.
func (v *VolumeDoc) First() CommitID {
	b := v.Base()
	if b.N == 0 {
		return CommitID{}
	}
	return CommitID{Epoch: b.Epoch + 1, N: b.N + 2}
}

// BornIn returns the id of the volume in which the body under a key was born.
func (v *VolumeDoc) BornIn(key string) string {
	if i := v.AncestorOf(key); i >= 0 {
		return v.Ancestors[i].Volume
	}
	return v.ID
}

// AncestorOf returns which of Ancestors a key is of; -1: it is the volume's own.
// Commits, manifests and pages belong by the commit's number, which runs on
// across epochs; objects and segments by their epoch.
func (v *VolumeDoc) AncestorOf(key string) int {
	if len(v.Ancestors) == 0 {
		return -1
	}
	if n, ok := keyCommit(key); ok {
		return slices.IndexFunc(v.Ancestors, func(a Ancestor) bool { return n <= a.Through.N })
	}
	if e, ok := keyEpoch(key); ok {
		return slices.IndexFunc(v.Ancestors, func(a Ancestor) bool { return e <= a.Through.Epoch })
	}
	return -1
}

// keyCommit returns the number of the commit that a document's key names.
func keyCommit(key string) (uint64, bool) {
	for _, parse := range []func(string) (CommitID, bool){ParseCommitKey, ParseManifestKey, ParsePageKey} {
		if id, ok := parse(key); ok {
			return id.N, true
		}
	}
	return 0, false
}

// keyEpoch returns the epoch in the key of an object or a segment.
func keyEpoch(key string) (uint64, bool) {
	if e, ok := SegmentEpoch(key); ok {
		return e, true
	}
	return ObjectEpoch(key)
}

type ancestorDoc struct {
	Volume  string `json:"volume"`
	Through *idDoc `json:"through"`
	URL     text   `json:"url"`
	Place   string `json:"place"`
}

func newAncestorDocs(list []Ancestor) []ancestorDoc {
	return mapped(list, func(a Ancestor) ancestorDoc {
		return ancestorDoc{Volume: a.Volume, Through: newIDDoc(a.Through), URL: text(a.URL), Place: a.Place}
	})
}

// ancestors reads the list of a volume's document: in the order of their commits.
func ancestors(docs []ancestorDoc) ([]Ancestor, error) {
	var last CommitID
	list := mapped(docs, func(d ancestorDoc) Ancestor {
		return Ancestor{Volume: d.Volume, Through: d.Through.id(), URL: string(d.URL), Place: d.Place}
	})
	for i, a := range list {
		if a.Volume == "" || a.URL == "" || a.Place == "" || a.Through.N <= last.N || a.Through.Epoch <= last.Epoch {
			return nil, damaged("volume", "ancestor %d is volume %q at %q in %q, through commit %v after %v", i, a.Volume, a.URL, a.Place, a.Through, last)
		}
		last = a.Through
	}
	return list, nil
}

// Detached says that a clone has copies of all that it shared with others.
type Detached struct {
	Volume string // the clone's id
	Time   int64  // nanoseconds since 1970
}

type detachedDoc struct {
	docHead
	Volume string `json:"volume"`
	Time   snum   `json:"time"`
}

// EncodeDetached returns the document.
func EncodeDetached(d *Detached) []byte {
	return sealDoc(detachedDoc{docHead: docHead{Kind: "detached", V: formatVersion}, Volume: d.Volume, Time: snum(d.Time)})
}

// DecodeDetached verifies and reads the document: ErrDamaged, ErrNewerFormat.
func DecodeDetached(body []byte) (*Detached, error) {
	var d detachedDoc
	if err := openDoc(body, "detached", &d); err != nil {
		return nil, err
	}
	return &Detached{Volume: d.Volume, Time: int64(d.Time)}, nil
}
