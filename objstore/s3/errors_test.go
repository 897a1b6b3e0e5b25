package s3_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/s3"
)

// serve starts a server of a test and returns options for it.
func serve(t *testing.T, h http.HandlerFunc) s3.Options {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return at(srv.URL)
}

// refuse answers as S3 does; a HEAD has no body.
func refuse(w http.ResponseWriter, r *http.Request, status int, code string) {
	w.Header().Set("X-Amz-Request-Id", "REQ17")
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>because</Message></Error>`, code)
	}
}

func put(ctx context.Context, s objstore.Store, key, body string, cond objstore.Condition) (objstore.Version, error) {
	return s.Put(ctx, key, strings.NewReader(body), int64(len(body)), cond)
}

// requests are one of each kind.
func requests(ctx context.Context, s objstore.Store) map[string]error {
	errs := map[string]error{}
	_, errs["put"] = put(ctx, s, "dir/key", "body", objstore.Condition{})
	_, errs["create"] = put(ctx, s, "dir/key", "body", objstore.Condition{IfAbsent: true})
	_, errs["swap"] = put(ctx, s, "dir/key", "body", objstore.Condition{IfVersion: "v"})
	_, _, errs["get"] = s.Get(ctx, "dir/key", 0, -1)
	_, _, errs["range"] = s.Get(ctx, "dir/key", 3, 4)
	_, errs["head"] = s.Head(ctx, "dir/key")
	_, errs["list"] = s.List(ctx, "dir/", "", 0)
	errs["delete"] = s.Delete(ctx, "dir/key")
	return errs
}

func TestStore_Errors_Classes(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		class  error
		want   string           // in every message but a HEAD's
		other  map[string]error // of single kinds; nil: none
	}{
		{404, "NoSuchKey", objstore.ErrNotExist, "because", map[string]error{"swap": objstore.ErrConditionFailed, "delete": nil}},
		{404, "NoSuchBucket", objstore.ErrNoBucket, "make it first", map[string]error{"head": objstore.ErrNotExist}},
		{400, "InvalidBucketName", objstore.ErrNoBucket, "no bucket can be called so", map[string]error{"head": errAny}},
		{412, "PreconditionFailed", objstore.ErrConditionFailed, "because", nil},
		{409, "ConditionalRequestConflict", objstore.ErrUnavailable, "at the same time", nil},
		{403, "AccessDenied", objstore.ErrPermission, "must be allowed s3:", nil},
		{403, "InvalidAccessKeyId", objstore.ErrPermission, "does not know the access key", nil},
		{403, "SignatureDoesNotMatch", objstore.ErrPermission, "secret key is wrong", nil},
		{400, "ExpiredToken", objstore.ErrPermission, "have expired", map[string]error{"head": errAny}},
		{401, "Unauthorized", objstore.ErrPermission, "must be allowed", nil},
		{403, "RequestTimeTooSkewed", objstore.ErrUnavailable, "clock", map[string]error{"head": objstore.ErrPermission}},
		{400, "RequestTimeout", objstore.ErrUnavailable, "because", map[string]error{"head": errAny}},
		{400, "BadDigest", objstore.ErrDamaged, "other bytes", map[string]error{"head": errAny}},
		{429, "TooManyRequests", objstore.ErrThrottled, "because", nil},
		{503, "SlowDown", objstore.ErrThrottled, "because", map[string]error{"head": objstore.ErrUnavailable}},
		{503, "ServiceUnavailable", objstore.ErrUnavailable, "because", nil},
		{500, "InternalError", objstore.ErrUnavailable, "because", nil},
		{502, "", objstore.ErrUnavailable, "502", nil},
		{501, "NotImplemented", errAny, "does not know", map[string]error{"create": objstore.ErrGuarantee, "swap": objstore.ErrGuarantee}},
		{400, "InvalidArgument", errAny, "because", nil},
		{403, "InvalidObjectState", errAny, "archive", map[string]error{"head": objstore.ErrPermission}},
	} {
		var made atomic.Int32
		s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			made.Add(1)
			if c.code == "" {
				http.Error(w, "<html>Bad gateway", c.status)
				return
			}
			refuse(w, r, c.status, c.code)
		}))
		for kind, err := range requests(t.Context(), s) {
			class, own := c.other[kind]
			if !own {
				class = c.class
			}
			switch {
			case class == nil && err == nil:
			case class == errAny && err != nil && objstore.Class(err) == "other":
			case class == nil || !errors.Is(err, class):
				t.Errorf("%d %s: %s gives %v, want one that is %q", c.status, c.code, kind, err, class)
			case kind != "head" && !strings.Contains(err.Error(), c.want) && !own:
				t.Errorf("%d %s: %s says %q, want %q in it", c.status, c.code, kind, err, c.want)
			}
			if err != nil && (strings.ContainsAny(err.Error(), "\n") || !strings.Contains(err.Error(), "s3://bucket/dir/")) {
				t.Errorf("%d %s: %s says %q", c.status, c.code, kind, err)
			}
		}
		// Of a refused swap it is looked up whether that can be.
		if n := made.Load(); n > 9 {
			t.Errorf("%d %s: %d requests were made for 8", c.status, c.code, n)
		}
	}
}

var errAny = errors.New("an error of no class")

func TestStore_Errors_WrongRegion(t *testing.T) {
	moved := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amz-Bucket-Region", "eu-central-1")
		refuse(w, r, 301, "PermanentRedirect")
	}))
	for kind, err := range requests(t.Context(), moved) {
		if !errors.Is(err, objstore.ErrNoBucket) || !strings.Contains(err.Error(), "set the region to eu-central-1") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	signed := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		fmt.Fprint(w, `<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-west-3'</Message></Error>`)
	}))
	_, err := signed.List(t.Context(), "", "", 0)
	if !errors.Is(err, objstore.ErrPermission) || !strings.Contains(err.Error(), "is in region eu-west-3") {
		t.Error(err)
	}
}

