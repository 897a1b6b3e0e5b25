package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/s3"
)

// s3Server is a bucket "bucket" in this process.
type s3Server struct {
	backend *s3mem.Backend
	handler http.Handler
	url     string

	expired atomic.Bool // no keys are good
	moved   atomic.Bool // every request is sent to a host that has no address

	mu    sync.Mutex
	heads []http.Header // of all PUTs
}

func newS3Server(t *testing.T) *s3Server {
	t.Helper()
	s := &s3Server{backend: s3mem.New()}
	if err := s.backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	fake := gofakes3.New(s.backend, gofakes3.WithIntegrityCheck(true)).Server()
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			s.mu.Lock()
			s.heads = append(s.heads, r.Header.Clone())
			s.mu.Unlock()
		}
		if s.expired.Load() {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>`)
			return
		}
		if s.moved.Load() {
			http.Redirect(w, r, "http://nowhere.invalid"+r.URL.RequestURI(), http.StatusTemporaryRedirect)
			return
		}
		fake.ServeHTTP(w, r)
	})
	srv := httptest.NewServer(s.handler)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// keys are all that the bucket holds.
func (s *s3Server) keys(t *testing.T) string {
	t.Helper()
	list, err := s.backend.ListBucket("bucket", nil, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list.Contents {
		names = append(names, c.Key)
	}
	return strings.Join(names, " ")
}

// config writes a configuration file for the server, with more lines.
func (s *s3Server) config(p *place, more ...string) string {
	lines := append([]string{"[S3]", "region = us-east-1", "endpoint = " + s.url, "aws_access_key_id = key", "aws_secret_access_key = ${TEST_S3_SECRET}"}, more...)
	p.env["TEST_S3_SECRET"] = "top-secret"
	return p.write("s3.ini", []byte(strings.Join(lines, "\n")+"\n"))
}

func TestS3_FormatPutMountAndFromTheBucketAlone(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	srv := newS3Server(t)
	p.env["CISTERN_CONFIG"] = srv.config(p, "tags = team=db", "sse = AES256")
	const u = "s3://bucket/some/prefix"
	if out := p.must("format", u, "--object-size", "1M"); !strings.Contains(out, u+" is volume ") {
		t.Errorf("format says %q", out)
	}
	p.fails(2, "is a volume already", "format", u)
	p.fails(2, "is not empty (it holds some/prefix/", "format", "s3://bucket")

	big := random(3<<20 + 77)
	p.must("put", u, p.write("local", big), "big")
	if got := p.must("cat", u, "big"); got != string(big) {
		t.Error("cat gives other bytes than were put")
	}
	mnt := p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	more := random(2<<20 + 5)
	for round := range 2 {
		// Each time without anything local.
		state := p.path(fmt.Sprintf("state%d", round))
		p.mustBinary("mount", u, mnt, "--state", state)
		pid := decode[mountStatus](t, p.must("status", "--json", mnt)).PID
		if got := readFile(t, filepath.Join(mnt, "big")); got != string(big) {
			t.Error("the mount shows other bytes than were put")
		}
		name := filepath.Join(mnt, "more")
		if round == 0 {
			if err := os.WriteFile(name, more, 0o644); err != nil {
				t.Fatal(err)
			}
			p.must("sync", mnt)
			p.noSecret(pid, filepath.Join(state, logName))
		}
		if got := readFile(t, name); got != string(more) {
			t.Errorf("round %d: the mount shows other bytes than were written", round)
		}
		p.endMount(mnt)
	}
	p.must("check", "--data", u)
	srv.mu.Lock()
	defer srv.mu.Unlock()
	for _, h := range srv.heads {
		if h.Get("X-Amz-Tagging") != "team=db" || h.Get("X-Amz-Server-Side-Encryption") != "AES256" || h.Get("Content-Md5") == "" {
			t.Fatalf("a PUT without what the settings say: %v", h)
		}
	}
}

// noSecret makes sure that nobody sees the secret key beside a mount.
func (p *place) noSecret(pid int, log string) {
	p.t.Helper()
	for _, path := range []string{fmt.Sprintf("/proc/%d/cmdline", pid), log} {
		if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("top-secret")) {
			p.t.Errorf("%s shows the secret key (%v)", path, err)
		}
	}
}

func TestS3_RelativeConfigFlag_ReachesTheDaemon(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	srv := newS3Server(t)
	config := srv.config(p)
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(wd, config)
	if err != nil {
		t.Fatal(err)
	}
	mnt := p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	p.must("format", "s3://bucket/v", "--config", relative)
	p.mustBinary("--config", relative, "mount", "s3://bucket/v", mnt, "--state", p.path("state"))
	p.endMount(mnt)
	if got := p.must("status", "s3://bucket/v", "--config", config); !strings.Contains(got, "s3://bucket/v") {
		t.Errorf("status says %q", got)
	}
}

// endMount unmounts; after a failure by force.
func (p *place) endMount(mnt string) {
	p.t.Helper()
	pid := decode[mountStatus](p.t, p.must("status", "--json", mnt)).PID
	if status, _, errs := p.run("umount", mnt); status != 0 {
		p.t.Errorf("umount: status %d, %s", status, errs)
		p.kill(pid)
		p.run("umount", mnt)
	}
}

func TestS3_BucketWithVersions_IsWarnedOf(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	srv := newS3Server(t)
	if err := srv.backend.SetVersioningConfiguration("bucket", gofakes3.VersioningConfiguration{Status: gofakes3.VersioningEnabled}); err != nil {
		t.Fatal(err)
	}
	p.env["CISTERN_CONFIG"] = srv.config(p)
	const u, want = "s3://bucket/v", "bucket bucket has versioning on"
	status, out, errs := p.run("format", "--json", u)
	if status != 0 || decode[formatted](t, out).URL != u || !strings.HasPrefix(errs, "cistern: warning: "+want) || strings.Count(errs, "\n") != 1 {
		t.Errorf("format: status %d, %q, %q", status, out, errs)
	}
	mnt := p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("mount", u, mnt, "--state", p.path("state"))
	if log := readFile(t, p.path("state", logName)); !strings.Contains(log, want) {
		t.Errorf("the mount's log says nothing of it: %s", log)
	}
	p.endMount(mnt)
}

func TestS3_CredentialsExpire_MountGoesOnAndDrains(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	srv := newS3Server(t)
	p.env["CISTERN_CONFIG"] = srv.config(p)
	const u = "s3://bucket/v"
	mnt := p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	p.must("format", u)
	p.mustBinary("mount", u, mnt, "--state", p.path("state"), "--commit-interval", "50ms")
	srv.expired.Store(true)
	f, err := os.Create(filepath.Join(mnt, "file"))
	if err != nil {
		t.Fatal(err)
	}
	body := random(300 << 10)
	if _, err := f.Write(body); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Errorf("fsync with expired credentials: %v", err)
	}
	told := false
	for try := 0; !told && try < 1000; try++ {
		s := decode[mountStatus](t, p.must("status", "--json", mnt))
		if !s.Healthy {
			t.Errorf("the mount takes no writes: %s", s.Unhealthy)
		}
		told = strings.Contains(s.StoreError, "have expired")
		time.Sleep(20 * time.Millisecond)
	}
	if !told {
		t.Error("status does not say that the credentials have expired")
	}
	srv.expired.Store(false)
	p.must("sync", mnt)
	if got := p.must("cat", u+"@-0s", "file"); got != string(body) {
		t.Error("the bucket has other bytes than were written")
	}
	p.endMount(mnt)
}

func TestS3_EnvironmentBeatsFile(t *testing.T) {
	p := newPlace(t)
	srv := newS3Server(t)
	path := srv.config(p)
	p.env["CISTERN_S3_ENDPOINT"] = strings.TrimPrefix(srv.url, "http://")
	p.env["CISTERN_S3_USE_HTTP"] = "enabled"
	p.write("s3.ini", []byte("[mount]\ncache-size = 1G\n[S3]\nendpoint = nowhere.invalid\naws_access_key_id = a\naws_secret_access_key = b\n"))
	p.must("format", "s3://bucket/v", "--config", path)
	p.must("status", "s3://bucket/v", "--config", path)
}

func TestS3_BadSettings_NameKeyAndReason(t *testing.T) {
	p := newPlace(t)
	srv := newS3Server(t)
	base := []string{"format", "s3://bucket/v", "--config"}
	for _, c := range []struct{ line, want string }{
		{"colour = red", "[S3] colour: there is no such setting"},
		{"port_number = 70000", "[S3] port_number = \"70000\": it is not a port"},
		{"port_number = 9000", "the endpoint has a port already"},
		{"use_http = maybe", "[S3] use_http = \"maybe\": choose enabled or disabled"},
		{"path_style = perhaps", "[S3] path_style = \"perhaps\": choose"},
		{"bucket = other", "are for bucket other"},
		{"prefix = other", "are for the prefix other"},
		{"tags = team", "[S3] tags = \"team\": it is not a list"},
		{"tags = a=1, a=2", "[S3] tags = \"a=1, a=2\""},
		{"use_http = wJalrXUtnFEMI/K7MDENG", "[S3] use_http = \"…\": choose enabled"},
		{"sse = ROT13", "server-side encryption \"ROT13\""},
		{"sse_kms_key_id = k", "goes with server-side encryption aws:kms"},
		{"storage_class = GLACIER", "storage class GLACIER"},
		{"role_arn = admin", "is no ARN"},
		{"ca_file = relative.pem", "absolute path"},
		{"ca_file = /no/such/file", "read the CA file"},
		{"profile = p", "keys and a profile exclude each other"},
		{"ec2_iam_mode = enabled", "exclude each other"},
		{"external_id = ${NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE is not set"},
		{"external_id = ${", "without its }"},
		{"[ObjectStorage]", ""},
	} {
		path := srv.config(p, c.line)
		if c.want != "" {
			p.fails(2, c.want, append(base, path)...)
		}
	}
	p.fails(2, "no such file", append(base, p.path("missing.ini"))...)
	p.fails(2, "bucket does not exist", "format", "s3://nowhere/v", "--config", srv.config(p))
	p.fails(2, "bucket does not exist", "ls", "s3://nowhere/v", "--config", srv.config(p))
	p.fails(2, "no volume here", "ls", "s3://bucket/v", "--config", srv.config(p))
}

func TestS3Options_EveryKey(t *testing.T) {
	p := newPlace(t)
	base := s3.Options{Bucket: "bucket"}
	with := func(f func(*s3.Options)) s3.Options { o := base; f(&o); return o }
	for text, want := range map[string]s3.Options{
		"": base,
		"bucket = bucket\nprefix = /some/\nregion = eu": with(func(o *s3.Options) { o.Region = "eu" }),
		"endpoint = host":                                                         with(func(o *s3.Options) { o.Endpoint = "https://host" }),
		"endpoint = host:1\nuse_http = Enabled":                                   with(func(o *s3.Options) { o.Endpoint = "http://host:1" }),
		"endpoint = host\nport_number = 9000\nuse_http = disabled":                with(func(o *s3.Options) { o.Endpoint = "https://host:9000" }),
		"endpoint = http://host/\nport_number = 0":                                with(func(o *s3.Options) { o.Endpoint = "http://host" }),
		"endpoint = [::1]\nport_number = 9000":                                    with(func(o *s3.Options) { o.Endpoint = "https://[::1]:9000" }),
		"ssl_verify = disabled\nca_file = /ca":                                    with(func(o *s3.Options) { o.InsecureTLS, o.CAFile = true, "/ca" }),
		"ssl_verify = enabled\npath_style = auto":                                 base,
		"path_style = true":                                                       with(func(o *s3.Options) { o.Addressing = s3.AddressingPath }),
		"path_style = false":                                                      with(func(o *s3.Options) { o.Addressing = s3.AddressingVirtual }),
		"aws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c": with(func(o *s3.Options) { o.AccessKeyID, o.SecretAccessKey, o.SessionToken = "a", "b", "c" }),
		"profile = p\nrole_arn = arn:x\nexternal_id = e":                          with(func(o *s3.Options) { o.Profile, o.RoleARN, o.ExternalID = "p", "arn:x", "e" }),
		"iam_role_name = r\nsts_region = eu\nsts_endpoint = sts":                  with(func(o *s3.Options) { o.RoleName, o.STSRegion, o.STSEndpoint = "r", "eu", "https://sts" }),
		"iam_role_name = arn:x":                                                   with(func(o *s3.Options) { o.RoleARN = "arn:x" }),
		"iam_role_name = r\nec2_iam_mode = enabled":                               with(func(o *s3.Options) { o.EC2Role = true }),
		"role_arn = arn:x\nec2_iam_mode = enabled":                                with(func(o *s3.Options) { o.EC2Role, o.RoleARN = true, "arn:x" }),
		"sse = aws:kms\nsse_kms_key_id = k\nstorage_class = STANDARD_IA":          with(func(o *s3.Options) { o.SSE, o.KMSKeyID, o.StorageClass = "aws:kms", "k", "STANDARD_IA" }),
		"tags = a=1, b = 2=3":                                                     with(func(o *s3.Options) { o.Tags = map[string]string{"a": "1", "b": "2=3"} }),
	} {
		env := map[string]string{"CISTERN_CONFIG": p.write("every.ini", []byte("[S3]\n"+text+"\n"))}
		a := &app{lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok }}
		got, err := a.s3Options(objstore.URL{Scheme: objstore.SchemeS3, Bucket: "bucket", Path: "some/prefix"}, false)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// One URL is two volumes when two services have a bucket of that name: a command
// asks the mount of the one that its own settings mean.
func TestS3_TwoServicesOneURL_EachHasItsOwnMount(t *testing.T) {
	testenv.NeedFUSE(t)
	const u = "s3://bucket/same/prefix"
	p := newPlace(t)
	var configs, mounts []string
	in := func(service int) { p.env["CISTERN_CONFIG"] = configs[service] }
	for i := range 2 {
		srv := newS3Server(t)
		name := srv.config(p)
		if err := os.Rename(name, fmt.Sprintf("%s.%d", name, i)); err != nil {
			t.Fatal(err)
		}
		configs, mounts = append(configs, fmt.Sprintf("%s.%d", name, i)), append(mounts, p.path(fmt.Sprintf("mnt%d", i)))
		if err := os.Mkdir(mounts[i], 0o755); err != nil {
			t.Fatal(err)
		}
		in(i)
		p.must("format", u)
		p.mustBinary("mount", u, mounts[i], "--state", p.path(fmt.Sprintf("state%d", i)))
		t.Cleanup(func() { in(i); p.endMount(mounts[i]) })
		if err := os.WriteFile(filepath.Join(mounts[i], "who"), fmt.Appendf(nil, "service %d", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		in(i)
		if got, want := p.must("cat", u, "who"), fmt.Sprintf("service %d", i); got != want {
			t.Errorf("in service %d: %q", i, got)
		}
		if got := decode[mountStatus](t, p.must("status", "--json", u)).MountPoint; string(got) != mounts[i] {
			t.Errorf("status in service %d is of %s", i, got)
		}
	}
}

// Snapshots, a restore of all and of a path, and clones of what was restored work in
// an object store as in a directory.
func TestS3_SnapshotRestoreClone(t *testing.T) {
	p := newPlace(t)
	p.env["CISTERN_CONFIG"] = newS3Server(t).config(p)
	const u, shared, copied = "s3://bucket/db", "s3://bucket/shared", "s3://bucket/copied"
	p.must("format", u, "--object-size", "1M", "--retention", "0s")
	big, later := random(3<<20+7), random(2<<20+1)
	p.must("put", u, p.write("big", big), "big")
	p.must("put", u, p.write("small", []byte("small")), "small")
	p.must("snapshot", "create", u, "good")
	p.must("put", u, p.write("later", later), "big")
	p.must("rm", u, "small")
	wants := func(vol, name string, want []byte) {
		t.Helper()
		if got := p.must("cat", vol, name); got != string(want) {
			t.Errorf("%s of %s has %d other bytes", name, vol, len(got))
		}
	}
	p.must("restore", u+"@good", "small")
	wants(u, "small", []byte("small"))
	wants(u, "big", later)
	p.must("restore", u+"@good", "--keep", "replaced")
	wants(u, "big", big)
	wants(u+"@replaced", "big", later)
	p.must("clone", u, shared)
	p.must("clone", u, copied, "--copy")
	p.must("snapshot", "delete", u, "replaced")
	p.must("collect", u)
	for _, vol := range []string{u, shared, copied} {
		wants(vol, "big", big)
		p.must("check", "--data", vol)
	}
}
