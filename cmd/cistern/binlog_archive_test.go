package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
)

// recordedLogs are the binary logs of a server that binlogfs's tests have.
func recordedLogs(kind string) string {
	return filepath.Join("..", "..", "binlogfs", "testdata", kind)
}

// archive is a volume into whose directory the logs of a server were adopted.
func (p *place) archive(kind, dir string) {
	p.t.Helper()
	p.must("format", p.url(), "--object-size", "1M")
	out := p.must("binlog", "adopt", p.url(), recordedLogs(kind), "--dir", dir)
	if !strings.Contains(out, "2 files with ") || !strings.Contains(out, "0 files archived before") {
		p.t.Errorf("adopt says %q", out)
	}
}

func (p *place) logBytes(kind, name string) []byte {
	p.t.Helper()
	body, err := os.ReadFile(filepath.Join(recordedLogs(kind), name))
	if err != nil {
		p.t.Fatal(err)
	}
	return body
}

func TestBinlog_ListShowEventsFind_RecordedLogs(t *testing.T) {
	p := newPlace(t)
	p.archive("my97", "logs")
	u := p.url()
	const sid = "a2bedc31-ecea-11f1-98b0-02fc00000001"
	l := decode[binlogList](t, p.must("binlog", "list", u, "--dir", "/logs/", "--json"))
	first := p.logBytes("my97", "mysql-bin.000001")
	if len(l.Files) != 2 || l.Files[0].Size != int64(len(first)) || l.Files[0].Groups != 19 || l.Files[0].Added != sid+":1-19" || !l.Files[1].Closed || l.Commit.N == 0 || l.End.File != "mysql-bin.000002" {
		t.Errorf("list: %+v", l)
	}
	if out := p.must("binlog", "list", u, "--dir", "logs"); !strings.Contains(out, "mysql-bin.000001  5824  ") || !strings.Contains(out, "of 2 files, up to mysql-bin.000002:502 of epoch 1") {
		t.Errorf("list:\n%s", out)
	}
	if out := p.must("binlog", "show", u, "mysql-bin.000001", "--dir", "logs", "--index"); !strings.Contains(out, "9.7.4-2, id 13, mysql") || !strings.Contains(out, sid+":1-19") || !strings.Contains(out, "158") {
		t.Errorf("show:\n%s", out)
	}
	f := decode[binlogfs.FileInfo](t, p.must("binlog", "show", u, "000001/mysql-bin.000001", "--dir", "logs", "--json"))
	if f.CRC32C != 363783110 || f.Index != nil {
		t.Errorf("show: %+v", f)
	}
	all := decode[[]binlogEvent](t, p.must("binlog", "events", u, "mysql-bin.000001", "--dir", "logs", "--json"))
	if len(all) != 81 || all[0].Type != "Format_desc" || all[1].Type != "Previous_gtids" || all[80].Type != "Rotate" || all[80].Info != "mysql-bin.000002;pos=4" {
		t.Errorf("%d events: %+v", len(all), all)
	}
	some := decode[[]binlogEvent](t, p.must("binlog", "events", u, "mysql-bin.000001", "--dir", "logs", "--json", "--from", "5420", "--to", "5700", "--limit", "2"))
	if len(some) != 2 || some[0].Offset != 5420 || some[1].Type != "Query" || some[1].GTID != sid+":18" || !strings.Contains(some[1].Info, "DROP TABLE `c`") {
		t.Errorf("some events: %+v", some)
	}
	if out := p.must("binlog", "events", u, "mysql-bin.000001", "--dir", "logs", "-n", "1"); !strings.HasPrefix(out, "OFFSET ") || strings.Count(out, "\n") != 2 || !strings.Contains(out, "Server ver: 9.7.4-2, Binlog ver: 4") {
		t.Errorf("events:\n%s", out)
	}
	for _, args := range [][]string{{"--gtid", sid + ":18"}, {"--position", "mysql-bin.000001:5500"}, {"--position", "000001/mysql-bin.000001:5420"}} {
		got := decode[binlogFound](t, p.must(append([]string{"binlog", "find", u, "--dir", "logs", "--json"}, args...)...))
		if got.File != "mysql-bin.000001" || got.Offset != 5420 || got.Epoch != 1 || got.GTID != sid+":18" {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if out := p.must("binlog", "find", u, "--dir", "logs", "--time", f.FirstTime.Format(time.RFC3339)); !strings.HasPrefix(out, "000001/mysql-bin.000001:158\t"+sid+":1\t") {
		t.Errorf("find a time: %q", out)
	}
	if out := p.must("binlog", "pending", u, "--dir", "logs"); out != "0 groups pending\n" {
		t.Errorf("pending: %q", out)
	}
}

func TestBinlog_Events_EveryKindOfServer(t *testing.T) {
	for kind, want := range map[string][]string{
		"m1011": {"Gtid_list", "Annotate_rows", "Binlog_checkpoint", "3-11-4", "Table_map", "COMMIT /* xid="},
		"m118":  {"Gtid_list", "Annotate_rows", "XA_prepare"},
		"my56":  {"Query", "use `", "Format_desc"},
		"my97":  {"Previous_gtids", "User var", "Write_rows", "Gtid"},
	} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			p.archive(kind, "")
			out := p.must("binlog", "events", p.url(), "mysql-bin.000001")
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q:\n%s", w, out)
				}
			}
			if strings.Contains(out, "Unknown_") {
				t.Errorf("an event without a name:\n%s", out)
			}
		})
	}
}

