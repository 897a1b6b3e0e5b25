package tpch

import (
	"bytes"
	"strings"
	"testing"
)

func TestLineitems_Ranges_FollowTheSpecification(t *testing.T) {
	const rows = 50_000
	n := 0
	flags := map[string]int{}
	keys := map[[2]int64]bool{}
	for l := range Lineitems(rows, 7) {
		n++
		flags[l.ReturnFlag+l.LineStatus]++
		key := [2]int64{l.OrderKey, int64(l.LineNumber)}
		if keys[key] {
			t.Fatalf("order %d has line %d twice", l.OrderKey, l.LineNumber)
		}
		keys[key] = true
		switch {
		case l.Quantity < 1 || l.Quantity > 50, l.Discount < 0 || l.Discount > 10, l.Tax < 0 || l.Tax > 8,
			l.LineNumber < 1 || l.LineNumber > 7, l.PartKey < 1, l.SuppKey < 1,
			l.ExtendedPrice != int64(l.Quantity)*retailPrice(l.PartKey),
			l.ShipDate.Before(startDate) || l.ShipDate.After(endDate) || l.ReceiptDate.After(endDate),
			!l.ReceiptDate.After(l.ShipDate),
			(l.LineStatus == "O") != l.ShipDate.After(currentDate),
			(l.ReturnFlag == "N") != l.ReceiptDate.After(currentDate),
			len(l.Comment) < 10 || len(l.Comment) > 43,
			(l.OrderKey-1)%32 >= 8:
			t.Fatalf("row %d is out of range: %+v", n, l)
		}
	}
	if n != rows {
		t.Errorf("%d rows instead of %d", n, rows)
	}
	if len(flags) != 4 {
		t.Errorf("query 1 must have 4 groups, got %v", flags)
	}
}

func TestWriteLineitem_SameSeed_SameBytes(t *testing.T) {
	write := func(seed uint64) []byte {
		var b bytes.Buffer
		if err := WriteLineitem(&b, 1000, seed); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	a := write(1)
	if !bytes.Equal(a, write(1)) {
		t.Error("the same seed gave other rows")
	}
	if bytes.Equal(a, write(2)) {
		t.Error("another seed gave the same rows")
	}
	for line := range strings.Lines(string(a)) {
		if n := strings.Count(line, "\t"); n != 15 {
			t.Fatalf("%d columns: %q", n+1, line)
		}
	}
}
