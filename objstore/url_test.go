package objstore_test

import (
	"strings"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

func TestParseURL_Parts(t *testing.T) {
	for in, want := range map[string]objstore.URL{
		"file:///dir":                     {Scheme: "file", Path: "/dir"},
		"file:///a/../b//c/":              {Scheme: "file", Path: "/b/c"},
		"file:///dir@snap":                {Scheme: "file", Path: "/dir", Point: "snap"},
		"file:///a@b/c":                   {Scheme: "file", Path: "/a@b/c"},
		"file:///a@b/c@-15m":              {Scheme: "file", Path: "/a@b/c", Point: "-15m"},
		"s3://bucket":                     {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket/":                    {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket@12":                  {Scheme: "s3", Bucket: "bucket", Point: "12"},
		"s3://bucket/pre/fix":             {Scheme: "s3", Bucket: "bucket", Path: "pre/fix"},
		"s3://bucket/p%20x/":              {Scheme: "s3", Bucket: "bucket", Path: "p%20x"},
		"gs://b.c_d/p@2024-05-01T10:00Z":  {Scheme: "gs", Bucket: "b.c_d", Path: "p", Point: "2024-05-01T10:00Z"},
		"gs://bucket/a@b@c":               {Scheme: "gs", Bucket: "bucket", Path: "a@b", Point: "c"},
		"s3://bucket/ümlaut/data~1@x y":   {Scheme: "s3", Bucket: "bucket", Path: "ümlaut/data~1", Point: "x y"},
		"s3://bucket/with?question#sharp": {Scheme: "s3", Bucket: "bucket", Path: "with?question#sharp"},
	} {
		got, err := objstore.ParseURL(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
			continue
		}
		if again, err := objstore.ParseURL(got.String()); err != nil || again != got {
			t.Errorf("%s: printed as %s, read as %+v, %v", in, got, again, err)
		}
	}
}

func TestParseURL_Errors(t *testing.T) {
	for in, want := range map[string]string{
		"":                "is not a volume's URL",
		"/dir":            "is not a volume's URL",
		"bucket/prefix":   "is not a volume's URL",
		"http://host/x":   "unknown scheme",
		"S3://bucket/x":   "unknown scheme",
		"file://dir/x":    "three slashes",
		"file://":         "three slashes",
		"file:///":        "root directory",
		"file:///x/..":    "root directory",
		"s3://":           "no bucket",
		"s3:///prefix":    "no bucket",
		"s3://b:9000/x":   "not a bucket's name",
		"s3://u@b/x":      "not a bucket's name",
		"s3://b/x@":       "names no point",
		"s3://b/x//y":     "empty, . or .. segment",
		"s3://b/../y":     "empty, . or .. segment",
		"gs://b/x\ny":     "control character",
		"file:///x\x00/y": "control character",
	} {
		if u, err := objstore.ParseURL(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want an error with %q", in, u, err, want)
		}
	}
}

func TestURL_Prefix_EndsWithSlash(t *testing.T) {
	for in, want := range map[string]string{"s3://b": "", "s3://b/x": "x/", "gs://b/x/y/": "x/y/", "file:///x": ""} {
		u, err := objstore.ParseURL(in)
		if err != nil || u.Prefix() != want {
			t.Errorf("%s: %q, %v", in, u.Prefix(), err)
		}
	}
}

func TestURL_Parent_UpToTheBucket(t *testing.T) {
	for in, want := range map[string]string{
		"s3://b/x/y": "s3://b/x", "s3://b/x": "s3://b", "gs://b": "", "file:///x/y": "file:///x", "file:///x": "", "s3://b/x/y@-15m": "s3://b/x",
	} {
		u, err := objstore.ParseURL(in)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if p, ok := u.Parent(); ok {
			got = p.String()
		}
		if got != want {
			t.Errorf("above %s: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"s3://b": "s3://b/c/d", "s3://b/x": "s3://b/x/c/d", "file:///x": "file:///x/c/d"} {
		u, err := objstore.ParseURL(in)
		if err != nil || u.Child("c/d").String() != want {
			t.Errorf("below %s: %q, %v", in, u.Child("c/d"), err)
		}
	}
}