func TestBinlog_Fetch_ByteIdenticalAndResumed(t *testing.T) {
	p := newPlace(t)
	p.archive("m1011", "")
	to := p.path("to")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"mysql-bin.000001", "mysql-bin.000002"}
	same := func() {
		t.Helper()
		for _, n := range names {
			got, err := os.ReadFile(filepath.Join(to, n))
			if err != nil || !bytes.Equal(got, p.logBytes("m1011", n)) {
				t.Errorf("%s: %d bytes, %v", n, len(got), err)
			}
		}
		if left, err := filepath.Glob(filepath.Join(to, "*.part")); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
	p.write("to/mysql-bin.000001.part", p.logBytes("m1011", names[0])[:1000]) // it was interrupted
	p.write("to/mysql-bin.000002", p.logBytes("m1011", names[1])[:300])       // it has grown since
	p.must("binlog", "fetch", p.url(), to)
	same()
	if out := p.must("binlog", "fetch", p.url(), to, names[1]); !strings.Contains(out, "there already") {
		t.Errorf("again: %q", out)
	}
	if err := os.Remove(filepath.Join(to, names[0])); err != nil {
		t.Fatal(err)
	}
	if out := p.must("binlog", "fetch", p.url(), to, "--to", names[0]); strings.Contains(out, names[1]) {
		t.Errorf("a range: %q", out)
	}
	same()
	bad := p.logBytes("m1011", names[0])
	bad[1234] ^= 1
	p.write("to/mysql-bin.000001", bad)
	p.fails(1, "is another file", "binlog", "fetch", p.url(), to)
	if err := os.Rename(filepath.Join(to, names[0]), filepath.Join(to, names[0]+".part")); err != nil {
		t.Fatal(err)
	}
	p.fails(4, "the copy is removed", "binlog", "fetch", p.url(), to)
	p.must("binlog", "fetch", p.url(), to)
	same()
}

func TestBinlog_Verify_DamageIsNamed(t *testing.T) {
	p := newPlace(t)
	p.archive("m118", "")
	if out := p.must("binlog", "verify", p.url()); !strings.Contains(out, "of 2 files") || !strings.Contains(out, ": 0 problems") {
		t.Errorf("verify: %q", out)
	}
	body := p.logBytes("m118", "mysql-bin.000001")
	whole := p.write("whole", body)
	catalogue := p.must("cat", p.url(), "000001/mysql-bin.000001.json")
	for _, c := range []struct {
		name, want string
		damage     func()
	}{
		{"a flipped bit", "at 1036 of mysql-bin.000001", func() {
			bad := bytes.Clone(body)
			bad[1050] ^= 1
			p.must("put", p.url(), p.write("bad", bad), "000001/mysql-bin.000001")
		}},
		{"cut", "000001/mysql-bin.000001 ends within the event at ", func() {
			p.must("put", p.url(), p.write("bad", body[:len(body)-10]), "000001/mysql-bin.000001")
		}},
		{"another catalogue", "is not what its catalogue says", func() {
			p.must("put", p.url(), p.write("bad", []byte(strings.Replace(catalogue, `"groups": `, `"groups": 1`, 1))), "000001/mysql-bin.000001.json")
		}},
		{"a chain that broke", "does not have at its end", func() {
			last := decode[binlogfs.FileInfo](t, p.must("binlog", "show", p.url(), "mysql-bin.000001", "--json")).Added
			p.must("put", p.url(), p.write("bad", []byte(strings.ReplaceAll(catalogue, last, "3-11-1"))), "000001/mysql-bin.000001.json")
		}},
		{"a catalogue that is none", "mysql-bin.000001.json", func() { p.must("put", p.url(), p.write("bad", []byte("{")), "000001/mysql-bin.000001.json") }},
	} {
		c.damage()
		status, _, errs := p.run("binlog", "verify", p.url())
		if status != 4 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %s", c.name, status, errs)
		}
		p.must("put", p.url(), whole, "000001/mysql-bin.000001")
		p.must("put", p.url(), p.write("catalogue", []byte(catalogue)), "000001/mysql-bin.000001.json")
		p.must("binlog", "verify", p.url())
	}
}

