package gcs_test

import (
	"testing"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore/gcs"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func TestServers_CopyFrom(t *testing.T) {
	testenv.Long(t)
	server := testenv.StoreServer(t, storeserver.FakeGCS)
	s, err := gcs.Open(t.Context(), gcs.Options{Bucket: server.Bucket, Endpoint: server.Endpoint, Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	objstoretest.RunCopier(t, s, server.Bucket, "copy/")
}
