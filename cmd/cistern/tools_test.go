package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

// tool runs one of Storage Manager's tools in this process.
func (p *place) tool(conf, name string, args ...string) (status int, out, errs string) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{
		stdin: strings.NewReader(p.stdin), stdout: &stdout, stderr: &stderr, base: p.path("base"), configFlag: conf,
		lookup: func(name string) (string, bool) { v, ok := p.env[name]; return v, ok },
	}
	if p.stdin != "" { // else several may run at a time
		p.stdin = ""
	}
	return a.runTool(context.Background(), name, args), stdout.String(), stderr.String()
}

// smput ends with a signal while it waits for input that does not come.
func TestTools_SmputInterrupted_Ends(t *testing.T) {
	p, w, conf := smPlace(t, "")
	w.File("data1/a", w.Whole(10)...)
	p.must("import", "columnstore", "--config", conf)
	r, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer in.Close()
	a := &app{
		stdin: r, stdout: io.Discard, stderr: io.Discard, base: p.path("base"), configFlag: conf,
		lookup: func(name string) (string, bool) { v, ok := p.env[name]; return v, ok },
	}
	signals := make(chan os.Signal, 1)
	a.signals = signals
	status := make(chan int)
	go func() { status <- a.runTool(context.Background(), "smput", []string{"data1/b"}) }()
	if _, err := in.Write(random(3 << 20)); err != nil { // more than a pipe holds
		t.Fatal(err)
	}
	signals <- os.Interrupt
	if got := <-status; got != exitFailed {
		t.Errorf("status %d", got)
	}
	if _, out, _ := p.tool(conf, "smls", "data1"); strings.Contains(out, " b\n") {
		t.Errorf("half a file is there: %s", out)
	}
}

func TestTools_FilesOfDBRoots(t *testing.T) {
	p, w, conf := smPlace(t, "")
	w.File("data1/dir/a", w.Whole(1000)...)
	p.must("import", "columnstore", "--config", conf)
	step := func(want int, tool string, args ...string) string {
		t.Helper()
		status, out, errs := p.tool(conf, tool, args...)
		if status != want || want == 0 && errs != "" || want != 0 && errs == "" {
			t.Errorf("%s %v: status %d, want %d: %s", tool, args, status, want, errs)
		}
		return out
	}
	if got := step(0, "smcat", "data1/dir/a", "/data1/dir/a"); got != strings.Repeat(string(w.Want["data1/dir/a"]), 2) {
		t.Errorf("smcat gives %d bytes", len(got))
	}
	if got := step(1, "smcat", "data1/none", "data1/dir/a"); got != string(w.Want["data1/dir/a"]) {
		t.Errorf("smcat after a failure gives %d bytes", len(got))
	}
	p.stdin = "put by hand"
	step(0, "smput", "data1/new/dirs/b")
	if got := step(0, "smcat", "data1/new/dirs/b"); got != "put by hand" {
		t.Errorf("%q", got)
	}
	if got := step(0, "smls", "data1/new/dirs"); !strings.HasPrefix(got, strings.Repeat(" ", 13)+"11 ") || !strings.HasSuffix(got, " b\n") {
		t.Errorf("%q", got)
	}
	if got := step(0, "smls", "data1"); strings.Count(got, "\n") != 2 || !strings.HasPrefix(got, "d ") {
		t.Errorf("%q", got)
	}
	if got := step(0, "smls", "/"); !strings.HasSuffix(got, " data1\n") {
		t.Errorf("%q", got)
	}
	step(0, "smrm", "data1/new", "data1/dir/a")
	step(1, "smrm", "data1/new")
	step(1, "smrm", "data1")
	step(1, "smls", "data1/new")
	step(1, "smls", "data9")
	step(1, "smcat", "data1/../x")
	for _, tool := range []string{"smcat", "smls", "smput", "smrm", "smkill"} {
		if _, _, errs := p.tool(conf, tool); !strings.Contains(errs, "Usage: "+tool) {
			t.Errorf("%s without arguments: %q", tool, errs)
		}
		if status, out, _ := p.tool(conf, tool, "-h"); status != 0 || !strings.Contains(out, "Usage: "+tool) {
			t.Errorf("%s -h: %d, %q", tool, status, out)
		}
	}
}

