package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/cisternfs/cistern/objstore"
)

// finding is what a reply's status and code mean.
type finding struct {
	class error  // nil: none
	hint  string // for people; may be empty
}

// byCode are the error codes that say more than the status beside them.
func byCode(code string) (finding, bool) {
	switch code {
	case "NoSuchKey":
		return finding{objstore.ErrNotExist, ""}, true
	case "NoSuchBucket":
		return finding{objstore.ErrNoBucket, "make it first, or check the URL and the endpoint"}, true
	case "InvalidBucketName":
		return finding{objstore.ErrNoBucket, "no bucket can be called so: check the URL (3 to 63 lower-case letters, digits, dots and dashes)"}, true
	case "PreconditionFailed":
		return finding{objstore.ErrConditionFailed, ""}, true
	case "ConditionalRequestConflict", "OperationAborted":
		return finding{objstore.ErrUnavailable, "another request changed the key at the same time"}, true
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded",
		"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "BandwidthLimitExceeded":
		return finding{objstore.ErrThrottled, ""}, true
	case "RequestTimeTooSkewed":
		return finding{objstore.ErrUnavailable, "this machine's clock and the store's differ: set the clock if this goes on"}, true
	case "RequestTimeout", "IncompleteBody", "InternalError", "ServiceUnavailable":
		return finding{objstore.ErrUnavailable, ""}, true
	case "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch":
		return finding{objstore.ErrDamaged, "the store received other bytes than were sent"}, true
	case "InvalidAccessKeyId":
		return finding{objstore.ErrPermission, "the store does not know the access key"}, true
	case "SignatureDoesNotMatch":
		return finding{objstore.ErrPermission, "the secret key is wrong, or something on the way changed the request"}, true
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired":
		return finding{objstore.ErrPermission, "the credentials have expired: renew them"}, true
	case "InvalidToken", "InvalidClientTokenId", "UnrecognizedClientException":
		return finding{objstore.ErrPermission, "the store does not know the credentials"}, true
	case "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return finding{objstore.ErrPermission, "the region of the configuration is wrong"}, true
	case "InvalidObjectState":
		return finding{nil, "the object was moved to an archive: a lifecycle rule must not do that to a volume"}, true
	case "KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException":
		return finding{objstore.ErrPermission, "the KMS key can't be used"}, true
	}
	return finding{}, false
}

// judge returns what a status and a code mean together.
func judge(status int, code string) finding {
	if f, ok := byCode(code); ok {
		return f
	}
	switch {
	case status == http.StatusNotFound:
		return finding{objstore.ErrNotExist, ""}
	case status == http.StatusPreconditionFailed:
		return finding{objstore.ErrConditionFailed, ""}
	case status == http.StatusConflict && (code == "" || code == "Conflict"):
		return finding{objstore.ErrUnavailable, "another request changed the key at the same time"}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return finding{objstore.ErrPermission, ""}
	case status == http.StatusTooManyRequests:
		return finding{objstore.ErrThrottled, ""}
	case status == http.StatusNotImplemented:
		return finding{nil, "the store does not know this kind of request"}
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTemporaryRedirect:
		return finding{objstore.ErrUnavailable, ""}
	}
	return finding{}
}

// operation is a kind of request.
type operation struct {
	name   string
	action string // that a policy must allow
}

var (
	opGet    = operation{"get", "s3:GetObject"}
	opPut    = operation{"put", "s3:PutObject"}
	opHead   = operation{"head", "s3:GetObject"}
	opList   = operation{"list", "s3:ListBucket"}
	opDelete = operation{"delete", "s3:DeleteObject"}
)

