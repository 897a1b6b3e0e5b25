package s3_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

const content = "0123456789"

// answer is a reply to a GET.
func answer(status int, header map[string]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		for k, v := range header {
			if v == "" {
				w.Header().Del(k)
			} else {
				w.Header().Set(k, v)
			}
		}
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w, body) // a body that is cut on purpose
		}
	}
}

func checksum(body string) string {
	c := crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, c))
}

func TestStore_Get_WholeObject_Verified(t *testing.T) {
	for _, c := range []struct {
		name   string
		header map[string]string
		body   string
		class  error // nil: the content
	}{
		{"right checksum", map[string]string{"X-Amz-Checksum-Crc32c": checksum(content)}, content, nil},
		{"no checksum", nil, content, nil},
		{"weak ETag", map[string]string{"ETag": `W/"v"`}, content, nil},
		{"of parts", map[string]string{"X-Amz-Checksum-Crc32c": checksum("x") + "-2"}, content, nil},
		{"composite", map[string]string{"X-Amz-Checksum-Crc32c": checksum("x"), "X-Amz-Checksum-Type": "COMPOSITE"}, content, nil},
		{"flipped bit", map[string]string{"X-Amz-Checksum-Crc32c": checksum(content)}, "0123456788", objstore.ErrDamaged},
		{"half a body", map[string]string{"Content-Length": "10"}, content[:5], objstore.ErrUnavailable},
		{"no body", map[string]string{"Content-Length": "10"}, "", objstore.ErrUnavailable},
		{"no ETag", map[string]string{"ETag": ""}, content, objstore.ErrUnavailable},
		{"no length", map[string]string{"Transfer-Encoding": "chunked"}, content, objstore.ErrUnavailable},
		{"a range of a whole", map[string]string{"Content-Range": "bytes 0-9/20"}, content, objstore.ErrDamaged},
	} {
		s := open(t, serve(t, answer(200, c.header, c.body)))
		body, info, err := objstore.ReadAll(t.Context(), s, "k", 100)
		if c.class == nil && (err != nil || string(body) != content || info.Version != "v" || info.Size != 10) || c.class != nil && !errors.Is(err, c.class) {
			t.Errorf("%s: %q %+v %v", c.name, body, info, err)
		}
		// Who knows the size never asks for the end of the body.
		r, _, err := s.Get(t.Context(), "k", 0, -1)
		if err != nil {
			continue
		}
		p := make([]byte, 10)
		_, err = io.ReadFull(r, p)
		if (err == nil) != (c.class == nil) {
			t.Errorf("%s: read in full: %q, %v", c.name, p, err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: close: %v", c.name, err)
		}
	}
}

func TestStore_Get_EmptyObject_Verified(t *testing.T) {
	s := open(t, serve(t, answer(200, map[string]string{"X-Amz-Checksum-Crc32c": checksum("lost")}, "")))
	if _, _, err := objstore.ReadAll(t.Context(), s, "k", 100); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("a body that is lost as a whole: %v", err)
	}
}

func TestStore_Get_Range_OfStoresThatMisbehave(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		class  error
	}{
		{"right", 206, map[string]string{"Content-Range": "bytes 3-6/10"}, "3456", nil},
		{"ignored", 200, nil, content, nil},
		{"ignored, and cut", 200, map[string]string{"Content-Length": "10"}, "01234", objstore.ErrUnavailable},
		{"ignored, and cut before it", 200, map[string]string{"Content-Length": "10"}, "01", objstore.ErrUnavailable},
		{"the whole object's checksum", 206, map[string]string{"Content-Range": "bytes 3-6/10", "X-Amz-Checksum-Crc32c": checksum(content)}, "3456", nil},
		{"half", 206, map[string]string{"Content-Range": "bytes 3-6/10", "Content-Length": "4"}, "34", objstore.ErrUnavailable},
		{"another", 206, map[string]string{"Content-Range": "bytes 0-3/10"}, "0123", objstore.ErrDamaged},
		{"shorter", 206, map[string]string{"Content-Range": "bytes 3-5/10"}, "345", objstore.ErrDamaged},
		{"longer", 206, map[string]string{"Content-Range": "bytes 3-7/10"}, "34567", objstore.ErrDamaged},
		{"other length", 206, map[string]string{"Content-Range": "bytes 3-6/10"}, "345", objstore.ErrDamaged},
		{"unknown size", 206, map[string]string{"Content-Range": "bytes 3-6/*"}, "3456", objstore.ErrDamaged},
		{"nonsense", 206, map[string]string{"Content-Range": "bytes 3-6"}, "3456", objstore.ErrDamaged},
		{"backwards", 206, map[string]string{"Content-Range": "bytes 6-3/10"}, "3456", objstore.ErrDamaged},
	} {
		s := open(t, serve(t, answer(c.status, c.header, c.body)))
		r, info, err := s.Get(t.Context(), "k", 3, 4)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
			if closeErr := r.Close(); closeErr != nil {
				t.Errorf("%s: close: %v", c.name, closeErr)
			}
		}
		if c.class == nil && (err != nil || string(got) != "3456" || info.Size != 10) || c.class != nil && !errors.Is(err, c.class) {
			t.Errorf("%s: %q %+v %v", c.name, got, info, err)
		}
	}
}

