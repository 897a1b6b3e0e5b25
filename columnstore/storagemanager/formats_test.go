package storagemanager

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func sample(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a real Storage Manager wrote is read, and written again byte for byte.
func TestMeta_RealSample(t *testing.T) {
	body := sample(t, "FILE000.cdf.203.meta")
	m, err := ParseMeta(body)
	if err != nil || len(m.Objects) != 3 || m.Size() != 13058048 || m.Objects[1].Offset != 5<<20 {
		t.Fatalf("%+v, %v", m, err)
	}
	if p, ok := KeyPrefix(m.Objects[2].Key); !ok || p != "data1" {
		t.Errorf("prefix %q, %v", p, ok)
	}
	if got := m.Encode(); !bytes.Equal(got, body) {
		t.Errorf("got\n%s\nwant\n%s", got, body)
	}
	if m, err := ParseMeta((&Meta{}).Encode()); err != nil || len(m.Objects) != 0 {
		t.Errorf("an empty list: %+v, %v", m, err)
	}
	for _, bad := range []string{
		"", "{}", `{"version": "2", "objects": ""}`, `{"version": "1", "objects": "x"}`,
		`{"version": "1", "objects": [{"offset": "-1", "length": "1", "key": "k"}]}`,
		`{"version": "1", "objects": [{"offset": "0", "length": "5", "key": "a"}, {"offset": "4", "length": "5", "key": "b"}]}`,
		`{"version": "1", "objects": [{"offset": "0", "length": "5", "key": "a/b"}]}`,
		`{"version": "1", "objects": [{"offset": "0", "length": "99999999999999", "key": "a"}]}`,
	} {
		if _, err := ParseMeta([]byte(bad)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestJournal_RealSamples(t *testing.T) {
	for name, want := range map[string]int{"BRM_saves_journal.journal": 14, "SMTxnID.journal": 1} {
		body := sample(t, name)
		j, err := ReadJournal(bytes.NewReader(body), int64(len(body)))
		if err != nil || len(j.Entries) != want || j.Torn != 0 {
			t.Fatalf("%s: %+v, %v", name, j, err)
		}
		var changes []Change
		for _, e := range j.Entries {
			changes = append(changes, Change{e.Offset, body[e.At:][:e.Length]})
		}
		if got := EncodeJournal(changes); !bytes.Equal(got, body) {
			t.Errorf("%s is written as %q", name, got[:headerSize])
		}
	}
}

// Cut anywhere, a journal keeps its whole entries and tells of the rest; a flipped
// byte never makes it say more than is there.
func TestJournal_CutAndFlippedAtEveryByte(t *testing.T) {
	body := sample(t, "BRM_saves_journal.journal")
	whole, err := ReadJournal(bytes.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	for n := range body {
		j, err := ReadJournal(bytes.NewReader(body[:n]), int64(n))
		if err != nil {
			t.Fatalf("cut to %d: %v", n, err)
		}
		end := int64(headerSize)
		if n < headerSize {
			end = 0
		}
		for i, e := range j.Entries {
			if e != whole.Entries[i] {
				t.Fatalf("cut to %d: entry %d is %+v", n, i, e)
			}
			end = e.At + e.Length
		}
		if end+j.Torn != int64(n) {
			t.Fatalf("cut to %d: %d bytes of entries, %d torn", n, end, j.Torn)
		}
		flipped := bytes.Clone(body)
		flipped[n] ^= 0x41
		j, err = ReadJournal(bytes.NewReader(flipped), int64(len(flipped)))
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("flipped at %d: %v", n, err)
		}
		if j == nil {
			continue
		}
		for _, e := range j.Entries {
			if e.At+e.Length > int64(len(body)) {
				t.Fatalf("flipped at %d: %+v", n, e)
			}
		}
	}
}