func TestStore_Errors_Network(t *testing.T) {
	refused := httptest.NewServer(http.NotFoundHandler())
	refused.Close()
	reset := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	garbage := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"v"`)
		fmt.Fprint(w, "<html>Please log in to the network")
	})
	hidden := reset
	hidden.Addressing = s3.AddressingVirtual
	hidden.Endpoint = "http://nowhere.invalid"
	for _, c := range []struct {
		o    s3.Options
		want string
	}{
		{at(refused.URL), "connection refused"}, {reset, "127.0.0.1"}, {at("http://nowhere.invalid"), "nowhere.invalid"}, {hidden, "path_style"},
	} {
		for kind, err := range requests(t.Context(), open(t, c.o)) {
			if !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %s: %v, want %q", c.o.Endpoint, kind, err, c.want)
			}
		}
	}
	if _, err := open(t, garbage).List(t.Context(), "", "", 0); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("a listing that is a web page: %v", err)
	}
}

func TestStore_Errors_TLS(t *testing.T) {
	backend := fakeHandler(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("%s over %s", r.Method, r.Proto)
		}
		backend.ServeHTTP(w, r)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	pool := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(pool, block, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bundle := range []string{"", "/etc/ssl/certs/ca-certificates.crt"} {
		t.Setenv("AWS_CA_BUNDLE", bundle)
		_, err := put(t.Context(), open(t, at(srv.URL)), "k", "v", objstore.Condition{})
		if !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "ca_file") {
			t.Errorf("an unknown certificate gives %v", err)
		}
		for _, o := range []s3.Options{{CAFile: pool}, {InsecureTLS: true}} {
			with := at(srv.URL)
			with.CAFile, with.InsecureTLS = o.CAFile, o.InsecureTLS
			s := open(t, with)
			if _, err := put(t.Context(), s, "k", "v", objstore.Condition{}); err != nil {
				t.Errorf("%+v: %v", o, err)
			}
			if body, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(body) != "v" {
				t.Errorf("%+v: %q, %v", o, body, err)
			}
		}
	}
	// The environment's own bundle is enough, too.
	t.Setenv("AWS_CA_BUNDLE", pool)
	if _, err := put(t.Context(), open(t, at(srv.URL)), "k", "w", objstore.Condition{}); err != nil {
		t.Error(err)
	}
	with := at(srv.URL)
	with.CAFile = filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(with.CAFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s3.Open(t.Context(), with); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("a CA file without certificates: %v", err)
	}
}

func TestStore_Hang_EndsWithContextOrDeadline(t *testing.T) {
	release := make(chan struct{})
	o := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a client that leaves is what is tested
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	s := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	for kind, err := range requests(ctx, s) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	timed := objstore.WithTimeout(s, objstore.TimeoutOptions{Base: 20 * time.Millisecond})
	for kind, err := range requests(t.Context(), timed) {
		if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// A store that is busy with the key says so; Create goes on until it is known.
func TestStore_Create_SettlesConflictsAndLostReplies(t *testing.T) {
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"conflict": func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			refuse(w, r, 409, "ConditionalRequestConflict")
		},
		"applied, then 500": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			refuse(w, r, 500, "InternalError")
		},
		"applied, then the connection breaks": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		},
	} {
		backend := fakeHandler(t)
		var puts atomic.Int32
		s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && puts.Add(1) == 1 {
				fault(w, r, backend)
				return
			}
			backend.ServeHTTP(w, r)
		}))
		if err := objstore.Create(t.Context(), s, "k", []byte("mine")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var conflict *objstore.ConflictError
		if err := objstore.Create(t.Context(), s, "k", []byte("others")); !errors.As(err, &conflict) || !bytes.Equal(conflict.Body, []byte("mine")) {
			t.Errorf("%s: a second create: %v", name, err)
		}
		puts.Store(0)
		info, err := s.Head(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		v, err := objstore.CompareAndSwap(t.Context(), s, "k", info.Version, []byte("next"))
		if err != nil || v == info.Version {
			t.Errorf("%s: swap: %q, %v", name, v, err)
		}
	}
}
