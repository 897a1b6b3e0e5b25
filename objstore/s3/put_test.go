package s3_test

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/s3"
)

func TestStore_Put_Headers(t *testing.T) {
	var head http.Header
	var sent []byte
	o := serve(t, func(w http.ResponseWriter, r *http.Request) {
		head = r.Header.Clone()
		sent, _ = io.ReadAll(r.Body) // compared below
		w.Header().Set("ETag", `"v1"`)
	})
	o.SSE, o.KMSKeyID, o.StorageClass, o.Tags = "aws:kms", "alias/k", "STANDARD_IA", map[string]string{"team": "d b", "a": "1&2"}
	s := open(t, o)
	big := bytes.Repeat([]byte("x"), 128<<10)
	for _, c := range []struct {
		body  []byte
		cond  objstore.Condition
		class string
		match [2]string
	}{
		{[]byte("small"), objstore.Condition{IfAbsent: true}, "", [2]string{"*", ""}},
		{big, objstore.Condition{IfVersion: "v0"}, "STANDARD_IA", [2]string{"", `"v0"`}},
		{big, objstore.Condition{}, "STANDARD_IA", [2]string{}},
		{nil, objstore.Condition{}, "", [2]string{}},
	} {
		v, err := s.Put(t.Context(), "k", bytes.NewReader(c.body), int64(len(c.body)), c.cond)
		if err != nil || v != "v1" {
			t.Fatalf("%q, %v", v, err)
		}
		sum := md5.Sum(c.body)
		want := map[string]string{
			"Content-Md5": base64.StdEncoding.EncodeToString(sum[:]), "X-Amz-Checksum-Crc32c": checksum(string(c.body)),
			"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/k",
			"X-Amz-Storage-Class": c.class, "X-Amz-Tagging": "a=1%262&team=d+b", "If-None-Match": c.match[0], "If-Match": c.match[1],
			"Expect": "", "X-Amz-Trailer": "", "Transfer-Encoding": "",
		}
		for k, v := range want {
			if head.Get(k) != v {
				t.Errorf("%s: %q, want %q", k, head.Get(k), v)
			}
		}
		if !bytes.Equal(sent, c.body) || len(head.Get("X-Amz-Content-Sha256")) != 64 {
			t.Errorf("sent %d bytes, hash %q", len(sent), head.Get("X-Amz-Content-Sha256"))
		}
	}
}

// A store that says which CRC32C it has computed gets no MD5 of large bodies any more,
// and one that says nothing gets it always.
func TestStore_Put_MD5_WhereItIsNeeded(t *testing.T) {
	for _, says := range []bool{false, true} {
		var head http.Header
		s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			head = r.Header.Clone()
			w.Header().Set("ETag", `"v1"`)
			if says {
				w.Header().Set("X-Amz-Checksum-Crc32c", r.Header.Get("X-Amz-Checksum-Crc32c"))
			}
		}))
		large, small := strings.Repeat("x", 256<<10), strings.Repeat("x", 256<<10-1)
		for i, body := range []string{large, large, small, large} {
			if _, err := put(t.Context(), s, "k", body, objstore.Condition{IfAbsent: true}); err != nil {
				t.Fatal(err)
			}
			want := !says || i == 0 || body == small
			if got := head.Get("Content-Md5") != ""; got != want || head.Get("X-Amz-Checksum-Crc32c") != checksum(body) {
				t.Errorf("the store tells CRC32Cs: %v; PUT %d of %d bytes has an MD5: %v, CRC32C %q", says, i, len(body), got, head.Get("X-Amz-Checksum-Crc32c"))
			}
		}
	}
}

func TestStore_Put_StoreSaysThatItStoredOther(t *testing.T) {
	for _, c := range []struct {
		header map[string]string
		class  error
	}{
		{map[string]string{"ETag": `"v"`, "X-Amz-Checksum-Crc32c": checksum("other")}, objstore.ErrDamaged},
		{nil, objstore.ErrUnavailable},
	} {
		s := open(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range c.header {
				w.Header().Set(k, v)
			}
		}))
		if v, err := put(t.Context(), s, "k", "mine", objstore.Condition{}); !errors.Is(err, c.class) {
			t.Errorf("%v: %q, %v", c.header, v, err)
		}
	}
}

