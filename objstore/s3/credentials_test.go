package s3_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/s3"
)

// lonely takes everything from the environment that could hold keys.
func lonely(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
		"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(dir, "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(dir, "credentials"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// signers records with which access keys and tokens requests were signed.
type signers struct {
	mu   sync.Mutex
	list []string
}

func (s *signers) add(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	parts := strings.Split(rest, "/")
	if len(parts) < 3 {
		parts = []string{"unsigned", "", ""}
	}
	s.list = append(s.list, strings.Trim(parts[0]+" "+parts[2]+" "+r.Header.Get("X-Amz-Security-Token"), " "))
}

func (s *signers) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list[len(s.list)-1]
}

func TestOpen_Keys_FromEverywhere(t *testing.T) {
	var seen signers
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { seen.add(r) }).Endpoint
	imds := serve(t, metadataService(t)).Endpoint
	for _, c := range []struct {
		name string
		o    s3.Options
		env  map[string]string
		want string
	}{
		{"options", s3.Options{AccessKeyID: "OPT", SecretAccessKey: "s", SessionToken: "tok", Region: "eu-1"}, map[string]string{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}, "OPT eu-1 tok"},
		{"environment", s3.Options{}, map[string]string{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-2"}, "ENV eu-2"},
		{"no region", s3.Options{}, map[string]string{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}, "ENV us-east-1"},
		{"shared file", s3.Options{}, nil, "FILE us-east-1"},
		{"profile", s3.Options{Profile: "other"}, nil, "OTHER eu-3"},
		{"instance", s3.Options{EC2Role: true}, map[string]string{"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds}, "IMDS us-east-1 imdstoken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lonely(t)
			write(t, os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), "[default]\naws_access_key_id=FILE\naws_secret_access_key=s\n[other]\naws_access_key_id=OTHER\naws_secret_access_key=s\n")
			write(t, os.Getenv("AWS_CONFIG_FILE"), "[profile other]\nregion=eu-3\n")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			c.o.Bucket, c.o.Endpoint = "bucket", url
			if err := open(t, c.o).Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			if got := seen.last(); got != c.want {
				t.Errorf("signed by %q, want %q", got, c.want)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// metadataService is an EC2 instance's, which answers only who has a token.
func metadataService(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
			fmt.Fprint(w, "v2token")
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "v2token":
			t.Error("a request to the metadata service without a token")
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
			fmt.Fprint(w, "role")
		default:
			fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":"IMDS","SecretAccessKey":"s","Token":"imdstoken","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
	}
}

// tokenService hands out keys ROLE1, ROLE2, … and notes what it was asked.
type tokenService struct {
	mu    sync.Mutex
	asked []string
	fail  string // error code
}

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := r.ParseForm(); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if s.fail != "" {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>not for you</Message></Error></ErrorResponse>`, s.fail)
		return
	}
	action := r.Form.Get("Action")
	if action == "GetCallerIdentity" {
		fmt.Fprint(w, `<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws-cn:iam::4711:user/me</Arn><Account>4711</Account><UserId>U</UserId></GetCallerIdentityResult></GetCallerIdentityResponse>`)
		return
	}
	s.asked = append(s.asked, strings.TrimSpace(r.Form.Get("RoleArn")+" "+r.Form.Get("ExternalId")+r.Form.Get("WebIdentityToken")))
	fmt.Fprintf(w, `<%[1]sResponse><%[1]sResult><Credentials><AccessKeyId>ROLE%[2]d</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>tok</SessionToken><Expiration>%[3]s</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
		action, len(s.asked), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func TestOpen_Role_ByARNAndByName(t *testing.T) {
	var seen signers
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { seen.add(r) }).Endpoint
	for _, c := range []struct{ arn, name, external, want string }{
		{"arn:aws:iam::1:role/r", "", "ext", "arn:aws:iam::1:role/r ext"},
		{"", "dba", "", "arn:aws-cn:iam::4711:role/dba"},
	} {
		sts := &tokenService{}
		o := at(url)
		o.RoleARN, o.RoleName, o.ExternalID, o.STSEndpoint, o.STSRegion = c.arn, c.name, c.external, serve(t, sts.ServeHTTP).Endpoint, "eu-9"
		s := open(t, o)
		for range 2 {
			if err := s.Delete(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		if got := seen.last(); got != "ROLE1 us-east-1 tok" || len(sts.asked) != 1 || sts.asked[0] != c.want {
			t.Errorf("signed by %q after asking %q, want %q", got, sts.asked, c.want)
		}
	}
}

func TestOpen_WebIdentity(t *testing.T) {
	lonely(t)
	sts := &tokenService{}
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "jwt")
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/pod")
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_REGION", "eu-1")
	t.Setenv("AWS_ENDPOINT_URL_STS", serve(t, sts.ServeHTTP).Endpoint)
	var seen signers
	o := serve(t, func(_ http.ResponseWriter, r *http.Request) { seen.add(r) })
	s := open(t, s3.Options{Bucket: "bucket", Endpoint: o.Endpoint})
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := seen.last(); got != "ROLE1 eu-1 tok" || sts.asked[0] != "arn:aws:iam::1:role/pod jwt" {
		t.Errorf("signed by %q after asking %q", got, sts.asked)
	}
}

// Credentials that have expired are an error that says so, and fetched anew for
// the next request.
func TestStore_ExpiredCredentials_AreRenewed(t *testing.T) {
	var seen signers
	o := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if seen.add(r); strings.HasPrefix(seen.last(), "ROLE1 ") {
			refuse(w, r, 400, "ExpiredToken")
		}
	})
	o.RoleARN, o.STSEndpoint = "arn:aws:iam::1:role/r", serve(t, (&tokenService{}).ServeHTTP).Endpoint
	s := open(t, o)
	if err := s.Delete(t.Context(), "k"); !errors.Is(err, objstore.ErrPermission) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("the first request: %v", err)
	}
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

func TestStore_NoCredentials_SaysWhatToDo(t *testing.T) {
	lonely(t)
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was made without keys") }).Endpoint
	refusing := serve(t, (&tokenService{fail: "AccessDenied"}).ServeHTTP).Endpoint
	slow := serve(t, (&tokenService{fail: "Throttling"}).ServeHTTP).Endpoint
	role := func(sts string) s3.Options {
		o := at(url)
		o.RoleARN, o.STSEndpoint = "arn:aws:iam::1:role/r", sts
		return o
	}
	for name, c := range map[string]struct {
		o     s3.Options
		class error
		want  string
	}{
		"none":          {s3.Options{Bucket: "bucket", Endpoint: url}, objstore.ErrPermission, "no credentials were found"},
		"refused":       {role(refusing), objstore.ErrPermission, "assume role arn:aws:iam::1:role/r"},
		"busy":          {role(slow), objstore.ErrUnavailable, "assume role"},
		"not reachable": {role("http://nowhere.invalid"), objstore.ErrUnavailable, "assume role"},
		"no instance":   {s3.Options{Bucket: "bucket", Endpoint: url, Region: "r", EC2Role: true}, objstore.ErrPermission, "no credentials"},
	} {
		err := open(t, c.o).Delete(t.Context(), "k")
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	if _, err := s3.Open(t.Context(), s3.Options{Bucket: "bucket", Profile: "missing", Endpoint: url}); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a profile that is not there: %v", err)
	}
	if _, err := s3.Open(t.Context(), s3.Options{Bucket: "bucket"}); err == nil || !strings.Contains(err.Error(), "region is not known") {
		t.Errorf("no region: %v", err)
	}
}

// A clock that is wrong costs one request.
func TestStore_SkewedClock_IsLearned(t *testing.T) {
	hour := time.Now().Add(time.Hour)
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", hour.UTC().Format(http.TimeFormat))
		signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err != nil || hour.Sub(signed).Abs() > 15*time.Minute {
			refuse(w, r, 403, "RequestTimeTooSkewed")
		}
	}))
	if err := s.Delete(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "clock") {
		t.Errorf("the first request: %v", err)
	}
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Errorf("the next request: %v", err)
	}
}
