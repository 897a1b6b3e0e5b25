package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/metadata"
	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"

	"github.com/cisternfs/cistern/objstore"
)

// maxText bounds what is quoted of a server's own words, in bytes.
const maxText = 300

// fail gives err, of a request about key, its class and words. A 404 becomes
// ErrNotExist or ErrNoBucket, which may take another request.
func (s *Store) fail(ctx context.Context, op, key string, err error) error {
	if notFound(err) && ctx.Err() == nil {
		return s.missing(ctx, op, key, err)
	}
	return fmt.Errorf("%s %s: %w", op, key, classify(ctx, err))
}

func (s *Store) noBucket(op, key string) error {
	return fmt.Errorf("%s %s: %w: %s", op, key, objstore.ErrNoBucket, s.o.Bucket)
}

// notFound says whether the server's answer was 404.
func notFound(err error) bool {
	var e *googleapi.Error
	return errors.As(err, &e) && e.Code == http.StatusNotFound
}

// missing finds out what a 404 is about. The API has one reason for a missing
// object and a missing bucket; only its words tell them apart, and where they
// are others, only a listing does.
func (s *Store) missing(ctx context.Context, op, key string, err error) error {
	notExist := fmt.Errorf("%s %s: %w", op, key, objstore.ErrNotExist)
	text := words(err)
	if strings.Contains(text, "No such object") {
		return notExist
	}
	if strings.Contains(text, "bucket does not exist") {
		return s.noBucket(op, key)
	}
	it := s.bucket.Objects(ctx, &storage.Query{Prefix: key, Projection: storage.ProjectionNoACL})
	it.PageInfo().MaxSize = 1
	_, err = it.Next()
	switch {
	case err == nil, err == iterator.Done:
		return notExist
	case notFound(err):
		return s.noBucket(op, key)
	}
	err = fmt.Errorf("%s %s: %w", op, key, classify(ctx, err))
	if errors.Is(err, objstore.ErrPermission) {
		// The first answer was given to the same credentials.
		return notExist
	}
	return err
}

// classify wraps what a request returned in its class, in one line.
func classify(ctx context.Context, err error) error {
	var answer *googleapi.Error
	var mine bodyError
	switch {
	case errors.As(err, &mine):
		return mine
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s", ctx.Err(), words(err))
	case errors.As(err, &answer):
		return status(answer)
	}
	if class := tokenClass(err); class != nil {
		return fmt.Errorf("%w: no access token: %s", class, words(err))
	}
	if transient(err) {
		return fmt.Errorf("%w: %s", objstore.ErrUnavailable, words(err))
	}
	return err
}

// status gives an answer of the server its class. The codes are those of
// cloud.google.com/storage/docs/json_api/v1/status-codes.
func status(e *googleapi.Error) error {
	var class error
	switch {
	case e.Code == http.StatusPreconditionFailed:
		class = objstore.ErrConditionFailed
	case e.Code == http.StatusTooManyRequests, e.Code == http.StatusForbidden && throttled(e):
		class = objstore.ErrThrottled
	case e.Code == http.StatusUnauthorized, e.Code == http.StatusForbidden, e.Code == http.StatusPaymentRequired:
		class = objstore.ErrPermission
	case e.Code == http.StatusRequestTimeout, e.Code == http.StatusConflict, e.Code >= 500:
		class = objstore.ErrUnavailable
	default:
		return fmt.Errorf("the store refused the request: HTTP %d: %s", e.Code, words(e))
	}
	return fmt.Errorf("%w: HTTP %d: %s", class, e.Code, words(e))
}

// throttled says whether a 403 is about the rate of requests.
func throttled(e *googleapi.Error) bool {
	for _, item := range e.Errors {
		if item.Reason == "rateLimitExceeded" || item.Reason == "userRateLimitExceeded" {
			return true
		}
	}
	return false
}

// tokenClass is the class of a failure to get an access token: refused
// credentials are a matter of permission, everything else may pass. It is nil
// for other errors.
func tokenClass(err error) error {
	var code int
	var token *auth.Error
	var machine *metadata.Error
	var undefined metadata.NotDefinedError
	switch {
	case errors.As(err, &token):
		if token.Response != nil {
			code = token.Response.StatusCode
		}
	case errors.As(err, &machine):
		code = machine.Code
	case errors.As(err, &undefined):
		code = http.StatusNotFound
	default:
		return nil
	}
	if code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
		return objstore.ErrPermission
	}
	return objstore.ErrUnavailable
}

// transient says whether err is a failure of the network, or an answer that
// broke off or is no JSON, as proxies give it.
func transient(err error) bool {
	var request *url.Error
	var network net.Error
	var syntax *json.SyntaxError
	return errors.As(err, &request) || errors.As(err, &network) || errors.As(err, &syntax) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// words returns what err says, in one line of at most maxText bytes and
// without the request's URL.
func words(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	text := err.Error()
	var answer *googleapi.Error
	if errors.As(err, &answer) {
		text = answer.Message
		if text == "" {
			text = answer.Body
		}
		if text == "" {
			text = http.StatusText(answer.Code)
		}
	}
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
