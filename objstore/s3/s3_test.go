package s3_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/objstoretest"
	"github.com/cisternfs/cistern/objstore/s3"
)

// fakeHandler is a server in this process, with one bucket.
func fakeHandler(t *testing.T) http.Handler {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend, gofakes3.WithIntegrityCheck(true)).Server()
}

// fake starts such a server and returns options for it.
func fake(t *testing.T) s3.Options {
	t.Helper()
	srv := httptest.NewServer(fakeHandler(t))
	t.Cleanup(srv.Close)
	return at(srv.URL)
}

// at are options for a server of a test.
func at(url string) s3.Options {
	return s3.Options{Bucket: "bucket", Endpoint: url, Region: "us-east-1", AccessKeyID: "key", SecretAccessKey: "secret"}
}

func open(t *testing.T, o s3.Options) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore_Conformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t, fake(t)) })
}

func TestStore_Probe(t *testing.T) {
	if err := objstore.Probe(t.Context(), open(t, fake(t))); err != nil {
		t.Error(err)
	}
}