func TestBinlog_MarkAndPurge_StoppedArchive(t *testing.T) {
	p := newPlace(t)
	p.archive("my97", "logs")
	u := p.url()
	const sid = "a2bedc31-ecea-11f1-98b0-02fc00000001"
	if out := p.must("binlog", "mark", u, "nightly", sid+":1-7", "--dir", "logs"); !strings.Contains(out, "everything from 000001/mysql-bin.000001:4 on is kept") {
		t.Errorf("mark: %q", out)
	}
	p.must("binlog", "mark", u, "weekly", "mysql-bin.000002:127", "--dir", "logs")
	if out := p.must("binlog", "mark", "--list", u, "--dir", "logs"); !strings.Contains(out, "nightly") || !strings.Contains(out, sid+":1-7") || !strings.Contains(out, "000001/mysql-bin.000002:127") {
		t.Errorf("marks:\n%s", out)
	}
	for _, more := range [][]string{{"--dry-run"}, {}} {
		got := decode[binlogPurged](t, p.must(append([]string{"binlog", "purge", u, "--dir", "logs", "--keep-files", "1", "--json"}, more...)...))
		if len(got.Files) != 0 || got.Left != 2 || len(got.Kept) != 1 || got.Kept[0].Who != "the mark nightly" || got.DryRun != (len(more) == 1) {
			t.Errorf("%v: %+v", more, got)
		}
	}
	p.must("binlog", "mark", u, "--delete", "nightly", "--dir", "logs")
	if out := p.must("binlog", "purge", u, "--dir", "logs", "--to", "mysql-bin.000002", "--dry-run"); !strings.Contains(out, "of 1 file would be deleted, 1 file left") {
		t.Errorf("dry run: %q", out)
	}
	if out := p.must("binlog", "purge", u, "--dir", "logs", "--before", "2100-01-01"); !strings.Contains(out, "5.7 KiB of 1 file deleted, 1 file left") {
		t.Errorf("purge: %q", out)
	}
	if out := p.must("cat", u, "logs/000001/binlog.index"); out != "./mysql-bin.000002\n" {
		t.Errorf("index: %q", out)
	}
	if l := decode[[]entry](t, p.must("ls", "--json", u, "logs/000001")); len(l) != 3 {
		t.Errorf("left: %+v", l)
	}
	p.fails(1, "purged", "binlog", "find", u, "--dir", "logs", "--gtid", sid+":3")
	p.must("binlog", "verify", u, "--dir", "logs")
}