// A byte that changes on the way is noticed by the store.
func TestStore_Put_ChangedOnTheWay(t *testing.T) {
	backend := fakeHandler(t)
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("X"), io.LimitReader(r.Body, r.ContentLength-1)))
		}
		backend.ServeHTTP(w, r)
	}))
	if _, err := put(t.Context(), s, "k", "mine", objstore.Condition{IfAbsent: true}); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("%v", err)
	}
	if _, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("it was stored: %v", err)
	}
}

// quoted changes how a server sees If-Match: "refuses" quoted ETags always, and
// understands bare ones or "ignores" those.
func quoted(next http.Handler, ignoresBare bool, bare *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch tag := r.Header.Get("If-Match"); {
		case strings.HasPrefix(tag, `"`):
			_, _ = io.Copy(io.Discard, r.Body) // only to be polite
			refuse(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		case tag != "" && ignoresBare:
			r.Header.Del("If-Match")
		case tag != "":
			bare.Add(1)
			r.Header.Set("If-Match", `"`+tag+`"`)
		}
		next.ServeHTTP(w, r)
	}
}

func TestStore_Put_StoreThatWantsBareETags(t *testing.T) {
	var bare atomic.Int32
	s := open(t, serve(t, quoted(fakeHandler(t), false, &bare)))
	if err := objstore.Probe(t.Context(), s); err != nil {
		t.Error(err)
	}
	v1, err := put(t.Context(), s, "k", "one", objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	before := bare.Load()
	if _, err := put(t.Context(), s, "k", "two", objstore.Condition{IfVersion: v1}); err != nil {
		t.Error(err)
	}
	if _, err := put(t.Context(), s, "k", "three", objstore.Condition{IfVersion: v1}); !errors.Is(err, objstore.ErrConditionFailed) {
		t.Errorf("a swap from an old version: %v", err)
	}
	if n := bare.Load() - before; n != 2 {
		t.Errorf("%d PUTs had bare ETags, want 2", n)
	}
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page) != 1 {
		t.Errorf("the self-check left something: %v, %v", page, err)
	}
}

func TestStore_Put_StoreThatIgnoresBareETags_IsRefused(t *testing.T) {
	t.Parallel() // objstore.Probe tries for some seconds
	s := open(t, serve(t, quoted(fakeHandler(t), true, nil)))
	v, err := put(t.Context(), s, "k", "one", objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(t.Context(), s, "k", "two", objstore.Condition{IfVersion: v}); !errors.Is(err, objstore.ErrConditionFailed) {
		t.Errorf("%v", err)
	}
	if err := objstore.Probe(t.Context(), s); !errors.Is(err, objstore.ErrGuarantee) {
		t.Errorf("probe: %v", err)
	}
	if body, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(body) != "one" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestOptions_Validate(t *testing.T) {
	if err := (&s3.Options{Bucket: "b"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, o := range []s3.Options{
		{},
		{Bucket: "b", Endpoint: "host:9000"},
		{Bucket: "b", Endpoint: "ftp://host"},
		{Bucket: "b", Endpoint: "https://user:secret@host"},
		{Bucket: "b", Endpoint: "https://host/path"},
		{Bucket: "b", STSEndpoint: "sts"},
		{Bucket: "b", Addressing: "sideways"},
		{Bucket: "b", CAFile: "ca.pem"},
		{Bucket: "b", AccessKeyID: "a"},
		{Bucket: "b", SecretAccessKey: "secret"},
		{Bucket: "b", SessionToken: "secret"},
		{Bucket: "b", AccessKeyID: "a", SecretAccessKey: "secret", Profile: "p"},
		{Bucket: "b", AccessKeyID: "a", SecretAccessKey: "secret", EC2Role: true},
		{Bucket: "b", RoleARN: "arn:aws:iam::1:role/r", RoleName: "r"},
		{Bucket: "b", RoleARN: "r"},
		{Bucket: "b", ExternalID: "x"},
		{Bucket: "b", SSE: "none"},
		{Bucket: "b", KMSKeyID: "k"},
		{Bucket: "b", StorageClass: "DEEP_ARCHIVE"},
		{Bucket: "b", Tags: map[string]string{"": "v"}},
		{Bucket: "b", Tags: map[string]string{"k": strings.Repeat("v", 257)}},
		{Bucket: "b", Tags: map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": "", "7": "", "8": "", "9": "", "10": "", "11": ""}},
	} {
		if err := o.Validate(); err == nil || strings.Contains(err.Error(), "secret") && o.AccessKeyID != "" && o.Profile != "" {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := s3.Open(t.Context(), o); err == nil {
			t.Errorf("%+v was opened", o)
		}
	}
}