// failed gives an error of the SDK its class and says what happened. The
// original is only quoted: contexts of its own that ended within it must not
// look like the caller's.
func (s *Store) failed(ctx context.Context, op operation, key string, err error) error {
	what := fmt.Sprintf("%s s3://%s/%s", op.name, s.o.Bucket, key)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	var cred *credentialError
	if errors.As(err, &cred) {
		return fmt.Errorf("%s: %w: %v", what, cred.class, cred.err)
	}
	status := statusOf(err)
	if status == http.StatusMovedPermanently {
		return fmt.Errorf("%s: %s: %w", what, s.elsewhere(err), objstore.ErrNoBucket)
	}
	if status < 300 {
		return fmt.Errorf("%s: %w", what, s.unanswered(err, status))
	}
	code, text := "", fmt.Sprintf("status %d %s", status, http.StatusText(status))
	var api smithy.APIError
	if errors.As(err, &api) {
		code, text = api.ErrorCode(), api.ErrorCode()+": "+api.ErrorMessage()
	}
	if region := regionInMessage(text); code == "AuthorizationHeaderMalformed" && region != "" {
		text = fmt.Sprintf("the bucket is in region %s, and requests are signed for %s: set the region", region, s.region)
	}
	f := judge(status, code)
	if f.class == objstore.ErrPermission && f.hint == "" {
		f.hint = "the credentials must be allowed " + op.action
	}
	if f.hint != "" {
		text = f.hint + " (" + text + ")"
	}
	if id := requestOf(err); id != "" {
		text += ", request " + id
	}
	if code == "ExpiredToken" || code == "InvalidToken" {
		s.creds.Invalidate() // a provider may have fresh ones by now
	}
	if f.class == nil {
		return fmt.Errorf("%s: the store answered %d: %s", what, status, text)
	}
	return fmt.Errorf("%s: %w: %s", what, f.class, text)
}

// unanswered is the error of a request without a usable reply.
func (s *Store) unanswered(err error, status int) error {
	var cert x509.UnknownAuthorityError
	var dns *net.DNSError
	var network net.Error
	var garbage *smithy.DeserializationError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w: the certificate of %s is of an authority that is not known here: name its certificate with ca_file", objstore.ErrUnavailable, s.where)
	case errors.As(err, &dns):
		hint := ""
		if !s.client.Options().UsePathStyle && s.client.Options().BaseEndpoint != nil {
			hint = " (the bucket's name is part of the host's: path_style = true puts it into the path)"
		}
		return fmt.Errorf("%w: %v%s", objstore.ErrUnavailable, dns, hint)
	case status > 0 && errors.As(err, &garbage) && !errors.As(err, &network) && !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the reply of %s is not what S3 answers: %v", objstore.ErrDamaged, s.where, garbage)
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // without the URL, which says what is said already
	}
	if _, host, _ := strings.Cut(s.where, "://"); host != "" && strings.Contains(err.Error(), host) {
		return fmt.Errorf("%w: %v", objstore.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %s: %v", objstore.ErrUnavailable, s.where, err)
}

// elsewhere says in which region a bucket is.
func (s *Store) elsewhere(err error) string {
	var re *awshttp.ResponseError
	region := ""
	if errors.As(err, &re) && re.Response != nil {
		region = re.Response.Header.Get("x-amz-bucket-region")
	}
	if region == "" {
		return fmt.Sprintf("bucket %s is in another region than %s: set the region, or the endpoint, to the bucket's", s.o.Bucket, s.region)
	}
	return fmt.Sprintf("bucket %s is in region %s, not %s: set the region to %s", s.o.Bucket, region, s.region, region)
}

// regionInMessage finds the region that a refused signature should have named.
func regionInMessage(text string) string {
	m := regexp.MustCompile(`expecting '([a-z0-9-]+)'`).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

// statusOf returns the reply's status; 0 when there was no reply.
func statusOf(err error) int {
	var re interface{ HTTPStatusCode() int }
	if errors.As(err, &re) {
		return re.HTTPStatusCode()
	}
	return 0
}

func requestOf(err error) string {
	var re *awshttp.ResponseError
	if errors.As(err, &re) {
		return re.RequestID
	}
	return ""
}
