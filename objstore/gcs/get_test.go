package gcs

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/iotest"

	"github.com/cisternfs/cistern/objstore"
)

func encodeSum(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// media is the answer to a Get, as Google gives it.
type media struct {
	code   int
	header map[string]string
	body   string
}

func (m media) write(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Goog-Generation", "7")
	w.Header().Set("Content-Length", strconv.Itoa(len(m.body)))
	for k, v := range m.header {
		w.Header().Set(k, v)
	}
	w.WriteHeader(m.code)
	_, _ = io.WriteString(w, m.body)
}

func TestStore_Get_Body_BreaksOffAnywhere(t *testing.T) {
	const whole = "0123456789"
	for cut := range len(whole) {
		for _, declared := range []bool{true, false} {
			s, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Goog-Generation", "7")
				w.Header().Set("X-Goog-Stored-Content-Length", "10")
				if declared {
					w.Header().Set("Content-Length", "10")
				}
				_, _ = io.WriteString(w, whole[:cut])
				_ = http.NewResponseController(w).Flush()
				if declared {
					panic(http.ErrAbortHandler)
				}
			})
			// A connection that breaks may come back; a body that ends too
			// early in good order is damage.
			want := objstore.ErrDamaged
			if declared {
				want = objstore.ErrUnavailable
			}
			body, info, err := s.Get(t.Context(), "k", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			p, err := io.ReadAll(body)
			if string(p) != whole[:cut] || info.Size != 10 || !errors.Is(err, want) {
				t.Errorf("cut at %d: %q of %d, %v", cut, p, info.Size, err)
			}
			// Its error was seen above.
			_ = body.Close()
			if n := len(srv.seen()); n != 1 {
				t.Errorf("cut at %d: %d requests were made", cut, n)
			}
		}
	}
}

// TestStore_Get_Checksum reads bodies whole, in all ways that readers have.
func TestStore_Get_Checksum(t *testing.T) {
	for _, c := range []struct {
		sum string
		bad bool
	}{{sum64("0123456789"), false}, {sum64("0123456780"), true}} {
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			m := media{200, map[string]string{"X-Goog-Hash": "crc32c=" + c.sum + ",md5=eB5eJF1ptWaXm4bijSPyxw=="}, "0123456789"}
			switch r.Header.Get("Range") {
			case "bytes=0-9":
				m.code, m.header["Content-Range"] = 206, "bytes 0-9/10"
			case "bytes=2-4":
				m.code, m.header["Content-Range"], m.body = 206, "bytes 2-4/10", "234"
			}
			m.write(w, r)
		})
		if _, _, err := objstore.ReadAll(t.Context(), s, "k", 100); errors.Is(err, objstore.ErrDamaged) != c.bad || !c.bad && err != nil {
			t.Errorf("bad %v: read all: %v", c.bad, err)
		}
		if err := objstore.ReadRange(t.Context(), s, "k", 0, make([]byte, 10)); errors.Is(err, objstore.ErrDamaged) != c.bad || !c.bad && err != nil {
			t.Errorf("bad %v: read as a range: %v", c.bad, err)
		}
		if err := objstore.ReadRange(t.Context(), s, "k", 2, make([]byte, 3)); err != nil {
			t.Errorf("bad %v: a part has no checksum: %v", c.bad, err)
		}
		body, _, err := s.Get(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(iotest.OneByteReader(body)); errors.Is(err, objstore.ErrDamaged) != c.bad || !c.bad && err != nil {
			t.Errorf("bad %v: byte by byte: %v", c.bad, err)
		}
		if err := body.Close(); errors.Is(err, objstore.ErrDamaged) != c.bad || !c.bad && err != nil {
			t.Errorf("bad %v: close: %v", c.bad, err)
		}
	}
}

