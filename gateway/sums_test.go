package gateway

import (
	"math/rand/v2"
	"testing"

	"github.com/cisternfs/cistern/metadata"
)

// The checksum of a whole is that of its blocks joined, whatever the last one's length.
func TestJoinedSum_AnyLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	whole := fill(rng, 5*metadata.BlockSize)
	lengths := []int{0, 1, 7, metadata.BlockSize - 1, metadata.BlockSize, metadata.BlockSize + 1, len(whole)}
	for range 50 {
		lengths = append(lengths, rng.IntN(len(whole)))
	}
	for _, n := range lengths {
		if got, want := joinedSum(blockSums(whole[:n]), n), checksum(whole[:n]); got != want {
			t.Errorf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
}

// Checksums are taken over from references only where these have that very block: of
// pieces and references of any shape those of the slot come out.
func TestKnownSums_ReferencesOfAnyShape(t *testing.T) {
	const block = metadata.BlockSize
	rng := rand.New(rand.NewPCG(3, 4))
	content := fill(rng, 20*block) // the file from 0 on
	taken := 0
	for range 300 {
		start := int64(rng.IntN(4)) * 4 * block
		length := int64(1 + rng.IntN(4*block))
		if rng.IntN(2) == 0 {
			length = 4 * block
		}
		var pieces []span
		for at := start; at < start+length; {
			end := min(start+length, at+int64(1+rng.IntN(2*block)))
			if rng.IntN(2) == 0 {
				end = min(start+length, (at/block+1+int64(rng.IntN(3)))*block)
			}
			p := piece{kind: pieceData}
			if rng.IntN(4) > 0 {
				// A reference may have begun before the piece and end behind it.
				from, to := at-int64(rng.IntN(2*block)), end+int64(rng.IntN(2*block))
				if rng.IntN(2) == 0 {
					from, to = at/block*block, (end+block-1)/block*block
				}
				from, to = max(from, 0), min(to, int64(len(content)))
				w := &write{p: content[from:to], off: from, staged: rng.IntN(2) == 0}
				op := &refOp{off: from, length: to - from, staged: w.staged, sums: w.sums()}
				if !op.fits() {
					t.Fatalf("%d checksums of %d bytes at %d", len(op.sums), op.length, op.off)
				}
				p = piece{kind: pieceRef, ref: op.reference(1)}
			}
			pieces = append(pieces, span{off: at, end: end, piece: p})
			at = end
		}
		known := knownSums(pieces, start, length)
		buf := content[start : start+length]
		got, want := blockSumsKnowing(buf, known), blockSums(buf)
		for i := range want {
			if known[i].ok {
				taken++
			}
			if got[i] != want[i] {
				t.Fatalf("slot at %d of %d bytes, pieces %+v: block %d has %08x, want %08x", start, length, pieces, i, got[i], want[i])
			}
		}
	}
	if taken < 100 {
		t.Errorf("only %d checksums were taken over", taken)
	}
}

// What was written by reference in whole blocks is stored with the checksums that the
// references have; the bucket's bytes match them.
func TestVolume_Commit_ChecksumsOfReferences(t *testing.T) {
	l := newLab(t, 1, 512<<10)
	v := l.mustMount(nil)
	f := files{}
	f.put(t, v, "aligned", l.noise(1<<20), 0)
	f.put(t, v, "patched", l.noise(1<<20), 0)
	f.put(t, v, "patched", l.noise(10), 200000) // over a reference: it stays in the journal
	f.put(t, v, "shifted", l.noise(100), 0)
	f.put(t, v, "shifted", l.noise(1<<20), 100)
	f.put(t, v, "tail", l.noise(300<<10), 0)
	mustCommit(t, v)
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
	wantCheckClean(t, v)
	mustClose(t, v)
}
