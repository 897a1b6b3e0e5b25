package s3

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
)

// Addressing says where a request's URL has the bucket's name.
type Addressing string

// The kinds of addressing.
const (
	AddressingAuto    Addressing = ""        // path with an endpoint of one's own, virtual host with Amazon's
	AddressingPath    Addressing = "path"    // https://endpoint/bucket/key
	AddressingVirtual Addressing = "virtual" // https://bucket.endpoint/key
)

// Options say which bucket to open and how. Everything but Bucket may be left
// empty; what is empty comes from where the AWS SDK looks: the AWS_… environment
// variables, the shared files and profiles, a web identity, the roles of
// containers and EC2 instances (IMDSv2).
type Options struct {
	Bucket     string
	Endpoint   string // scheme://host[:port]; empty: Amazon's, or AWS_ENDPOINT_URL_S3
	Region     string // empty and nowhere else: us-east-1 with an endpoint of one's own
	Addressing Addressing

	CAFile      string // PEM file with more roots for TLS; an absolute path
	InsecureTLS bool   // accept any certificate

	AccessKeyID, SecretAccessKey, SessionToken string
	Profile                                    string // of the shared files
	EC2Role                                    bool   // keys come from the EC2 instance's role and nowhere else

	// The role to assume with the keys found as above: by ARN, or by name within
	// the keys' own account.
	RoleARN, RoleName, ExternalID string
	STSRegion, STSEndpoint        string // of the service that hands out roles

	SSE      string // server-side encryption: AES256, aws:kms or aws:kms:dsse
	KMSKeyID string
	// StorageClass is for bodies from 128 KiB up, the least that the cheaper
	// classes bill; smaller ones, and with them all that is soon overwritten or
	// deleted, stay in the bucket's default.
	StorageClass string
	Tags         map[string]string // on every object; at most 10

	Logger *slog.Logger // for debugging; nil: nothing is logged
}

// maxTags is how many tags S3 lets an object have.
const maxTags = 10

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	if o.Bucket == "" {
		return errors.New("no bucket is named")
	}
	if err := checkEndpoint("endpoint", o.Endpoint); err != nil {
		return err
	}
	if err := checkEndpoint("STS endpoint", o.STSEndpoint); err != nil {
		return err
	}
	switch o.Addressing {
	case AddressingAuto, AddressingPath, AddressingVirtual:
	default:
		return fmt.Errorf("addressing %q: choose path or virtual", o.Addressing)
	}
	if o.CAFile != "" && !filepath.IsAbs(o.CAFile) {
		return fmt.Errorf("CA file %q: give an absolute path", o.CAFile)
	}
	if err := o.checkCredentials(); err != nil {
		return err
	}
	switch o.SSE {
	case "", "AES256", "aws:kms", "aws:kms:dsse":
	default:
		return fmt.Errorf("server-side encryption %q: choose AES256, aws:kms or aws:kms:dsse", o.SSE)
	}
	if o.KMSKeyID != "" && !strings.HasPrefix(o.SSE, "aws:kms") {
		return errors.New("a KMS key goes with server-side encryption aws:kms or aws:kms:dsse only")
	}
	switch o.StorageClass {
	case "GLACIER", "DEEP_ARCHIVE":
		return fmt.Errorf("storage class %s: its objects can't be read at once, so no volume can live there", o.StorageClass)
	}
	return o.checkTags()
}

func checkEndpoint(what, s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%s %q: give it as https://host, https://host:port or http://host:port", what, s)
	case u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("%s of host %s: it must be scheme, host and port alone", what, u.Host)
	}
	return nil
}

func (o *Options) checkCredentials() error {
	switch {
	case (o.AccessKeyID == "") != (o.SecretAccessKey == ""):
		return errors.New("an access key and its secret key go together: give both or none")
	case o.SessionToken != "" && o.AccessKeyID == "":
		return errors.New("a session token goes with an access key")
	case o.AccessKeyID != "" && o.EC2Role:
		return errors.New("keys and the EC2 instance's role exclude each other")
	case o.AccessKeyID != "" && o.Profile != "":
		return errors.New("keys and a profile exclude each other")
	case o.RoleARN != "" && o.RoleName != "":
		return errors.New("a role's ARN and a role's name exclude each other")
	case o.RoleARN != "" && !strings.HasPrefix(o.RoleARN, "arn:"):
		return fmt.Errorf("role %q is no ARN: it should look like arn:aws:iam::123456789012:role/name", o.RoleARN)
	case o.ExternalID != "" && o.RoleARN == "" && o.RoleName == "":
		return errors.New("an external id goes with a role to assume")
	}
	return nil
}

func (o *Options) checkTags() error {
	if len(o.Tags) > maxTags {
		return fmt.Errorf("%d tags: an object has at most %d", len(o.Tags), maxTags)
	}
	for k, v := range o.Tags {
		if k == "" || len(k) > 128 || len(v) > 256 {
			return fmt.Errorf("tag %q=%q: a key has 1 to 128 bytes, a value at most 256", k, v)
		}
	}
	return nil
}
