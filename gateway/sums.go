package gateway

import (
	"hash/crc32"

	"github.com/cisternfs/cistern/metadata"
)

// blockSums gives the CRC32C of each BlockSize piece of p.
func blockSums(p []byte) []uint32 { return blockSumsKnowing(p, nil) }

// knownSum is the CRC32C of a block that was verified already, if ok.
type knownSum struct {
	sum uint32
	ok  bool
}

// blockSumsKnowing is blockSums where some are known; known may be shorter.
func blockSumsKnowing(p []byte, known []knownSum) []uint32 {
	sums := make([]uint32, 0, (len(p)+metadata.BlockSize-1)/metadata.BlockSize)
	for len(p) > 0 {
		n := min(len(p), metadata.BlockSize)
		if i := len(sums); i < len(known) && known[i].ok {
			sums = append(sums, known[i].sum)
		} else {
			sums = append(sums, checksum(p[:n]))
		}
		p = p[n:]
	}
	return sums
}

// knownSums are the checksums of a slot's blocks that are each one whole block of a
// reference: who reads the pieces verifies them. The slot has bytes [start,
// start+length) of the file.
func knownSums(pieces []span, start, length int64) []knownSum {
	known := make([]knownSum, (length+metadata.BlockSize-1)/metadata.BlockSize)
	for _, s := range pieces {
		r := s.piece.ref
		if s.piece.kind != pieceRef || (r.origin-start)%metadata.BlockSize != 0 {
			continue // their blocks don't line up
		}
		first := (s.off - start + metadata.BlockSize - 1) / metadata.BlockSize
		for i := first; i < int64(len(known)); i++ {
			from := start + i*metadata.BlockSize
			to := min(from+metadata.BlockSize, start+length)
			if to > s.end {
				break
			}
			if lo, hi := r.bounds(r.piece(from)); lo == from && hi == to {
				known[i] = knownSum{r.sums[r.piece(from)], true}
			}
		}
	}
	return known
}

// joinedSum is the CRC32C of length bytes of which each block's is known: one pass less
// over them. (zlib, crc32_combine: what n zero bytes make of a CRC is linear.)
func joinedSum(sums []uint32, length int) uint32 {
	if len(sums) == 0 {
		return 0
	}
	whole := zerosBehind(metadata.BlockSize)
	sum := sums[0]
	for i, next := range sums[1:] {
		behind := &whole
		if last := length - (i+1)*metadata.BlockSize; last < metadata.BlockSize {
			m := zerosBehind(last)
			behind = &m
		}
		sum = behind.times(sum) ^ next
	}
	return sum
}

// zeros is a matrix over GF(2), a column for each bit of a CRC.
type zeros [32]uint32

// zerosBehind is what n zero bytes behind some bytes make of their CRC32C; n is 1 or
// more.
func zerosBehind(n int) (m zeros) {
	// One zero bit: a shift, and the polynomial for the bit that falls out.
	var power zeros
	power[0] = crc32.Castagnoli
	for i := 1; i < len(power); i++ {
		power[i] = 1 << (i - 1)
	}
	for range 3 {
		power = power.after(&power)
	}
	begun := false
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			if begun {
				m = power.after(&m)
			} else {
				m, begun = power, true
			}
		}
		power = power.after(&power)
	}
	return m
}

func (m *zeros) times(sum uint32) (r uint32) {
	for i := 0; sum != 0; i, sum = i+1, sum>>1 {
		if sum&1 != 0 {
			r ^= m[i]
		}
	}
	return r
}

// after is what both make of a CRC, m the last.
func (m *zeros) after(first *zeros) (both zeros) {
	for i := range first {
		both[i] = m.times(first[i])
	}
	return both
}