func TestBinlog_MarkAndPurge_MountedVolume_DoneByTheMount(t *testing.T) {
	p, mnt := mountPlace(t)
	p.must("binlog", "adopt", p.url(), recordedLogs("m1011"))
	pid := p.mount()
	names := func() string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(mnt, "000001", "mysql-bin.0*[0-9]"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(strings.Join(list, " "), filepath.Join(mnt, "000001")+"/", "")
	}
	if got := names(); got != "mysql-bin.000001 mysql-bin.000002" {
		t.Fatalf("the mount shows %q", got)
	}
	p.must("binlog", "mark", mnt, "nightly", "3-11-2")
	if got := decode[binlogPurged](t, p.must("binlog", "purge", mnt, "--keep-files", "1", "--dry-run", "--json")); len(got.Kept) != 1 || len(got.Files) != 0 {
		t.Errorf("dry run: %+v", got)
	}
	p.must("binlog", "mark", p.url(), "--delete", "nightly")
	p.must("binlog", "purge", p.url(), "--keep-files", "1")
	if got := names(); got != "mysql-bin.000002" {
		t.Errorf("the mount shows %q after the purge", got)
	}
	if body, err := os.ReadFile(filepath.Join(mnt, "000001", "mysql-bin.000002")); err != nil || !bytes.Equal(body, p.logBytes("m1011", "mysql-bin.000002")) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	p.fails(3, "in use by a relay or mount", "binlog", "adopt", p.url(), recordedLogs("m1011"))
	p.must("sync", mnt)
	p.must("binlog", "verify", mnt)
	p.must("umount", mnt)
	p.unmounted(pid)
}

