package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// crashLedger writes blocks with fsync from several goroutines, and knows what was
// acknowledged. A block of crashBlock bytes is
//
//	| number 8B | time 8B, ns | noise | crc32c of all before 4B |
//
// little endian; number n of a writer is at n modulo crashPlaces.
type crashLedger struct {
	dir     string
	writers [crashWriters]crashWriter
}

type crashWriter struct {
	acked [crashPlaces]uint64 // the last number whose fsync returned, by place
	next  uint64              // from 1 on
}

const (
	crashBlock   = 16 << 10
	crashPlaces  = 2048
	crashWriters = 4
)

func (l *crashLedger) name(w int) string { return filepath.Join(l.dir, fmt.Sprintf("w%d.dat", w)) }

func crashTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// write goes on until the files fail, as they do when their mount dies, or stop is
// closed.
func (l *crashLedger) write(stop <-chan struct{}) {
	var group sync.WaitGroup
	for w := range l.writers {
		group.Go(func() { l.writeOne(w, stop) })
	}
	group.Wait()
}

func (l *crashLedger) writeOne(w int, stop <-chan struct{}) {
	f, err := os.OpenFile(l.name(w), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return // the mount is dead
	}
	defer f.Close()
	me := &l.writers[w]
	block := noise(crashBlock)
	for {
		select {
		case <-stop:
			return
		default:
		}
		me.next++
		n := me.next
		binary.LittleEndian.PutUint64(block, n)
		binary.LittleEndian.PutUint64(block[8:], uint64(time.Now().UnixNano()))
		binary.LittleEndian.PutUint32(block[crashBlock-4:], crc32.Checksum(block[:crashBlock-4], crashTable()))
		place := n % crashPlaces
		if _, err := f.WriteAt(block, int64(place)*crashBlock); err != nil {
			return
		}
		if err := f.Sync(); err != nil {
			return
		}
		me.acked[place] = n
	}
}

// verify reads all blocks. lost is how many that were acknowledged are older than
// that, newest the time of the last one that is there. A block that is not whole is
// an error. What is there counts as acknowledged afterwards.
func (l *crashLedger) verify() (lost int, newest time.Time, err error) {
	for w := range l.writers {
		me := &l.writers[w]
		b, err := os.ReadFile(l.name(w))
		if errors.Is(err, os.ErrNotExist) {
			b, err = nil, nil
		}
		if err != nil {
			return lost, newest, err
		}
		for place := range me.acked {
			n, at, err := readCrashBlock(b, place)
			if err != nil {
				return lost, newest, fmt.Errorf("%s: %w", l.name(w), err)
			}
			if n < me.acked[place] {
				lost++
			}
			me.acked[place] = n
			if at.After(newest) {
				newest = at
			}
		}
	}
	return lost, newest, nil
}

// readCrashBlock returns the number and time of a block; 0 where there is none.
func readCrashBlock(b []byte, place int) (n uint64, at time.Time, err error) {
	if len(b) <= place*crashBlock {
		return 0, at, nil
	}
	p := b[place*crashBlock:]
	p = p[:min(len(p), crashBlock)]
	if len(bytes.Trim(p, "\x00")) == 0 {
		return 0, at, nil
	}
	if len(p) < crashBlock || crc32.Checksum(p[:crashBlock-4], crashTable()) != binary.LittleEndian.Uint32(p[crashBlock-4:]) {
		return 0, at, fmt.Errorf("block %d is not whole", place)
	}
	return binary.LittleEndian.Uint64(p), time.Unix(0, int64(binary.LittleEndian.Uint64(p[8:]))), nil
}
