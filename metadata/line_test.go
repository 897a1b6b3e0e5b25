package metadata

import (
	"encoding/json"
	"reflect"
	"testing"
)

// The records that there are many of are read without reflection.
func TestLineReader_Read_FrequentKindsAreQuick(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 50)
	ch := SlotChange{Inode: 2, Slot: 3, Add: []Patch{{Commit: 2, Off: 4096, Len: 1000, Seg: Ref{Key: "segments/s"}, SegOff: 7, Sum: 1 << 31}, {Commit: 2, Off: 8000, Len: 9, Seg: Ref{Key: "segments/s"}, Sum: 1, Stored: 34, Cipher: Cipher{Key: "0011223344556677"}}, {Commit: 2, Off: 9000, Len: 1, Zero: true}}}
	head := ix.Head()
	must(t, ix.Apply(&Commit{CommitID: CommitID{Epoch: 1, N: head.N + 1}, Prev: head.Hash, Time: 1e18, Totals: head.Totals, Slots: []SlotChange{ch}, Segments: []Segment{{Key: "segments/s", Size: 5000, Live: 1034}}}, "x", nil))
	var r lineReader
	lines := 0
	must(t, ix.kv.Scan(nil, nil, func(key, value []byte) error {
		line, err := encodeLine(key, value)
		if err != nil || line == nil || key[0] == kindSegment {
			return err
		}
		lines++
		if _, ok := r.quick(line); !ok {
			t.Errorf("not quick: %s", line)
		}
		return nil
	}))
	if lines < 150 {
		t.Errorf("%d lines", lines)
	}
}

// What is read without reflection means the same to encoding/json.
func FuzzLineReader_EqualsJSON(f *testing.F) {
	for _, r := range append(goldenRecords(), frameRecords()...) {
		if line, err := encodeLine(r.key, r.value); err == nil && line != nil {
			f.Add(line)
		}
	}
	for _, odd := range []string{
		`{"n":{"p":"1","n":"a\u0041","i":"2"}}`, `{"n":{"p":"1","n":"a","n":"b"}}`, `{"n":{"P":"1"}}`, `{"n":{}}`, `{"n":null}`,
		`{"i":{"i":"01","m":1}}`, `{"i":{"i":"1","m":01}}`, `{"i":{"i":"1","m":4294967296}}`, `{"i":{"i":"1","s":"-5"}}`, `{"i":{"i":"1","s":"-0"}}`,
		`{"n":{"p":"1","t":256}}`, `{"n":{"p":"1","n":""}} `, `{"n":{"p":"1"}}x`, `{"n":{"p":"1"},"n":{"i":"2"}}`, `{"b":{"i":"1","k":"o","c":"AAA"}}`, `{"b":{"i":"1","k":"o","c":"AAAAAA"}}`,
		`{"p":{"i":"1","c":"2","l":3,}}`, `{"n":{"p":"9999999999999999999"}}`, `{"n":{"p":""}}`, `{"i":{"i":"1","m":}}`, `{}`, ``, `{"n":{"n":{"b64":"AA=="}}}`,
	} {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, ok := new(lineReader).quick(line)
		if !ok {
			return
		}
		var want lineDoc
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatalf("%q is read, encoding/json says %v", line, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is read as %+v, encoding/json reads %+v", line, got, want)
		}
	})
}
