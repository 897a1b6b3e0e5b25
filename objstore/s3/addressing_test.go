package s3

import (
	"net/url"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

func TestOpen_Addressing(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "")
	for _, c := range []struct {
		endpoint   string
		fromEnv    string
		addressing Addressing
		host, path string
	}{
		{"", "", AddressingAuto, "bucket.s3.eu-west-1.amazonaws.com", "/some/key~1"},
		{"", "", AddressingPath, "s3.eu-west-1.amazonaws.com", "/bucket/some/key~1"},
		{"http://store:9000", "", AddressingAuto, "store:9000", "/bucket/some/key~1"},
		{"https://store", "", AddressingPath, "store", "/bucket/some/key~1"},
		{"https://store", "", AddressingVirtual, "bucket.store", "/some/key~1"},
		{"", "https://other:444", AddressingAuto, "other:444", "/bucket/some/key~1"},
		{"http://store", "https://other:444", AddressingAuto, "store", "/bucket/some/key~1"},
	} {
		t.Setenv("AWS_ENDPOINT_URL_S3", c.fromEnv)
		s, err := Open(t.Context(), Options{
			Bucket: "bucket", Endpoint: c.endpoint, Addressing: c.addressing, Region: "eu-west-1", AccessKeyID: "a", SecretAccessKey: "b",
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := awss3.NewPresignClient(s.client).PresignGetObject(t.Context(), &awss3.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("some/key~1")})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(r.URL)
		if err != nil || u.Host != c.host || u.Path != c.path {
			t.Errorf("%+v: %s (%v)", c, r.URL, err)
		}
		if s.plain != (u.Scheme == "http") {
			t.Errorf("%+v: plain %t for %s", c, s.plain, r.URL)
		}
	}
}
