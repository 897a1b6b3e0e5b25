package gcs

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

// realBuckets returns a function that opens a new bucket of a real server.
func realBuckets(t *testing.T) func(t *testing.T) objstore.Store {
	t.Helper()
	srv := testenv.StoreServer(t, storeserver.FakeGCS)
	var n atomic.Int32
	return func(t *testing.T) objstore.Store {
		t.Helper()
		s := openAt(t, Options{Bucket: fmt.Sprintf("bucket-%d", n.Add(1)), Endpoint: srv.Endpoint, Anonymous: true})
		if err := s.bucket.Create(t.Context(), "project", nil); err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func TestStore_Conformance_FakeGCSServer(t *testing.T) {
	open := realBuckets(t)
	objstoretest.Run(t, open)
	t.Run("Retrying", func(t *testing.T) {
		objstoretest.Run(t, func(t *testing.T) objstore.Store {
			return objstore.WithRetry(objstore.WithTimeout(open(t), objstore.TimeoutOptions{}), objstore.RetryOptions{})
		})
	})
}

func TestStore_Probe_FakeGCSServer(t *testing.T) {
	open := realBuckets(t)
	if err := objstore.Probe(t.Context(), open(t)); err != nil {
		t.Error(err)
	}
}

func TestStore_MissingBucket_FakeGCSServer(t *testing.T) {
	srv := testenv.StoreServer(t, storeserver.FakeGCS)
	s := openAt(t, Options{Bucket: "nowhere", Endpoint: srv.Endpoint, Anonymous: true})
	for op, call := range calls(s) {
		if err := call(t.Context()); objstore.Class(err) != "no_bucket" {
			t.Errorf("%s: %v", op, err)
		}
	}
	if _, err := s.Warnings(t.Context(), ""); objstore.Class(err) != "no_bucket" {
		t.Errorf("warnings: %v", err)
	}
}
