package metadata

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestVolumeDoc_AncestorOf_EveryKindOfKey(t *testing.T) {
	doc := &VolumeDoc{ID: "c", Ancestors: []Ancestor{
		{Volume: "a", Through: CommitID{Epoch: 2, N: 40}, URL: "u", Place: "a"},
		{Volume: "b", Through: CommitID{Epoch: 5, N: 90}, URL: "u", Place: "a"},
	}}
	if doc.Base() != (CommitID{Epoch: 5, N: 90}) || doc.First() != (CommitID{Epoch: 6, N: 92}) {
		t.Errorf("base %v, first %v", doc.Base(), doc.First())
	}
	var random [10]byte
	object := func(epoch uint64) string { return ObjectKey(ObjectUUID(epoch, random), 0, 10, "x") }
	for _, c := range []struct {
		key  string
		want int
	}{
		{CommitKey(CommitID{Epoch: 1, N: 1}), 0}, {CommitKey(CommitID{Epoch: 2, N: 40}), 0},
		{CommitKey(CommitID{Epoch: 2, N: 41}), 1}, {CommitKey(CommitID{Epoch: 5, N: 90}), 1}, // 2/41 is b's seal
		{CommitKey(CommitID{Epoch: 5, N: 91}), -1}, {CommitKey(CommitID{Epoch: 6, N: 92}), -1},
		{ManifestKey(CommitID{Epoch: 2, N: 40}), 0}, {ManifestKey(CommitID{Epoch: 3, N: 50}), 1}, {ManifestKey(CommitID{Epoch: 7, N: 95}), -1},
		{PageKey(CommitID{Epoch: 2, N: 40}, "h"), 0}, {PageKey(CommitID{Epoch: 7, N: 95}, "h"), -1},
		{SegmentKey(2, 1, 2, "r"), 0}, {SegmentKey(5, 1, 2, "r"), 1}, {SegmentKey(6, 1, 2, "r"), -1},
		{object(1), 0}, {object(3), 1}, {object(6), -1},
		{VolumeKey, -1}, {LeaseKey, -1}, {ClaimKey, -1}, {DetachedKey, -1}, {PinKey("p", "r"), -1}, {"elsewhere", -1},
	} {
		if got := doc.AncestorOf(c.key); got != c.want {
			t.Errorf("%s: ancestor %d, want %d", c.key, got, c.want)
		}
		if got, want := doc.BornIn(c.key), []string{"c", "a", "b"}[c.want+1]; got != want {
			t.Errorf("%s: born in %s, want %s", c.key, got, want)
		}
	}
	plain := &VolumeDoc{ID: "v"}
	if plain.AncestorOf(object(1)) != -1 || plain.Base().N != 0 || plain.First().N != 0 {
		t.Error("a volume that is no clone has an ancestor")
	}
}

func TestDecodeVolume_BadAncestors(t *testing.T) {
	good := Ancestor{Volume: "a", Through: CommitID{Epoch: 2, N: 40}, URL: "u", Place: "p"}
	for name, change := range map[string]func(a *Ancestor){
		"no volume": func(a *Ancestor) { a.Volume = "" }, "no URL": func(a *Ancestor) { a.URL = "" }, "no place": func(a *Ancestor) { a.Place = "" },
		"number": func(a *Ancestor) { a.Through.N = 40 }, "epoch": func(a *Ancestor) { a.Through.Epoch = 2 },
	} {
		bad := good
		bad.Through = CommitID{Epoch: 3, N: 50}
		change(&bad)
		doc := &VolumeDoc{ID: "c", ObjectSize: 4096, Ancestors: []Ancestor{good, bad}}
		if _, err := DecodeVolume(EncodeVolume(doc)); !errors.Is(err, ErrDamaged) || !strings.Contains(fmt.Sprint(err), "ancestor 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