func TestStore_Get_AnswersThatDontFit(t *testing.T) {
	for name, m := range map[string]media{
		"another range":         {206, map[string]string{"Content-Range": "bytes 3-5/10"}, "345"},
		"a shorter range":       {206, map[string]string{"Content-Range": "bytes 2-3/10"}, "23"},
		"a range without size":  {206, map[string]string{"Content-Range": "bytes 2-4/*"}, "234"},
		"no range":              {206, nil, "234"},
		"a range past the size": {206, map[string]string{"Content-Range": "bytes 2-4/3"}, "234"},
		"the whole":             {200, nil, "0123456789"},
		"no generation":         {206, map[string]string{"Content-Range": "bytes 2-4/10", "X-Goog-Generation": ""}, "234"},
		"generation zero":       {206, map[string]string{"Content-Range": "bytes 2-4/10", "X-Goog-Generation": "0"}, "234"},
	} {
		s, _ := serve(t, m.write)
		if _, info, err := s.Get(t.Context(), "k", 2, 3); !errors.Is(err, objstore.ErrDamaged) {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	s, _ := serve(t, media{200, map[string]string{"X-Goog-Stored-Content-Length": "9"}, "0123456789"}.write)
	if _, info, err := s.Get(t.Context(), "k", 0, -1); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("another length than that of the stored body: %+v, %v", info, err)
	}
}

// TestStore_Get_RangeIgnored: a server may answer a range from 0 with the whole.
func TestStore_Get_RangeIgnored(t *testing.T) {
	s, _ := serve(t, media{200, nil, "0123456789"}.write)
	for _, length := range []int64{1, 9, 10, 11} {
		body, info, err := s.Get(t.Context(), "k", 0, length)
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(body)
		if err := errors.Join(err, body.Close()); err != nil || info.Size != 10 || string(p) != "0123456789"[:min(length, 10)] {
			t.Errorf("length %d: %q of %d, %v", length, p, info.Size, err)
		}
	}
}

func TestStore_Get_PastTheEnd(t *testing.T) {
	s, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("alt") == "media" {
			refuse(w, 416, "requestedRangeNotSatisfiable", "no such range")
			return
		}
		answer(w, object("k", "0123456789", 7))
	})
	body, info, err := s.Get(t.Context(), "k", 10, 5)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := io.ReadAll(body); err != nil || len(p) != 0 || info.Size != 10 || info.Version != "7" {
		t.Errorf("%q, %+v, %v", p, info, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if n := len(srv.seen()); n != 2 {
		t.Errorf("%d requests", n)
	}
	if _, _, err := s.Get(t.Context(), "k", 9, 5); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("the object grew between the two requests: %v", err)
	}
}

// TestStore_Get_StoredGzip_ComesAsItIs: an object marked as gzip, by whoever
// else wrote it, is not unpacked on the way.
func TestStore_Get_StoredGzip_ComesAsItIs(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, "plain")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Error("the server was not told to send gzip as it is")
		}
		h := map[string]string{"Content-Encoding": "gzip", "X-Goog-Stored-Content-Encoding": "gzip", "X-Goog-Hash": "crc32c=" + sum64(packed.String())}
		media{200, h, packed.String()}.write(w, r)
	})
	p, info, err := objstore.ReadAll(t.Context(), s, "k", 1000)
	if err != nil || !bytes.Equal(p, packed.Bytes()) || info.Size != int64(packed.Len()) {
		t.Errorf("%q, %+v, %v", p, info, err)
	}
}

func TestStore_Get_Request(t *testing.T) {
	s, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "", "") })
	for _, c := range []struct {
		key         string
		off, length int64
		path, rng   string
	}{
		{"a/b c+d%~é", 0, -1, "/storage/v1/b/b/o/a%2Fb%20c%2Bd%25~%C3%A9", ""},
		{"k", 0, 10, "/storage/v1/b/b/o/k", "bytes=0-9"},
		{"k", 5, 1, "/storage/v1/b/b/o/k", "bytes=5-5"},
		{"k", 5, -1, "/storage/v1/b/b/o/k", "bytes=5-"},
		{"k", 5, 1<<63 - 1, "/storage/v1/b/b/o/k", "bytes=5-"},
	} {
		if _, _, err := s.Get(t.Context(), c.key, c.off, c.length); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%+v: %v", c, err)
		}
		all := srv.seen()
		r := all[len(all)-1]
		if r.URL.EscapedPath() != c.path || r.Header.Get("Range") != c.rng || r.URL.RawQuery != "alt=media" {
			t.Errorf("%+v: %s, range %q", c, r.URL, r.Header.Get("Range"))
		}
	}
}