// Case 22: many nodes try the connection at once, all pass, nothing is left.
func TestStorageManager_Case22_ConnectionCheckOfManyNodes(t *testing.T) {
	p, w, conf := smPlace(t, "")
	var group sync.WaitGroup
	for range 12 {
		group.Add(1)
		go func() {
			defer group.Done()
			want := "S3 Storage Manager Configuration OK\nNo S3 was asked: the volumes of this configuration are below file://" + w.Bucket + "/cistern, which is fit for them\n"
			if status, out, errs := p.tool(conf, "testS3Connection"); status != 0 || out != want {
				t.Errorf("%d, %q, %q", status, out, errs)
			}
		}()
	}
	group.Wait()
	err := filepath.WalkDir(w.Bucket, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(name, "/.lock/") {
			t.Errorf("%s is left", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	p.env["SM"] = p.path("nowhere")
	if err := os.WriteFile(p.path("nowhere"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, out, _ := p.tool(conf, "testS3Connection"); status != 1 || !strings.HasPrefix(out, "S3 Storage Manager Configuration Error:\n") {
		t.Errorf("%d, %q", status, out)
	}
}

func TestTools_Install_LinksAreTheTools(t *testing.T) {
	p, w, conf := smPlace(t, "")
	w.File("data1/a", w.Whole(300)...)
	p.must("import", "columnstore", "--config", conf)
	bin := p.path("bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("tools", "install", bin)
	p.mustBinary("tools", "install", bin) // again: they are there
	for _, name := range toolNames() {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Error(err)
		}
	}
	run := func(name string, args ...string) (string, error) {
		c := exec.Command(filepath.Join(bin, name), args...)
		c.Env = append(os.Environ(), "CISTERN_CONFIG="+p.plainConfig(conf))
		out, err := c.Output()
		return string(out), err
	}
	if out, err := run("smcat", "data1/a"); err != nil || out != string(w.Want["data1/a"]) {
		t.Errorf("smcat: %d bytes, %v", len(out), err)
	}
	if _, err := run("smcat", "data1/b"); err == nil {
		t.Error("smcat of nothing succeeds")
	}
	if out, err := run("smps", "-n", "-r"); err != nil || !strings.HasPrefix(out, "Id ") {
		t.Errorf("smps: %q, %v", out, err)
	}
	if err := os.Remove(filepath.Join(bin, "smls")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "smls"), []byte("mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := p.binary("tools", "install", bin); status != 1 || !strings.Contains(errs, "smls: something else has the name") || readFile(t, filepath.Join(bin, "smls")) != "mine" {
		t.Errorf("%d, %q", status, errs)
	}
}

func TestHelperArgs_AsMountCallsIt(t *testing.T) {
	for _, c := range []struct {
		args, want []string
		fake       bool
	}{
		{[]string{"s3://b/p", "/mnt", "-o", "rw"}, []string{"mount", "-o", "rw", "--", "s3://b/p", "/mnt"}, false},
		{[]string{"s3://b/p", "/mnt", "-sn", "-o", "rw,_netdev,x-systemd.requires=network-online.target,nofail,config=/etc/c.ini,cache_size=4G,takeover,noatime", "-t", "cistern"},
			[]string{"mount", "--config=/etc/c.ini", "--cache-size=4G", "--takeover", "-o", "rw,noatime", "--", "s3://b/p", "/mnt"}, false},
		{[]string{"-f", "-v", "/etc/columnstore/storagemanager.cnf", "/var/lib/columnstore"}, []string{"mount", "--config=/etc/columnstore/storagemanager.cnf", "--", "/var/lib/columnstore"}, true},
	} {
		got, fake, err := helperArgs(c.args)
		if err != nil || fake != c.fake || !slices.Equal(got, c.want) {
			t.Errorf("%v:\n got %q, %v, %v\nwant %q", c.args, got, fake, err, c.want)
		}
	}
	for _, args := range [][]string{{}, {"a"}, {"a", "b", "c"}, {"a", "b", "-o"}, {"a", "b", "-z"}} {
		if got, _, err := helperArgs(args); err == nil {
			t.Errorf("%v: %q", args, got)
		}
	}
}

// The helper is called as mount(8) does it, and by mount(8) itself.
func TestMountHelper_MountsAsMountDoes(t *testing.T) {
	p, mnt := mountPlace(t)
	bin := p.path("bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("tools", "install", bin)
	options := "rw,_netdev,state=" + p.path("state") + ",cache_size=64M"
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		if _, ok, err := findMount(mnt); !ok || err != nil {
			t.Fatalf("%s is not mounted: %v", mnt, err)
		}
		if s := decode[mountStatus](t, p.must("status", "--json", mnt)); s.Cache.Limit != 64<<20 {
			t.Errorf("the cache has %d bytes", s.Cache.Limit)
		}
		p.must("umount", mnt)
	}
	run(filepath.Join(bin, mountHelper), p.url(), mnt, "-o", options)
	err := exec.Command(filepath.Join(bin, mountHelper), "file://"+p.path("nothing"), mnt).Run()
	if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 32 {
		t.Errorf("a mount that fails: %v, want status 32", err)
	}
	testenv.SkipUnless(t, os.Geteuid() == 0, "mount(8) for root's mounts")
	helper := "/sbin/" + mountHelper
	if _, err := os.Lstat(helper); err == nil {
		t.Fatalf("%s is there: this test makes its own", helper)
	}
	if err := os.Symlink(filepath.Join(bin, mountHelper), helper); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(helper)
	run("mount", "-t", "cistern", "-o", options, p.url(), mnt)
}

func TestConfig_Check_NamesKeyValueReason(t *testing.T) {
	p, _, conf := smPlace(t, "")
	out := p.must("config", "check", conf)
	for _, want := range []string{"[Cache] path has no effect", "[LocalStorage] fake_latency has no effect", "is right"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
	n := 0
	bad := func(text, want string) {
		t.Helper()
		n++
		name := p.path(fmt.Sprint("bad", n))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.fails(2, want, "config", "check", name)
		p.fails(2, want, "mount", "--config", name, "file:///nowhere", p.path())
	}
	// Case 20.
	for _, v := range [][2]string{
		{"64x", `unknown unit "x"`}, {"8q", `unknown unit "q"`}, {"-1", "negative"}, {"0", "more than zero"}, {"", "empty"}, {"99999999999999999999", "larger"}, {"9M", "at least 16.0 MiB"},
	} {
		bad("[Cache]\ncache_size = "+v[0]+"\n", fmt.Sprintf("[Cache] cache_size = %q: ", v[0]))
		bad("[Cache]\ncache_size = "+v[0]+"\n", v[1])
	}
	bad("[Cache]\ncache_size = 20M\n[ObjectStorage]\nobject_size = 16M\n", `[Cache] cache_size = "20M": it must hold two objects`)
	bad("[Cache]\nsize = 20M\n", "[Cache] size: there is no such setting")
	bad("[Cash]\n", "section [Cash] is not known")
	bad("[ObjectStorage]\nservice = tape\n", `[ObjectStorage] service = "tape": choose S3 or LocalStorage`)
	bad("[ObjectStorage]\nobject_size = 5000001\n", "multiple of 4096")
	bad("[ObjectStorage]\nobject_size = 65M\n", "at most 64.0 MiB")
	bad("[ObjectStorage]\nmax_concurrent_uploads = many\n", `[ObjectStorage] max_concurrent_uploads = "many": must be a number`)
	bad("[ObjectStorage]\ncommon_prefix_depth = -1\n", "common_prefix_depth")
	bad("[ObjectStorage]\njournal_path = here\n", "not an absolute path")
	bad("[S3]\nport_number = 70000\n", `[S3] port_number = "70000": it is not a port`)
	bad("[S3]\ntimeout = soon\n", `[S3] timeout = "soon": must be a number`)
	bad("[LocalStorage]\nfake_latency = some\n", "choose enabled or disabled")
	bad("[Cistern]\ndbroots = a/b\n", "not a directory's name")
	bad("[Cistern]\nvolumes = data\n", "is not a volume's URL")
	bad("[mount]\ncache_size = 8q\n", `[mount] cache_size = "8q"`)
	bad("[S3]\nregion = ${NO_SUCH_VARIABLE}\n", "NO_SUCH_VARIABLE is not set")
	for _, v := range []string{"1T", "2GiB", "500m"} {
		name := p.path("good")
		if err := os.WriteFile(name, []byte("[Cache]\ncache_size = "+v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p.must("config", "check", name)
	}
}

// Who mends a file wants to hear of everything at once.
func TestConfig_Check_TellsAllThatIsWrong(t *testing.T) {
	p := newPlace(t)
	conf := p.write("bad.cnf", []byte(`[mount]
cache_size = 8q
journal_size = 1
colour = red
[relay]
heartbeat = soon
[ObjectStorage]
service = tape
request_timeout = 0
secret = ${NO_SUCH_VARIABLE}
[S3]
port_number = 70000
use_http = maybe
[GCS]
anonymous = perhaps
[Cache]
cache_size = -1
[Encryption]
key = k
[Cash]
x = 1
`))
	want := []string{
		`: [mount] cache_size = "8q": unknown unit "q": use K, M, G or T`,
		`: [mount] journal_size = "1": it must be at least 4.0 MiB`,
		`: section [Cash] is not known: write settings under [mount], [relay], [Cistern], [ObjectStorage], [S3], [GCS], [LocalStorage], [Cache], [Encryption]`,
		`: [mount] colour = "red": there is no such setting`,
		`: [relay] heartbeat = "soon": `,
		`: [ObjectStorage] secret: the environment variable NO_SUCH_VARIABLE is not set`,
		`: [ObjectStorage] service = "tape": choose S3 or LocalStorage`,
		`: [Cache] cache_size = "-1": a size can't be negative`,
		`: [ObjectStorage] request_timeout = "0": must be a number from 1 to 600`,
		`: [S3] port_number = "70000": it is not a port`,
		`: [S3] use_http = "maybe": choose enabled or disabled`,
		`: [GCS] anonymous = "perhaps": choose enabled or disabled`,
		`: [Encryption] key: there is no such setting`,
	}
	for _, args := range [][]string{{"config", "check", conf}, {"config", "show", conf}, {"config", "convert", conf}} {
		status, out, errs := p.run(args...)
		lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
		if status != exitUsage || out != "" || len(lines) != len(want) {
			t.Errorf("%v: %d, %q, %d lines:\n%s", args, status, out, len(lines), errs)
		}
		for _, w := range want {
			if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "cistern: "+conf+w) }) {
				t.Errorf("%v lacks %q:\n%s", args, w, errs)
			}
		}
	}
	// A mount tells of what is its own, too, in the one sentence that it has.
	_, _, errs := p.run("mount", "--config", conf, "file:///nowhere", p.path())
	if strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want[0]) || !strings.Contains(errs, want[1]) || !strings.Contains(errs, want[6]) {
		t.Errorf("mount says %s", errs)
	}
	good := p.write("pair.cnf", []byte("[S3]\nport_number = 9000\n"))
	p.fails(exitUsage, "[S3]: S3 settings port_number and use_http go with endpoint", "config", "check", good)
}

func TestConfig_ShowAndConvert(t *testing.T) {
	p := newPlace(t)
	conf := p.path("sm.cnf")
	text := "[ObjectStorage]\nservice = S3\nobject_size = 5M\nmetadata_path = /m\nmax_concurrent_uploads = 21\n[S3]\nregion = eu-west-1\nbucket = cs\nprefix = sm/\naws_access_key_id = id\naws_secret_access_key = ${SECRET}\ntimeout = 5\n[Cache]\ncache_size = 4g\npath = /c\n[Cistern]\ndbroots = data1, data2\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env["SECRET"] = "hush"
	out := p.must("config", "show", conf)
	for _, want := range []string{"s3://cs/sm/cistern", "cache_size", "4G", "(not shown)", "eu-west-1", "data1, data2"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, "hush") {
		t.Error("the secret is shown")
	}
	list := decode[[]shownSetting](t, p.must("config", "show", "--json", conf))
	if !slices.Contains(list, shownSetting{"ObjectStorage", "max_concurrent_uploads", "21", false}) || !slices.Contains(list, shownSetting{"ObjectStorage", "common_prefix_depth", "3", true}) {
		t.Errorf("%+v", list)
	}
	converted := p.must("config", "convert", conf)
	want := "[Cistern]\nvolumes = s3://cs/sm/cistern\ndbroots = data1, data2\n\n[mount]\ncache_size = 4g\n\n[ObjectStorage]\nservice = S3\nobject_size = 5M\nmax_concurrent_uploads = 21\n\n[S3]\nregion = eu-west-1\nbucket = cs\nprefix = sm/\naws_access_key_id = id\naws_secret_access_key = ${SECRET}\n"
	if converted != want {
		t.Errorf("got\n%s\nwant\n%s", converted, want)
	}
	again := p.path("again.cnf")
	if err := os.WriteFile(again, []byte(converted), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := p.must("config", "check", again); out != again+" is right\n" {
		t.Errorf("%q", out)
	}
	if again := p.must("config", "convert", again); again != converted {
		t.Errorf("a second conversion changes the file:\n%s", again)
	}
	p.fails(2, "name a configuration file", "config", "show")
	// A setting of Cistern's own beats Storage Manager's, and is there once.
	both := p.path("both.cnf")
	if err := os.WriteFile(both, []byte("[ObjectStorage]\nrequest_timeout = 33\n[Cache]\ncache_size = 4g\n[mount]\ncache_size = 3g\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	converted = p.must("config", "convert", both)
	if strings.Count(converted, "cache_size") != 1 || !strings.Contains(converted, "cache_size = 3g\n") {
		t.Errorf("%s", converted)
	}
	list = decode[[]shownSetting](t, p.must("config", "show", "--json", both))
	if !slices.Contains(list, shownSetting{"ObjectStorage", "request_timeout", "33", false}) || !slices.Contains(list, shownSetting{"mount", "cache_size", "3G", false}) {
		t.Errorf("%+v", list)
	}
}

// Volumes are found in a directory whatever its name, and what can't be looked at is
// an error.
func TestVolumesIn_AnyDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b-*")
	for _, name := range []string{"data1/volume.json", "data2/volume.json", "none/other", "file"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := volumesIn(dir); err != nil || fmt.Sprint(names) != "[data1 data2]" {
		t.Errorf("%v, %v", names, err)
	}
	if names, err := volumesIn(filepath.Join(dir, "missing")); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if names, err := volumesIn(dir); err == nil {
		t.Errorf("%v", names)
	}
}

func TestConfig_Show_TheRelaysSection(t *testing.T) {
	p := newPlace(t)
	conf := p.path("relay.cnf")
	if err := os.WriteFile(conf, []byte("[relay]\nsource = db1:3306\nserver_id = 77\nack = bucket\ncache_size = 3G\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env["CISTERN_HEARTBEAT"] = "2s"
	list := decode[[]shownSetting](t, p.must("config", "show", "--json", conf))
	for _, want := range []shownSetting{
		{"relay", "source", "[db1:3306]", false}, {"relay", "server_id", "77", false}, {"relay", "ack", "bucket", false}, {"relay", "heartbeat", "2s", false},
		{"relay", "cache_size", "3G", false}, {"relay", "mode", "mirror", true}, {"mount", "cache_size", "2G", true},
	} {
		if !slices.Contains(list, want) {
			t.Errorf("%+v is not in %+v", want, list)
		}
	}
}
