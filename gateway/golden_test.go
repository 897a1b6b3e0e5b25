package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// goldenOps are what the bodies in testdata/v1/ops.txt must decode to for ever.
func goldenOps() map[string]operation {
	const now = 1700000000123456789
	return map[string]operation{
		"write":            &writeOp{ino: 300, off: 1 << 40, length: 4096, time: now},
		"write staged":     &writeOp{ino: 2, off: 77, length: 1, time: -5, killID: true, staged: true},
		"reference":        &refOp{ino: 9, off: 131072, length: 200000, time: now, killID: true, sums: []uint32{0xdeadbeef, 1}},
		"reference staged": &refOp{ino: 9, off: 131072, length: 200000, time: now, sums: []uint32{0xdeadbeef, 1}, staged: true},
		"setattr":          &setAttrOp{ino: 4, set: SetAttr{Size: ptr(int64(123456789))}, time: now},
		"setattr all":      &setAttrOp{ino: 4, set: SetAttr{Mode: ptr(uint32(0o4755)), UID: ptr(uint32(1000)), GID: ptr(uint32(100)), Size: ptr(int64(0)), Atime: ptr(int64(1)), Mtime: ptr(int64(-1)), Ctime: ptr(int64(now)), KillSetID: true}, time: now},
		"create":           &createOp{parent: 1, name: "data1", ino: 5, mode: modeDir | 0o755, uid: 999, gid: 998, time: now},
		"create link":      &createOp{parent: 5, name: "l\xff~", ino: 6, mode: modeLink | 0o777, target: []byte("../x\xfe"), time: now},
		"create device":    &createOp{parent: 5, name: "null", ino: 7, mode: modeChar | 0o666, rdev: 0x103, time: now},
		"tmpfile":          &createOp{parent: 5, ino: 8, mode: modeRegular | 0o600, time: now},
		"link":             &linkOp{ino: 8, parent: 5, name: "named", time: now},
		"unlink":           &unlinkOp{parent: 5, name: "named", time: now},
		"rmdir":            &unlinkOp{parent: 1, name: "data1", dir: true, time: now},
		"rename":           &renameOp{parent: 1, name: "a", newParent: 5, newName: "b", time: now},
		"exchange":         &renameOp{parent: 1, name: "a", newParent: 5, newName: "b", flags: RenameExchange, time: now},
		"xattr":            &xattrOp{ino: 5, name: "user.k", value: []byte("v\x00w"), flags: xattrCreate, time: now},
		"xattr removed":    &xattrOp{ino: 5, name: "user.k", remove: true, time: now},
		"zero":             &zeroOp{ino: 5, off: 4096, end: 8192, size: 1 << 33, time: now},
		"reap":             &reapOp{ino: 1 << 50},
		"publish":          &publishOp{ino: 5, size: 99999, time: now},
		"settings":         &setOp{quota: 1 << 40, retention: 86400},
		"share": &shareOp{ino: 5, slot: 3, base: metadata.Base{
			Ref: metadata.Ref{Volume: "v", Key: "objects/k"}, Len: 8192, Birth: 12, Sums: []uint32{7},
		}, time: now},
		"share frames": &shareOp{ino: 5, slot: 3, base: metadata.Base{
			Ref: metadata.Ref{Key: "objects/k"}, Len: 200000, Birth: 12, Sums: []uint32{7, 8}, Stored: []uint32{300, 4},
			Cipher: metadata.Cipher{Key: "0011223344556677", Born: metadata.Ref{Volume: "v", Key: "objects/b"}},
		}, time: now, frames: true},
		"adopt": &adoptOp{ino: 5, slot: 3, key: "adopted/cs/k", length: 200000, sums: []uint32{7, 8}, time: now},
	}
}

