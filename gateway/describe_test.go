package gateway

import (
	"strings"
	"testing"

	"github.com/cisternfs/cistern/journal"
)

func TestDescribe_EveryKindOfOperation(t *testing.T) {
	for k := opWrite; ; k++ {
		op, err := newOperation(k)
		if err != nil {
			if k <= opLast {
				t.Fatal(err)
			}
			break
		}
		d, err := Describe(journal.Record{Op: k, Body: encodeOp(op)})
		if err != nil || d.Kind == "" || len(d.Fields) == 0 {
			t.Errorf("kind %d: %+v, %v", k, d, err)
		}
	}
	if _, err := Describe(journal.Record{Op: 200}); err == nil {
		t.Error("an unknown kind is described")
	}
}

func TestDescribe_Text(t *testing.T) {
	size := int64(9)
	for want, op := range map[string]operation{
		"inode 7, offset 4096, length 16384, staged, time 1970-01-01T00:00:00.000000001Z": &writeOp{ino: 7, off: 4096, length: 16384, staged: true, time: 1},
		"inode 7, size 9, time 1970-01-01T00:00:00Z":                                      &setAttrOp{ino: 7, set: SetAttr{Size: &size}},
		`directory 1, name "a\"\xff", time 1970-01-01T00:00:00Z`:                          &unlinkOp{parent: 1, name: "a\"\xff"},
		"inode 8": &reapOp{ino: 8},
	} {
		d, err := Describe(journal.Record{Op: op.kind(), Body: encodeOp(op)})
		if err != nil || d.String() != want {
			t.Errorf("got %q, %v; want %q", d, err, want)
		}
	}
	long, err := Describe(journal.Record{Op: opXattr, Body: encodeOp(&xattrOp{name: "user.x", value: []byte(strings.Repeat("ü", 1000))})})
	if err != nil || len(long.String()) > 2*maxDescribed {
		t.Errorf("a long value gives %d bytes, %v", len(long.String()), err)
	}
}
