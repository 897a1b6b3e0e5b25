package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// settings answers for a bucket's settings, by the query's name.
func settings(bodies map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"versioning", "object-lock", "lifecycle"} {
			if _, ok := r.URL.Query()[name]; !ok {
				continue
			}
			body, ok := bodies[name]
			if !ok {
				refuse(w, r, 403, "AccessDenied")
				return
			}
			if body == "" {
				refuse(w, r, 404, map[string]string{"object-lock": "ObjectLockConfigurationNotFoundError", "lifecycle": "NoSuchLifecycleConfiguration"}[name])
				return
			}
			fmt.Fprint(w, body)
			return
		}
		w.WriteHeader(http.StatusTeapot)
	}
}

func rule(id, status, inside string) string {
	return "<Rule><ID>" + id + "</ID><Status>" + status + "</Status>" + inside + "</Rule>"
}

func TestStore_Warnings(t *testing.T) {
	const (
		versions   = `<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>`
		noVersions = `<VersioningConfiguration/>`
		suspended  = `<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>`
		days       = `<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>7</Days></DefaultRetention></Rule></ObjectLockConfiguration>`
		years      = `<ObjectLockConfiguration><Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Years>1</Years></DefaultRetention></Rule></ObjectLockConfiguration>`
		lockOnly   = `<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>`
		expire     = `<Expiration><Days>30</Days></Expiration>`
		markers    = `<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>`
		glacier    = `<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>`
		rare       = `<Transition><Days>1</Days><StorageClass>STANDARD_IA</StorageClass></Transition>`
	)
	under := func(p string) string { return "<Filter><Prefix>" + p + "</Prefix></Filter>" }
	rules := func(r ...string) string {
		return "<LifecycleConfiguration>" + strings.Join(r, "") + "</LifecycleConfiguration>"
	}
	for name, c := range map[string]struct {
		bodies map[string]string
		want   []string
	}{
		"nothing set":      {map[string]string{"versioning": noVersions, "object-lock": "", "lifecycle": ""}, nil},
		"nothing allowed":  {nil, nil},
		"versions":         {map[string]string{"versioning": versions}, []string{"versioning on"}},
		"suspended":        {map[string]string{"versioning": suspended}, nil},
		"locked for days":  {map[string]string{"object-lock": days}, []string{"7 days"}},
		"locked for years": {map[string]string{"object-lock": years, "versioning": versions}, []string{"versioning on", "1 years"}},
		"lock by hand":     {map[string]string{"object-lock": lockOnly}, nil},
		"expiry of all":    {map[string]string{"lifecycle": rules(rule("r1", "Enabled", expire+under("")))}, []string{`"r1"`}},
		"expiry old style": {map[string]string{"lifecycle": rules(rule("r2", "Enabled", "<Prefix>vol/</Prefix>"+expire))}, []string{`"r2"`}},
		"expiry of a part": {map[string]string{"lifecycle": rules(rule("r3", "Enabled", expire+"<Filter><And><Prefix>vol/objects/</Prefix></And></Filter>"))}, []string{`"r3"`}},
		"expiry elsewhere": {map[string]string{"lifecycle": rules(rule("r4", "Enabled", expire+under("other/")), rule("r5", "Disabled", expire+under("")))}, nil},
		"markers only":     {map[string]string{"lifecycle": rules(rule("r6", "Enabled", markers+under("")))}, nil},
		"archive":          {map[string]string{"lifecycle": rules(rule("r7", "Enabled", glacier+rare+under("vol/")))}, []string{"can't read them", "STANDARD_IA"}},
	} {
		var log bytes.Buffer
		o := serve(t, settings(c.bodies))
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		got, err := open(t, o).Warnings(t.Context(), "vol/")
		if err != nil || len(got) != len(c.want) || log.Len() > 0 {
			t.Errorf("%s: %q, %v, log %q; want %q", name, got, err, log.String(), c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) || strings.Contains(got[i], "\n") {
				t.Errorf("%s: %q, want %q in it", name, got[i], c.want[i])
			}
		}
	}
}

func TestStore_Warnings_StoreAway(t *testing.T) {
	s := open(t, serve(t, func(w http.ResponseWriter, r *http.Request) { refuse(w, r, 503, "ServiceUnavailable") }))
	if list, err := s.Warnings(t.Context(), ""); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("%q, %v", list, err)
	}
	if err := s.Delete(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
		t.Error(err)
	}
}