// readGolden returns the kind and the body of each line of ops.txt.
func readGolden(t *testing.T) map[string]journal.Record {
	t.Helper()
	text, err := os.ReadFile("testdata/v1/ops.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]journal.Record{}
	for line := range strings.Lines(string(text)) {
		part := strings.Split(strings.TrimSpace(line), "\t")
		if len(part) != 3 {
			t.Fatalf("line %q", line)
		}
		kind, err := strconv.Atoi(part[1])
		if err != nil {
			t.Fatal(err)
		}
		body, err := hex.DecodeString(part[2])
		if err != nil {
			t.Fatal(err)
		}
		out[part[0]] = journal.Record{Op: journal.Op(kind), Body: body}
	}
	return out
}

func TestOperation_Decode_Golden(t *testing.T) {
	golden := readGolden(t)
	kinds := map[journal.Op]bool{}
	for name, want := range goldenOps() {
		r, ok := golden[name]
		if !ok {
			t.Errorf("%s has no golden bytes", name)
			continue
		}
		kinds[r.Op] = true
		got, err := decodeOp(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		if again := encodeOp(want); hex.EncodeToString(again) != hex.EncodeToString(r.Body) || want.kind() != r.Op {
			t.Errorf("%s: encodes to kind %d, %x", name, want.kind(), again)
		}
		delete(golden, name)
	}
	for name := range golden {
		t.Errorf("golden bytes of %s are not looked at", name)
	}
	for k := journal.Op(1); ; k++ {
		if _, err := newOperation(k); err != nil {
			break
		}
		if !kinds[k] {
			t.Errorf("kind %d has no golden bytes", k)
		}
	}
}

// A body that was cut, or has more bytes than its fields, is damage.
func TestOperation_Decode_CutOrLong(t *testing.T) {
	for name, r := range readGolden(t) {
		for n := range len(r.Body) {
			cut := r
			cut.Body = r.Body[:n]
			if _, err := decodeOp(cut); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s cut to %d of %d bytes: %v", name, n, len(r.Body), err)
			}
		}
		long := r
		long.Body = append(append([]byte(nil), r.Body...), 0)
		if _, err := decodeOp(long); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s with a byte more: %v", name, err)
		}
	}
	for _, op := range []*refOp{
		{off: 1, length: 200000, sums: []uint32{1}}, {off: 100000, length: 100000, sums: []uint32{1}, staged: true}, {off: -1, length: 1, sums: []uint32{1}},
		{off: 1 << 62, length: 1 << 62, sums: []uint32{1}}, {length: -5}, {length: 5},
	} {
		if _, err := decodeOp(journal.Record{Op: op.kind(), Body: encodeOp(op)}); !errors.Is(err, ErrDamaged) {
			t.Errorf("%+v, whose checksums are not those of its bytes: %v", op, err)
		}
	}
	if _, err := decodeOp(journal.Record{Op: 250}); !errors.Is(err, ErrNewerFormat) || errors.Is(err, ErrDamaged) {
		t.Errorf("a kind that a later release may have: %v", err)
	}
}

// A number that can't be is damage, wherever it stands.
func TestOperation_Decode_LargeNumbers(t *testing.T) {
	for name, r := range readGolden(t) {
		for at := range r.Body {
			long := append(append([]byte(nil), r.Body[:at]...), binary.AppendUvarint(nil, 1<<62)...)
			long = append(long, r.Body[at+1:]...)
			if _, err := decodeOp(journal.Record{Op: r.Op, Body: long}); err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("%s with a large number at %d: %v", name, at, err)
			}
		}
	}
}

// Any bytes decode or are damage, and what decodes encodes to the same meaning.
func FuzzOperation_Decode(f *testing.F) {
	for _, op := range goldenOps() {
		f.Add(byte(op.kind()), encodeOp(op))
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		op, err := decodeOp(journal.Record{Op: journal.Op(kind), Body: body})
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !(errors.Is(err, ErrNewerFormat) && kind > byte(opLast)) {
				t.Fatal(err)
			}
			return
		}
		again, err := decodeOp(journal.Record{Op: op.kind(), Body: encodeOp(op)})
		if err != nil || !reflect.DeepEqual(encodeOp(op), encodeOp(again)) {
			t.Fatalf("%+v becomes %+v, %v", op, again, err)
		}
	})
}
