package gcs

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

func TestOptions_Validate_Cases(t *testing.T) {
	for _, c := range []struct {
		o   Options
		why string // empty: usable
	}{
		{Options{Bucket: "b"}, ""},
		{Options{Bucket: "b", KeyFile: "/k"}, ""},
		{Options{Bucket: "b", Endpoint: "https://storage.example.com:4443"}, ""},
		{Options{Bucket: "b", Endpoint: "http://[::1]:80/"}, ""},
		{Options{Bucket: "b", Emulator: "localhost:9023"}, ""},
		{Options{Bucket: "b", Emulator: "https://localhost:9023/storage/v1/"}, ""},
		{Options{}, "no bucket"},
		{Options{Bucket: "b", Anonymous: true, KeyFile: "/k"}, "/k"},
		{Options{Bucket: "b", Endpoint: "localhost:4443"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "ftp://host"}, "ftp://host"},
		{Options{Bucket: "b", Endpoint: "https://"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "https://:443"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "https://host/path"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "https://host?x"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "https://user:secret@host"}, "expected scheme"},
		{Options{Bucket: "b", Endpoint: "http://a\x7fb"}, "expected scheme"},
		{Options{Bucket: "b", Emulator: "a b"}, "expected scheme"},
	} {
		err := c.o.Validate()
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v", c.o, err)
		}
		if c.why == "" {
			continue
		}
		if _, err := Open(t.Context(), c.o); err == nil {
			t.Errorf("%+v was opened", c.o)
		}
	}
}

func TestOpen_Emulator_WithAndWithoutScheme(t *testing.T) {
	_, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, object("k", "body", 3)) })
	host := strings.TrimPrefix(srv.URL, "http://")
	for _, emulator := range []string{host, srv.URL, srv.URL + "/", srv.URL + "/storage/v1/"} {
		// The library beneath reads the variable too.
		t.Setenv("STORAGE_EMULATOR_HOST", emulator)
		s := openAt(t, Options{Bucket: "b", Emulator: emulator})
		if info, err := s.Head(t.Context(), "k"); err != nil || info.Version != "3" {
			t.Errorf("%s: %+v, %v", emulator, info, err)
		}
	}
	for _, r := range srv.seen() {
		if r.Header.Get("Authorization") != "" || r.Header.Get("User-Agent") != userAgent {
			t.Errorf("%v", r.Header)
		}
	}
}

func TestOpen_Endpoint_BeatsEmulator(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:1")
	_, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, object("k", "", 3)) })
	s := openAt(t, Options{Bucket: "b", Endpoint: srv.URL, Emulator: "127.0.0.1:1", Anonymous: true})
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen_KeyFile_Unusable(t *testing.T) {
	for name, c := range map[string]struct{ path, why string }{
		"missing":      {filepath.Join(t.TempDir(), "none.json"), "no such file"},
		"a directory":  {t.TempDir(), "is a directory"},
		"not JSON":     {write(t, "key = 1"), "is no JSON"},
		"no type":      {write(t, "{}"), "no usable credentials"},
		"unknown type": {write(t, `{"type": "password"}`), "no usable credentials"},
		"no key":       {write(t, `{"type": "service_account", "private_key": "x"}`), "no usable credentials"},
		"too large":    {write(t, strings.Repeat(" ", maxKeyFile+1)), "too many"},
	} {
		_, err := Open(t.Context(), Options{Bucket: "b", KeyFile: c.path})
		if err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// account writes the key of a service account whose tokens come from tokenURL.
func account(t *testing.T, tokenURL string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "p", "private_key_id": "1", "client_email": "cistern@p.iam.gserviceaccount.com", "token_uri": tokenURL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return write(t, string(text))
}

func TestOpen_KeyFile_Tokens(t *testing.T) {
	for _, c := range []struct {
		code int
		body string
		want error
	}{
		{200, `{"access_token": "secret-token", "token_type": "Bearer", "expires_in": 3600}`, nil},
		{400, `{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}`, objstore.ErrPermission},
		{401, `{"error": "invalid_client"}`, objstore.ErrPermission},
		{429, "slow down", objstore.ErrUnavailable},
		{503, "later", objstore.ErrUnavailable},
	} {
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.code)
			_, _ = w.Write([]byte(c.body))
		}))
		_, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret-token" {
				t.Errorf("authorization %q", r.Header.Get("Authorization"))
			}
			refuse(w, 503, "backendError", "busy")
		})
		s := openAt(t, Options{Bucket: "b", Endpoint: srv.URL, KeyFile: account(t, tokens.URL)})
		want := c.want
		if want == nil {
			want = objstore.ErrUnavailable
		}
		for op, call := range calls(s) {
			err := call(t.Context())
			if !errors.Is(err, want) || c.want != nil && !strings.Contains(err.Error(), "no access token") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the token server answers %d, %s: %v", c.code, op, err)
			}
		}
		if n := len(srv.seen()); (n > 0) != (c.want == nil) {
			t.Errorf("%d: %d requests without a token", c.code, n)
		}
		tokens.Close()
	}
}

// TestStore_ExpiredToken_IsPermissionUntilThereIsANewOne: a token that the store no
// longer takes is a matter of permissions and says so, whatever is asked, and what
// works again afterwards does so without a new store.
func TestStore_ExpiredToken_IsPermissionUntilThereIsANewOne(t *testing.T) {
	var expired atomic.Bool
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// Shorter than what clients keep in hand, so that each request asks anew.
		_, _ = w.Write([]byte(`{"access_token": "secret-token", "token_type": "Bearer", "expires_in": 1}`))
	}))
	t.Cleanup(tokens.Close)
	_, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret-token":
			t.Errorf("authorization %q", r.Header.Get("Authorization"))
		case expired.Load():
			refuse(w, 401, "authError", "Invalid Credentials")
		default:
			answer(w, object("k", "body", 7))
		}
	})
	s := openAt(t, Options{Bucket: "b", Endpoint: srv.URL, KeyFile: account(t, tokens.URL)})
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	expired.Store(true)
	for op, call := range calls(s) {
		before := len(srv.seen())
		err := call(t.Context())
		if !errors.Is(err, objstore.ErrPermission) || !strings.Contains(err.Error(), "Invalid Credentials") || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%s: %v", op, err)
		}
		if n := len(srv.seen()) - before; n != 1 {
			t.Errorf("%s: %d requests were made", op, n)
		}
	}
	expired.Store(false)
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Errorf("with a new token: %v", err)
	}
}
