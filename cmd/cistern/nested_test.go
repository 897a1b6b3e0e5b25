package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// A volume in another one's prefix, or around one, is refused and the other is named;
// nothing is made.
func TestApp_Format_NestedVolumes(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.at("outer"))
	p.must("format", p.at("source"))
	for _, below := range []string{"outer/inner", "outer/objects/deep"} {
		p.fails(2, p.at(below)+" lies within the volume "+p.at("outer")+": choose", "format", p.at(below))
		p.fails(2, p.at(below)+" lies within the volume "+p.at("outer")+": choose", "clone", p.at("source"), p.at(below))
		if _, err := os.Stat(p.path(strings.Split(below, "/")...)); err == nil {
			t.Errorf("%s was made", below)
		}
	}
	p.must("format", p.at("outer2"))
	p.write("around/notes/x", []byte("x"))
	p.must("format", p.at("around/db"))
	p.fails(2, "(it holds the volume "+p.at("around/db")+")", "format", p.at("around"))
	// A document that only has the name is nobody's volume.
	p.write("other/volume.json", []byte(`{"kind": "something else"}`))
	p.must("format", p.at("other/db"))
	p.must("check", p.at("outer"))
}

func TestS3_Format_NestedVolumes(t *testing.T) {
	p := newPlace(t)
	srv := newS3Server(t)
	p.env["CISTERN_CONFIG"] = srv.config(p)
	p.must("format", "s3://bucket/a/db")
	p.must("format", "s3://bucket/source")
	before := srv.keys(t)
	p.fails(2, "s3://bucket/a/db/x/y lies within the volume s3://bucket/a/db: choose", "format", "s3://bucket/a/db/x/y")
	p.fails(2, "s3://bucket/a/db/x lies within the volume s3://bucket/a/db: choose", "clone", "s3://bucket/source", "s3://bucket/a/db/x")
	p.fails(2, "of the volume s3://bucket/a/db)", "format", "s3://bucket/a")
	p.fails(2, "of the volume in db)", "clone", "s3://bucket/source", "s3://bucket/a")
	p.fails(2, "of the volume s3://bucket/a/db)", "format", "s3://bucket")
	if after := srv.keys(t); after != before {
		t.Errorf("the bucket has %s, had %s", after, before)
	}

	// Each prefix above costs one request, however deep, and not more than so many; who
	// may read the own prefix alone can format there.
	var looks atomic.Int64
	deep := "own" + strings.Repeat("/d", 60)
	deny := srv.denying(t, "/bucket/"+deep+"/", &looks)
	p.env["CISTERN_CONFIG"] = deny.config(p)
	p.must("format", "s3://bucket/"+deep)
	if n := looks.Load(); n != maxAbove {
		t.Errorf("%d requests above the prefix, want %d", n, maxAbove)
	}
}

// denying is a server of the same bucket that answers with 403 who reads volumes'
// documents, but below a path; it counts what it denies.
func (s *s3Server) denying(t *testing.T, path string, denied *atomic.Int64) *s3Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/volume.json") && !strings.HasPrefix(r.URL.Path, path) {
			denied.Add(1)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		s.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return &s3Server{backend: s.backend, url: srv.URL}
}
