package gcs

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

func TestStore_Warnings_Cases(t *testing.T) {
	rule := func(action, condition map[string]any) map[string]any {
		return map[string]any{"lifecycle": map[string]any{"rule": []any{map[string]any{"action": action, "condition": condition}}}}
	}
	remove := map[string]any{"type": "Delete"}
	for name, c := range map[string]struct {
		settings map[string]any
		want     string // empty: no warning
	}{
		"plain":                     {map[string]any{"storageClass": "STANDARD"}, ""},
		"versions":                  {map[string]any{"versioning": map[string]any{"enabled": true}}, "Object Versioning"},
		"retention":                 {map[string]any{"retentionPolicy": map[string]any{"retentionPeriod": "86400", "effectiveTime": "2026-01-01T00:00:00Z"}}, "for 1 day (retention policy)"},
		"object retention":          {map[string]any{"objectRetention": map[string]any{"mode": "Enabled"}}, "object retention"},
		"holds":                     {map[string]any{"defaultEventBasedHold": true}, "event-based hold"},
		"soft delete":               {map[string]any{"softDeletePolicy": map[string]any{"retentionDurationSeconds": "604800"}}, "for 7 days (soft delete)"},
		"soft delete off":           {map[string]any{"softDeletePolicy": map[string]any{"retentionDurationSeconds": "0"}}, ""},
		"cold":                      {map[string]any{"storageClass": "COLDLINE"}, "COLDLINE"},
		"deletes":                   {rule(remove, map[string]any{"age": 30}), "deletes objects by itself"},
		"deletes in the volume":     {rule(remove, map[string]any{"age": 30, "matchesPrefix": []string{"vol/objects/"}}), "deletes objects by itself"},
		"deletes above the volume":  {rule(remove, map[string]any{"matchesPrefix": []string{"x", "vo"}}), "deletes objects by itself"},
		"deletes beside the volume": {rule(remove, map[string]any{"matchesPrefix": []string{"other/", "vol2/"}}), ""},
		"deletes old generations":   {rule(remove, map[string]any{"isLive": false}), ""},
		"deletes all but new ones":  {rule(remove, map[string]any{"numNewerVersions": 1}), ""},
		"deletes after a while":     {rule(remove, map[string]any{"daysSinceNoncurrentTime": 3}), ""},
		"moves":                     {rule(map[string]any{"type": "SetStorageClass", "storageClass": "ARCHIVE"}, map[string]any{"age": 1}), "moves objects to ARCHIVE"},
		"aborts uploads":            {rule(map[string]any{"type": "AbortIncompleteMultipartUpload"}, map[string]any{"age": 1}), ""},
	} {
		s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, c.settings) })
		got, err := s.Warnings(t.Context(), "vol/")
		if err != nil || len(got) != min(len(c.want), 1) || c.want != "" && (!strings.HasPrefix(got[0], "bucket b ") || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestStore_Warnings_ThatCantBeRead(t *testing.T) {
	for code, want := range map[int]error{401: nil, 403: nil, 404: objstore.ErrNoBucket, 503: objstore.ErrUnavailable} {
		s, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, code, "", "of the bucket") })
		got, err := s.Warnings(t.Context(), "")
		if !errors.Is(err, want) || want == nil && err != nil || got != nil || len(srv.seen()) != 1 {
			t.Errorf("%d: %q, %v, %d requests", code, got, err, len(srv.seen()))
		}
	}
}