func TestStore_Get_UnsatisfiableRange(t *testing.T) {
	size := "3"
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			refuse(w, r, 416, "InvalidRange")
			return
		}
		answer(200, map[string]string{"Content-Length": size}, "")(w, r)
	}))
	r, info, err := s.Get(t.Context(), "k", 3, 4)
	if err != nil || info.Size != 3 {
		t.Fatalf("%+v, %v", info, err)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
	size = "10"
	if _, _, err := s.Get(t.Context(), "k", 3, 4); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("a range that is there but not served: %v", err)
	}
}

// A body that breaks off is continued by the decorator.
func TestStore_Get_BrokenBody_IsContinued(t *testing.T) {
	asked := make(chan string, 10)
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Range")
		if r.Header.Get("Range") == "" {
			answer(200, map[string]string{"Content-Length": "10"}, content[:4])(w, r)
			return
		}
		answer(206, map[string]string{"Content-Range": "bytes 4-9/10"}, content[4:])(w, r)
	}))
	body, _, err := objstore.ReadAll(t.Context(), objstore.WithRetry(s, objstore.RetryOptions{MinWait: 1, MaxWait: 1}), "k", 100)
	if err != nil || string(body) != content {
		t.Errorf("%q, %v", body, err)
	}
	if first, second := <-asked, <-asked; first != "" || second != "bytes=4-9" {
		t.Errorf("asked for %q, then %q", first, second)
	}
}

func listing(truncated bool, token, encoding string, keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>%s</NextContinuationToken><EncodingType>%s</EncodingType>`, truncated, token, encoding)
	for _, k := range keys {
		fmt.Fprintf(&b, `<Contents><Key>%s</Key><Size>3</Size><ETag>"v"</ETag><LastModified>2006-01-02T15:04:05Z</LastModified></Contents>`, k)
	}
	return b.String() + `</ListBucketResult>`
}

func TestStore_List_ShortPagesAreJoined(t *testing.T) {
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); q.Get("continuation-token") {
		case "":
			fmt.Fprint(w, listing(true, "t1", "", "a", "b"))
		case "t1":
			fmt.Fprint(w, listing(true, "t2", ""))
		case "t2":
			if q.Get("max-keys") != "3" {
				t.Errorf("asked for %s keys after 2 of 5", q.Get("max-keys"))
			}
			fmt.Fprint(w, listing(false, "", "url", "c%20d", "e%2Bf"))
		}
	}))
	page, err := s.List(t.Context(), "", "", 5)
	var keys []string
	for _, info := range page {
		keys = append(keys, info.Key)
	}
	if got := strings.Join(keys, "|"); err != nil || got != "a|b|c d|e+f" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestStore_List_Damaged(t *testing.T) {
	for name, body := range map[string]string{
		"more, but not where": listing(true, "", "", "a"),
		"badly encoded":       listing(false, "", "url", "a%zz"),
		"no ETag":             `<ListBucketResult><Contents><Key>k</Key><Size>1</Size></Contents></ListBucketResult>`,
		"no size":             `<ListBucketResult><Contents><Key>k</Key><ETag>"v"</ETag></Contents></ListBucketResult>`,
		"cut":                 listing(false, "", "", "a")[:100],
	} {
		s := open(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		page, err := s.List(t.Context(), "", "", 0)
		if !errors.Is(err, objstore.ErrDamaged) && !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v, %v", name, page, err)
		}
	}
	// Page by page for ever: the same token again.
	s := open(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, listing(true, "t", "")) }))
	if _, err := s.List(t.Context(), "", "", 0); !errors.Is(err, objstore.ErrDamaged) {
		t.Error(err)
	}
}
