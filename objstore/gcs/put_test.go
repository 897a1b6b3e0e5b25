package gcs

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// upload is what a server got.
type received struct {
	meta map[string]any
	body string
	err  error
}

// receive reads an upload as the API does.
func receive(r *http.Request) (u received) {
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return received{err: err}
	}
	parts := multipart.NewReader(r.Body, params["boundary"])
	head, err := parts.NextPart()
	if err != nil {
		return received{err: err}
	}
	if err := json.NewDecoder(head).Decode(&u.meta); err != nil {
		return received{err: err}
	}
	media, err := parts.NextPart()
	if err != nil {
		return received{err: err}
	}
	p, err := io.ReadAll(media)
	if err == nil {
		_, err = io.Copy(io.Discard, r.Body) // the request's own end
	}
	return received{u.meta, string(p), err}
}

func TestStore_Put_Request(t *testing.T) {
	var got received
	s, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = receive(r)
		answer(w, object("k", got.body, 1234567890123456))
	})
	for _, c := range []struct {
		cond  objstore.Condition
		query string // of ifGenerationMatch
		body  string
	}{
		{objstore.Condition{}, "", "body"}, {objstore.Condition{IfAbsent: true}, "0", ""}, {objstore.Condition{IfVersion: "77"}, "77", strings.Repeat("x", 1<<20)},
	} {
		v, err := put(t.Context(), s, "k", c.body, c.cond)
		if err != nil || v != "1234567890123456" {
			t.Fatalf("%+v: %q, %v", c.cond, v, err)
		}
		all := srv.seen()
		r := all[len(all)-1]
		q := r.URL.Query()
		if r.Method != http.MethodPost || r.URL.Path != "/upload/storage/v1/b/b/o" || q.Get("uploadType") != "multipart" ||
			q.Get("name") != "k" || q.Get("ifGenerationMatch") != c.query || q.Has("ifGenerationMatch") != (c.query != "") {
			t.Errorf("%+v: %s %s", c.cond, r.Method, r.URL)
		}
		if got.err != nil || got.body != c.body || got.meta["crc32c"] != sum64(c.body) || got.meta["name"] != "k" ||
			got.meta["cacheControl"] != cacheControl || got.meta["contentType"] != contentType {
			t.Errorf("%+v: %v, %d bytes, %v", c.cond, got.meta, len(got.body), got.err)
		}
	}
}

