package s3_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func TestServers_CopyFrom(t *testing.T) {
	testenv.Long(t)
	for _, kind := range []storeserver.Kind{storeserver.Versitygw, storeserver.Rclone} {
		t.Run(kind.String(), func(t *testing.T) {
			server := testenv.StoreServer(t, kind)
			objstoretest.RunCopier(t, bucketAt(t, server, server.Endpoint), server.Bucket, "copy/")
		})
	}
}

func TestStore_CopyFrom_NotKnownToTheStore(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotImplemented) }))
	t.Cleanup(srv.Close)
	err := open(t, at(srv.URL)).CopyFrom(t.Context(), "to", 1, "bucket", "from")
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
