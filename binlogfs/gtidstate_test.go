package binlogfs

import "testing"

func TestGTIDState_MySQL_Sets(t *testing.T) {
	const a, b = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "3e11fa47-71ca-11e1-9e33-c80aa9429563"
	parse := func(text string) *GTIDState {
		t.Helper()
		s, err := ParseGTIDState(MySQL, text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := parse(a + ":1-5:9, " + b + ":1")
	s.Add(GTID{Flavor: MySQL, SID: a, Number: 6})
	s.Add(GTID{Flavor: MySQL, SID: a, Number: 1, Tag: "blue"})
	if got, want := s.String(), a+":1-6:9:blue:1,"+b+":1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for text, want := range map[string]string{
		a + ":1-9":               a + ":7-8",
		a + ":2-6":               "",
		b + ":1-3":               b + ":2-3",
		a + ":blue:1-2":          a + ":blue:2",
		a + ":1-10," + b + ":1":  a + ":7-8:10",
		a + ":100-200:300":       a + ":100-200:300",
		a + ":9," + b + ":1:1-1": "",
	} {
		if got := s.Missing(parse(text)); got != want {
			t.Errorf("missing of %s: %q, want %q", text, got, want)
		}
		if got := s.Contains(parse(text)); got != (want == "") {
			t.Errorf("contains %s: %v", text, got)
		}
	}
	c := s.Clone()
	c.Add(GTID{Flavor: MySQL, SID: b, Number: 2})
	if s.Has(GTID{Flavor: MySQL, SID: b, Number: 2}) || !c.Has(GTID{Flavor: MySQL, SID: b, Number: 2}) {
		t.Error("a clone is not apart")
	}
	again, err := DecodePreviousGTIDs(MySQL, s.Encode())
	if err != nil || again.String() != s.String() {
		t.Errorf("%v, %v", again, err)
	}
}

func TestGTIDState_MariaDB_Domains(t *testing.T) {
	s, err := ParseGTIDState(MariaDB, "0-1-5,0-2-7,3-1-2")
	if err != nil {
		t.Fatal(err)
	}
	s.Add(GTID{Flavor: MariaDB, Domain: 0, ServerID: 1, Number: 8})
	if got, want := s.String(), "0-2-7,0-1-8,3-1-2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := s.Position(), "0-1-8,3-1-2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	o, err := ParseGTIDState(MariaDB, "0-1-8,3-1-3,4-1-1")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Missing(o); got != "3-1-3,4-1-1" {
		t.Errorf("missing %q", got)
	}
	c := s.Clone()
	c.Add(GTID{Flavor: MariaDB, Domain: 3, ServerID: 9, Number: 9})
	if s.Last(3).Number != 2 || c.Last(3).Number != 9 {
		t.Error("a clone is not apart")
	}
}

func TestParseGTID_Bad(t *testing.T) {
	for _, c := range []struct {
		f    Flavor
		text string
	}{
		{MariaDB, "0-1"}, {MariaDB, "0-1-x"}, {MariaDB, "0-1-0"}, {MariaDB, "5000000000-1-1"}, {MariaDB, "0-1-2-3"},
		{MySQL, "x:1"}, {MySQL, "3e11fa47-71ca-11e1-9e33-c80aa9429562"}, {MySQL, "3e11fa47-71ca-11e1-9e33-c80aa9429562:0"},
	} {
		if g, err := ParseGTID(c.f, c.text); err == nil {
			t.Errorf("%s: %v", c.text, g)
		}
	}
	for _, c := range []struct {
		f    Flavor
		text string
	}{{MariaDB, "0-1-2"}, {MySQL, "3e11fa47-71ca-11e1-9e33-c80aa9429562:7"}, {MySQL, "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag:7"}} {
		if g, err := ParseGTID(c.f, c.text); err != nil || g.String() != c.text {
			t.Errorf("%s: %v, %v", c.text, g, err)
		}
	}
}
