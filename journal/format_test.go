package journal

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

var update = flag.Bool("update", false, "write testdata/v1 anew; only while the format is not released")

// counter is a source of random bytes that counts.
type counter byte

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		*c++
		p[i] = byte(*c)
	}
	return len(p), nil
}

// goldenOptions make the same bytes every time.
func goldenOptions() Options {
	o := bigOptions()
	o.Rand = new(counter)
	return o
}

// buildGolden writes a journal of two epochs, a jump of LSNs and all shapes of
// entries, and returns its disk.
func buildGolden(t *testing.T) *vfs.Mem {
	disk := newDisk(t)
	j := start(t, disk, goldenOptions())
	_, _, err := j.Append(nil, Entry{Op: 1, Body: []byte("body"), Data: []byte("data")}, Entry{Op: 2}, Entry{Op: 255, Data: []byte("only data")})
	must(t, err)
	syncAll(t, j)
	_, _, err = j.Append(nil, Entry{Op: 3, Body: []byte("only body")})
	must(t, err)
	must(t, j.Close())
	o := goldenOptions()
	*o.Rand.(*counter) = 100
	j, err = Open(disk, testDir, o)
	must(t, err)
	_, _, err = replayAll(j, 0, 0)
	must(t, err)
	must(t, j.Start(7, 10))
	_, _, err = j.Append(nil, Entry{Op: 4, Body: []byte("second epoch"), Data: bytes.Repeat([]byte("x"), 100)})
	must(t, err)
	must(t, j.Close())
	return disk
}

// hexLines are a file's bytes without the zeros at its end, 32 a line.
func hexLines(b []byte) string {
	b = bytes.TrimRight(b, "\x00")
	var s strings.Builder
	for off := 0; off < len(b); off += 32 {
		line := b[off:min(len(b), off+32)]
		if len(bytes.TrimLeft(line, "\x00")) > 0 {
			fmt.Fprintf(&s, "%06x %s\n", off, hex.EncodeToString(line))
		}
	}
	return s.String()
}

func fromHexLines(t *testing.T, s string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	for line := range strings.Lines(s) {
		var off int
		var digits string
		_, err := fmt.Sscanf(line, "%x %s", &off, &digits)
		must(t, err)
		_, err = hex.Decode(b[off:], []byte(digits))
		must(t, err)
	}
	return b
}

func TestFormat_Golden_WriterGivesTheBytesOfV1(t *testing.T) {
	disk := buildGolden(t)
	for _, name := range append(names(t, disk, inUse), syncedName) {
		got := hexLines(readAll(t, disk, name))
		path := filepath.Join("testdata", "v1", name+".hex")
		if *update {
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		must(t, err)
		if got != string(want) {
			t.Errorf("%s: the bytes differ from those of version 1:\n%s", name, got)
		}
	}
}

func TestFormat_Golden_V1Opens(t *testing.T) {
	disk := newDisk(t)
	must(t, disk.MkdirAll(testDir, 0o700))
	list, err := filepath.Glob("testdata/v1/*.jnl.hex")
	must(t, err)
	if len(list) != 2 {
		t.Fatalf("%d golden files", len(list))
	}
	for _, path := range list {
		text, err := os.ReadFile(path)
		must(t, err)
		writeAll(t, disk, strings.TrimSuffix(filepath.Base(path), ".hex"), fromHexLines(t, string(text), 16<<10))
	}
	j, err := Open(disk, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, 10)
	must(t, err)
	want := []seen{
		{1, 1, Entry{1, []byte("body"), []byte("data")}, Loc{}},
		{2, 1, Entry{2, nil, nil}, Loc{}},
		{3, 1, Entry{255, nil, []byte("only data")}, Loc{}},
		{4, 1, Entry{3, []byte("only body"), nil}, Loc{}},
		{10, 7, Entry{4, []byte("second epoch"), bytes.Repeat([]byte("x"), 100)}, Loc{}},
	}
	if len(records) != len(want) || info.Torn || info.Epoch != 7 || info.Durable != 10 {
		t.Fatalf("%d records, %+v", len(records), info)
	}
	for i, w := range want {
		if records[i].lsn != w.lsn || records[i].epoch != w.epoch || sameEntry(records[i].entry, w.entry) != nil {
			t.Errorf("record %d is %+v, want %+v", i, records[i], w)
		}
	}
}

func TestDump_ShowsWholeAndDamagedFiles(t *testing.T) {
	disk := buildGolden(t)
	list := names(t, disk, inUse)
	count := func() map[DumpKind]int {
		kinds := map[DumpKind]int{}
		must(t, Dump(disk, testDir, func(i DumpItem) error {
			kinds[i.Kind]++
			if i.Kind == DumpDamage && i.Reason == "" {
				t.Error("damage without a reason")
			}
			return nil
		}))
		return kinds
	}
	if k := count(); k[DumpFile] != 2 || k[DumpRecord] != 5 || k[DumpGroup] != 5 || k[DumpDamage] != 0 || k[DumpSynced] != 1 {
		t.Errorf("whole journal: %v", k)
	}
	whole := readAll(t, disk, list[0])
	b := append([]byte(nil), whole...)
	b[headerSize+70] ^= 1 // in the first group
	writeAll(t, disk, list[0], b)
	if k := count(); k[DumpFile] != 2 || k[DumpRecord] != 2 || k[DumpDamage] != 1 {
		t.Errorf("damaged group: %v", k)
	}
	whole[20] ^= 1 // in the header
	writeAll(t, disk, list[0], whole)
	if k := count(); k[DumpFile] != 1 || k[DumpRecord] != 5 || k[DumpDamage] != 1 {
		t.Errorf("damaged header: %v", k)
	}
	boom := fmt.Errorf("stop")
	if err := Dump(disk, testDir, func(DumpItem) error { return boom }); err != boom {
		t.Errorf("dump whose callback fails: %v", err)
	}
}

func TestDecodeSynced_Golden_V1(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "v1", syncedName+".hex"))
	must(t, err)
	s, err := decodeSynced(fromHexLines(t, string(text), syncedSize))
	if err != nil || s.identity != testIdentity || s.durable != 10 {
		t.Errorf("the file of version 1 gives %+v, %v", s, err)
	}
}