func TestBinlog_BadInput_OneSentenceRightStatus(t *testing.T) {
	p := newPlace(t)
	p.archive("m1011", "logs")
	u := p.url()
	encrypted := p.write("sealed/b.000001", append([]byte("\xfdbin"), make([]byte, 600)...))
	hole := filepath.Dir(p.write("hole/b.000001", p.logBytes("m1011", "mysql-bin.000001")))
	p.write("hole/b.000003", p.logBytes("m1011", "mysql-bin.000002"))
	for _, d := range []string{"empty", "to"} {
		if err := os.Mkdir(p.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	in := []string{"--dir", "logs"}
	users := p.path("users")
	if err := os.WriteFile(users, []byte("u:native:read:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{1, "no binary log in the top directory", []string{"list", u}},
		{1, "no binary log in none", []string{"list", u, "--dir", "none"}},
		{2, ".. is not possible", []string{"list", u, "--dir", "../x"}},
		{1, "no file is called x.000001", append(in, "show", u, "x.000001")},
		{1, "no file is called 000009/mysql-bin.000001", append(in, "show", u, "000009/mysql-bin.000001")},
		{2, "no event of 000001/mysql-bin.000001 begins there", append(in, "events", u, "mysql-bin.000001", "--from", "5")},
		{2, "has 5123 bytes", append(in, "events", u, "mysql-bin.000001", "--from", "9999999")},
		{2, "is not after", append(in, "events", u, "mysql-bin.000001", "--from", "500", "--to", "400")},
		{2, "must not be negative", append(in, "events", u, "mysql-bin.000001", "--limit", "-1")},
		{2, "one of --gtid, --time and --position", append(in, "find", u)},
		{2, "one of --gtid, --time and --position", append(in, "find", u, "--gtid", "0-1-1", "--time", "-1h")},
		{2, "is not like 0-1-100", append(in, "find", u, "--gtid", "yesterday")},
		{1, "no file has the group 3-11-999", append(in, "find", u, "--gtid", "3-11-999")},
		{2, "is not a time", append(in, "find", u, "--time", "yesterday")},
		{1, "ends before", append(in, "find", u, "--time", "2100-01-01")},
		{2, "is not like mysql-bin.000001:4", append(in, "find", u, "--position", "mysql-bin.000001")},
		{1, "has 5123 bytes, and none at 99999", append(in, "find", u, "--position", "mysql-bin.000001:99999")},
		{2, "no such file or directory", append(in, "fetch", u, p.path("nowhere"))},
		{2, "is not a directory", append(in, "fetch", u, encrypted)},
		{2, "not both", append(in, "fetch", u, p.path("to"), "mysql-bin.000001", "--from", "mysql-bin.000001")},
		{2, "comes after", append(in, "fetch", u, p.path("to"), "--from", "mysql-bin.000002", "--to", "mysql-bin.000001")},
		{1, "nothing lies before 2000-01-01", append(in, "replay", u, "--listen", "127.0.0.1:0", "--users-file", users, "--until-time", "2000-01-01T12:00:00Z")},
		{1, "no relay of " + u + " runs on this machine", []string{"status", u}},
		{1, "no relay of " + u + " runs on this machine", []string{"stop", u}},
		{1, "no relay of " + u + " runs on this machine", []string{"source", "start", u}},
		{1, "the group 9-9-9, where the archive ends at", append(in, "mark", u, "nightly", "9-9-9")},
		{2, "--server-id x: is no number", append(in, "replay", u, "--server-id", "x")},
		{1, "no file is called x", append(in, "verify", u, "x")},
		{2, "say what to delete", append(in, "purge", u)},
		{2, "is no time before now", append(in, "purge", u, "--before", "-soon")},
		{2, "can't be negative", append(in, "purge", u, "--keep-files", "-1")},
		{2, "must be more than zero", append(in, "purge", u, "--keep-size", "0")},
		{1, "no file is called mysql-bin.000009", append(in, "purge", u, "--to", "mysql-bin.000009")},
		{1, "no binary log", []string{"purge", u, "--keep-files", "1"}},
		{2, "a point in the past can't be changed", append(in, "purge", u+"@1", "--keep-files", "1")},
		{2, "give a name and a place", append(in, "mark", u, "x")},
		{2, "give a name and a place", append(in, "mark", u, "--list", "x")},
		{2, "is not made of", append(in, "mark", u, "a b", "3-11-5")},
		{2, "neither a GTID position", append(in, "mark", u, "x", "yesterday")},
		{2, "there is none called", append(in, "mark", u, "--delete", "x")},
		{1, "no binary log", []string{"mark", u, "x", "3-11-5"}},
		{2, "no files like mysql-bin.000001", append(in, "adopt", u, p.path("empty"))},
		{2, "no such file or directory", append(in, "adopt", u, p.path("nowhere"))},
		{2, "is not a directory", append(in, "adopt", u, encrypted)},
		{1, "is encrypted", append(in, "adopt", u, filepath.Dir(encrypted))},
		{1, "b.000003 follows b.000001", append(in, "adopt", u, hole)},
		{1, "log of another server", append(in, "adopt", u, recordedLogs("my97"))},
	} {
		p.fails(c.status, c.want, append([]string{"binlog"}, c.args...)...)
	}
	p.must("binlog", "verify", u, "--dir", "logs")
	p.must("binlog", "adopt", u, recordedLogs("my97"), "--dir", "logs", "--new-epoch")
	if l := decode[binlogList](t, p.must("binlog", "list", u, "--dir", "logs", "--json")); len(l.Files) != 4 || l.Files[3].Epoch != 2 || len(l.Sources) != 2 {
		t.Errorf("two epochs: %+v", l)
	}
	p.must("binlog", "fetch", u, p.path("to"), "--dir", "logs")
	for i, kind := range []string{"m1011", "my97"} {
		got, err := os.ReadFile(p.path("to", []string{"000001", "000002"}[i], "mysql-bin.000002"))
		if err != nil || !bytes.Equal(got, p.logBytes(kind, "mysql-bin.000002")) {
			t.Errorf("%s: %d bytes, %v", kind, len(got), err)
		}
	}
	if left, err := filepath.Glob(p.path("base", "*")); err != nil || len(left) > 0 {
		t.Errorf("commands left %v, %v", left, err)
	}
}

func TestBinlog_EmptyArchive_EveryCommandSaysSo(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	for _, args := range [][]string{
		{"purge", u, "--keep-files", "1"}, {"purge", u, "--keep-files", "1", "--dry-run"}, {"mark", u, "--list"}, {"mark", u, "x", "a.000001:4"},
		{"mark", u, "x", "--delete"}, {"list", u}, {"pending", u}, {"verify", u},
	} {
		p.fails(exitFailed, "the archive holds no binary log in the top directory", append([]string{"binlog"}, args...)...)
	}
}

func TestApp_NoteShort_OnlyAtTheArchivesEnd(t *testing.T) {
	p := newPlace(t)
	p.archive("my97", "logs")
	var said bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &said, base: p.path("base"), lookup: func(string) (string, bool) { return "", false }}
	b, err := a.openBinlog(t.Context(), p.url(), "logs", false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.v.close()
	end, _ := b.End()
	a.noteShort(b, binlogfs.Position{Epoch: end.Epoch, File: end.File, Offset: 4}, "--to-time", "nothing")
	if said.Len() > 0 {
		t.Errorf("of a point within the archive: %q", said.String())
	}
	a.noteShort(b, end, "--to-time", "the rest is not brought back")
	if got := said.String(); !strings.Contains(got, "the archive ends before --to-time, with a group of 20") || !strings.Contains(got, "the rest is not brought back") {
		t.Errorf("of the archive's end: %q", got)
	}
}