func TestStore_Put_VersionThatIsNoGeneration_AsksNobody(t *testing.T) {
	s, srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, v := range []objstore.Version{"x", "-1", "0", "99999999999999999999", `"etag"`} {
		if _, err := put(t.Context(), s, "k", "x", objstore.Condition{IfVersion: v}); !errors.Is(err, objstore.ErrConditionFailed) {
			t.Errorf("%s: %v", v, err)
		}
	}
	if n := len(srv.seen()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestStore_Put_BodyOfAnotherSize_AsksNobody(t *testing.T) {
	s, srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, size := range []int64{0, 3, 5, 1 << 40} {
		if _, err := s.Put(t.Context(), "k", strings.NewReader("body"), size, objstore.Condition{}); err == nil {
			t.Errorf("4 bytes were taken for %d", size)
		}
	}
	if n := len(srv.seen()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

var errBody = errors.New("the body can't be read")

// failing is a body whose n-th call fails; n counts down.
type failing struct {
	*strings.Reader
	n int
}

func (f *failing) Read(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, errBody
	}
	return f.Reader.Read(p[:min(len(p), 2)])
}

func (f *failing) Seek(off int64, whence int) (int64, error) {
	if f.n--; f.n < 0 {
		return 0, errBody
	}
	return f.Reader.Seek(off, whence)
}

func (f *failing) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{f})
}

// TestStore_Put_BodyThatFails_IsNotStored walks every call to a body.
func TestStore_Put_BodyThatFails_IsNotStored(t *testing.T) {
	var mu sync.Mutex
	stored := 0
	s, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got := receive(r)
		if got.err != nil {
			return
		}
		mu.Lock()
		stored++
		mu.Unlock()
		answer(w, object("k", got.body, 1))
	})
	n := 0
	for ; ; n++ {
		_, err := s.Put(t.Context(), "k", &failing{strings.NewReader("12345678"), n}, 8, objstore.Condition{IfAbsent: true})
		if err == nil {
			break
		}
		if !errors.Is(err, errBody) || objstore.Class(err) != "other" {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
	srv.Close() // waits for the requests that were cut off
	mu.Lock()
	defer mu.Unlock()
	if n < 10 || stored != 1 {
		t.Errorf("%d calls failed, %d bodies were stored", n, stored)
	}
}

// shrinking is a body that has lost its end when it is read again.
type shrinking struct{ *strings.Reader }

func (b shrinking) Seek(off int64, whence int) (int64, error) {
	if whence == io.SeekStart {
		b.Reset("1234")
	}
	return b.Reader.Seek(off, whence)
}

func TestStore_Put_BodyThatShrinks_IsNotStored(t *testing.T) {
	whole := make(chan bool, 1)
	s, srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { whole <- receive(r).err == nil })
	_, err := s.Put(t.Context(), "k", shrinking{strings.NewReader("12345678")}, 8, objstore.Condition{})
	if err == nil || !strings.Contains(err.Error(), "4 of 8 bytes") {
		t.Error(err)
	}
	srv.Close() // waits for the request that was cut off
	select {
	case complete := <-whole:
		if complete {
			t.Error("the server got a complete request")
		}
	default: // the request never arrived
	}
}

func TestStore_Put_AnswerThatDiffers_IsDamage(t *testing.T) {
	right := object("k", "body", 1)
	for field, value := range map[string]any{"size": "3", "crc32c": sum64("bodx"), "generation": "0"} {
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			receive(r)
			a := map[string]any{}
			for k, v := range right {
				a[k] = v
			}
			a[field] = value
			answer(w, a)
		})
		if v, err := put(t.Context(), s, "k", "body", objstore.Condition{}); !errors.Is(err, objstore.ErrDamaged) {
			t.Errorf("%s: version %q, %v", field, v, err)
		}
	}
}

// TestStore_Put_LostAnswer_IsSettledByCreate: the store keeps what it answered
// with an error.
func TestStore_Put_LostAnswer_IsSettledByCreate(t *testing.T) {
	for _, c := range []struct {
		there string // who got there first
		want  error
	}{{"", nil}, {"other", objstore.ErrConditionFailed}} {
		stored, puts := c.there, 0
		s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodGet:
				media{200, map[string]string{"X-Goog-Hash": "crc32c=" + sum64(stored)}, stored}.write(w, r)
			case stored != "":
				refuse(w, 412, "conditionNotMet", "it is there")
			default:
				puts++
				stored = receive(r).body
				refuse(w, 503, "backendError", "who knows")
			}
		})
		if err := objstore.Create(t.Context(), s, "k", []byte("mine")); !errors.Is(err, c.want) || c.want == nil && (err != nil || stored != "mine" || puts != 1) {
			t.Errorf("%q was there: %v, %d uploads, %q is stored", c.there, err, puts, stored)
		}
	}
}

// TestStore_Put_RefusedEarly: a server may answer before it has read the body.
func TestStore_Put_RefusedEarly(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, 412, "conditionNotMet", "it is there") })
	_, err := put(t.Context(), s, "k", strings.Repeat("x", 64<<10), objstore.Condition{IfAbsent: true})
	if !errors.Is(err, objstore.ErrConditionFailed) {
		t.Error(err)
	}
	if v := version(1<<63 - 1); string(v) != strconv.FormatInt(1<<63-1, 10) {
		t.Error(v)
	}
}
