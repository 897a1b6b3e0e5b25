package main

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

func TestMedianInterval_OrderStatistics(t *testing.T) {
	upTo := func(n int) (v []float64) {
		for i := range n {
			v = append(v, float64(n-i))
		}
		return v
	}
	// The ranks of tables for the sign test.
	for n, want := range map[int][2]float64{1: {1, 1}, 2: {1, 2}, 5: {1, 5}, 6: {1, 6}, 8: {1, 8}, 9: {2, 8}, 10: {2, 9}, 12: {3, 10}, 20: {6, 15}} {
		if low, high := medianInterval(upTo(n)); low != want[0] || high != want[1] {
			t.Errorf("of %d values from %v to %v, want %v", n, low, high, want)
		}
	}
}

func TestFigures_Bar_JudgesTheMedian(t *testing.T) {
	f := &figures{job: "j", log: io.Discard}
	for _, v := range []float64{1, 0.9, 0.98} {
		f.add("ratio", "", v)
	}
	f.bar("ratio", Higher, 0.95)
	g := f.all[0]
	if len(f.all) != 1 || g.Median != 0.98 || g.Verdict != "pass" || g.Low != 0.9 || g.High != 1 {
		t.Errorf("%+v", g)
	}
	if f.bar("ratio", Lower, 0.5); g.Verdict != "fail" {
		t.Errorf("%+v", g)
	}
}

func TestAddedLag_OnlyWhatBothSaw(t *testing.T) {
	at := time.Now()
	primary, relay := map[uint32]time.Time{}, map[uint32]time.Time{}
	for i := range uint32(100) {
		primary[i] = at
		if i < 95 {
			relay[i] = at.Add(time.Duration(i+1) * time.Millisecond)
		}
	}
	f := &figures{job: "lag", log: io.Discard}
	if err := addedLag(primary, relay, f); err != nil || f.all[0].Median != 95 || f.all[1].Median != 48 || f.all[1].Verdict != "fail" {
		t.Errorf("%v: %+v", err, f.all)
	}
	clear(relay)
	if err := addedLag(primary, relay, f); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("nothing arrived: %v", err)
	}
}

func TestFigureSuite_Parse_QuickAndNonsense(t *testing.T) {
	c, err := relaySuite().parse([]string{"--quick", "--mib", "32", "--jobs", "pull,lag"})
	if err != nil || c.Rounds != 1 || c.LogBytes != 32*mebibyte || !slices.Equal(c.jobs, []string{"pull", "lag"}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range [][]string{{"--rounds", "0"}, {"--mib", "1"}, {"--jobs", "pul"}, {"--nonsense"}} {
		if _, err := relaySuite().parse(bad); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
