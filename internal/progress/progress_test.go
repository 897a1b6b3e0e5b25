package progress

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestBar_OffTerminal_WritesNothing(t *testing.T) {
	var out bytes.Buffer
	b := Start(&out, false, "put", 10)
	if _, err := io.Copy(b.Writer(io.Discard), b.Reader(strings.NewReader("0123456789"))); err != nil {
		t.Fatal(err)
	}
	b.Set(3, 5)
	b.Done(true)
	if out.Len() > 0 {
		t.Errorf("wrote %q", out.String())
	}
}

func TestBar_Count_EndsInEveryState(t *testing.T) {
	for _, finished := range []bool{true, false} {
		var out bytes.Buffer
		b := StartCount(&out, true, "probe")
		b.Set(2, 5)
		b.Done(finished) // returns
	}
	var out bytes.Buffer
	StartCount(&out, false, "probe").Done(true)
	if out.Len() > 0 {
		t.Errorf("wrote %q where there is no terminal", out.String())
	}
}

func TestBar_Terminal_EndsInEveryState(t *testing.T) {
	for _, c := range []struct {
		total    int64
		finished bool
	}{{10, true}, {10, false}, {0, true}, {0, false}, {5, true}} {
		var out bytes.Buffer
		b := Start(&out, true, strings.Repeat("name", 30), c.total)
		if _, err := io.Copy(io.Discard, b.Reader(strings.NewReader("0123456789"))); err != nil {
			t.Fatal(err)
		}
		b.Set(7, 10)
		b.Done(c.finished) // returns
	}
}