// encodeGroup builds a group as the journal does.
func encodeGroup(h groupHeader, entries []Entry) []byte {
	b := make([]byte, groupSize(entries))
	putEntries(b, entries, func(int, int, uint32) {})
	h.count = uint32(len(entries))
	seal(b, h)
	return b
}

// FuzzParseGroup: whatever parses is exactly what encoding its content gives,
// also after the checksum was made to fit.
func FuzzParseGroup(f *testing.F) {
	f.Add(encodeGroup(groupHeader{first: 1, epoch: 1, incarnation: 7}, nil))
	f.Add(encodeGroup(groupHeader{first: 5, durable: 4, prev: 9}, []Entry{testEntry(1, 100)}))
	f.Add(encodeGroup(groupHeader{first: 5}, []Entry{{Op: 1, Body: []byte("b")}, {Op: 2, Data: []byte("d")}, {}}))
	f.Add(append(encodeGroup(groupHeader{first: 5}, []Entry{{Op: 1}}), "tail"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		checkParse(t, b)
		if len(b) < groupHeaderSize {
			return
		}
		fixed := append([]byte(nil), b...)
		copy(fixed, groupMagic)
		if n := le.Uint32(fixed[8:]); n >= groupHeaderSize && int64(n) <= int64(len(fixed)) {
			le.PutUint32(fixed[4:], checksum(fixed[8:n]))
		}
		checkParse(t, fixed)
		findGroups(fixed, 0, le.Uint64(fixed[24:]), 0, func(off int64, h groupHeader) {
			if off+int64(h.length) > int64(len(fixed)) {
				t.Fatalf("group at %d of %d bytes in %d", off, h.length, len(fixed))
			}
		})
	})
}

func checkParse(t *testing.T, b []byte) {
	h, err := parseGroup(b)
	if err != nil {
		return
	}
	var entries []Entry
	_, err = eachEntry(b[:h.length], h.count, func(e Entry, dataOff int, crc uint32) error {
		entries = append(entries, e)
		return nil
	})
	must(t, err)
	again, err := parseGroup(encodeGroup(h, entries))
	must(t, err)
	again.crc, h.crc = 0, 0 // bytes that mean nothing may differ
	if again != h {
		t.Fatalf("parsed %+v, encoded again %+v", h, again)
	}
}

func FuzzDecodeHeader(f *testing.F) {
	b, _ := (&fileHeader{incarnation: 3, seq: 1, epoch: 2, first: 10, after: 9, durable: 8, size: 16 << 10}).encode()
	f.Add(b)
	f.Add(b[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= headerSize {
			b = append([]byte(nil), b[:headerSize]...)
			copy(b, fileMagic)
			le.PutUint32(b[8:], checksum(b[12:]))
		}
		h, _, err := decodeHeader(b)
		if err == nil && (h.first == 0 || h.after >= h.first || h.size < headerSize) {
			t.Fatalf("decoded %+v", h)
		}
	})
}
