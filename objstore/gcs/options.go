package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"cloud.google.com/go/storage"
	"google.golang.org/api/option"
)

const (
	googleEndpoint = "https://storage.googleapis.com"
	apiPath        = "/storage/v1/"
	userAgent      = "cistern"

	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
	idleConns   = 64       // kept open; more than the limits on parallel requests
	connBuffer  = 64 << 10 // bytes, each way: a body's pieces go out in one write with their heads
	maxKeyFile  = 1 << 20
)

// Options say which bucket to open and how. Only Bucket is required.
type Options struct {
	Bucket string
	// KeyFile is the path of a JSON file of credentials: a service account's
	// key, or the configuration of a workload identity. Empty: the
	// application default credentials, which are the file that
	// $GOOGLE_APPLICATION_CREDENTIALS names, gcloud's own, or the machine's
	// service account, in this order.
	KeyFile string
	// Anonymous sends no credentials. It excludes KeyFile.
	Anonymous bool
	// Endpoint is the scheme, host and port of another server that speaks the
	// JSON API. Empty: Google's.
	Endpoint string
	// Emulator is the value of $STORAGE_EMULATOR_HOST, a host and port or a
	// URL. It stands in for an empty Endpoint, and then no credentials are
	// looked for unless KeyFile names some.
	Emulator string
	// UserProject is the project that pays for requests to a bucket whose
	// requesters pay.
	UserProject string
}

// Validate returns an error that says which option is unusable.
func (o Options) Validate() error {
	if o.Bucket == "" {
		return errors.New("no bucket is named")
	}
	if o.Anonymous && o.KeyFile != "" {
		return fmt.Errorf("key file %s: anonymous access sends no credentials: set one of the two", o.KeyFile)
	}
	_, err := o.endpoint()
	return err
}

// emulated says whether the server is an emulator that the environment names.
func (o Options) emulated() bool { return o.Endpoint == "" && o.Emulator != "" }

// endpoint returns scheme, host and port of the server.
func (o Options) endpoint() (string, error) {
	text := o.Endpoint
	if o.emulated() {
		text = o.Emulator
		if !strings.Contains(text, "://") {
			text = "http://" + text
		}
	}
	if text == "" {
		return googleEndpoint, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" && !o.emulated() || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("endpoint %q: expected scheme, host and port, like https://storage.example.com:4443", text)
	}
	return u.Scheme + "://" + u.Host, nil
}

// Open returns the store of one bucket. It makes no request: a bucket that is
// missing or closed to these credentials is reported by the first one. Its
// errors are about options and credentials.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", o.Bucket, err)
	}
	endpoint, err := o.endpoint()
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", o.Bucket, err)
	}
	hc, err := o.client()
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", o.Bucket, err)
	}
	// The client brings its credentials along: the library is not to look for
	// others.
	client, err := storage.NewClient(ctx, option.WithHTTPClient(hc), option.WithEndpoint(endpoint+apiPath), option.WithoutAuthentication())
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", o.Bucket, err)
	}
	client.SetRetry(storage.WithPolicy(storage.RetryNever))
	bucket := client.Bucket(o.Bucket)
	if o.UserProject != "" {
		bucket = bucket.UserProject(o.UserProject)
	}
	return &Store{o: o, base: endpoint + apiPath, hc: hc, client: client, bucket: bucket}, nil
}

// Place names the service that is asked, by its address. It makes no request.
func (s *Store) Place() string { return s.base }

// client returns the HTTP client of all requests.
func (o Options) client() (*http.Client, error) {
	creds, err := o.credentials()
	if err != nil {
		return nil, err
	}
	hc, err := httptransport.NewClient(&httptransport.Options{
		Credentials:           creds,
		DisableAuthentication: creds == nil,
		DisableTelemetry:      true,
		BaseRoundTripper:      transport(),
		Headers:               http.Header{"User-Agent": {userAgent}},
	})
	if err != nil {
		return nil, fmt.Errorf("set up credentials: %w", err)
	}
	// The API never redirects, and a token is not to follow one elsewhere.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return hc, nil
}

// transport makes HTTP/1.1 connections: with HTTP/2 all requests would share
// one connection, and one lost packet would halt them all. Requests are bounded
// in time by their contexts.
func transport() *http.Transport {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     idleTimeout,
		WriteBufferSize:     connBuffer,
		ReadBufferSize:      connBuffer,
		Protocols:           new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// credentials returns nil for anonymous access.
func (o Options) credentials() (*auth.Credentials, error) {
	detect := &credentials.DetectOptions{Scopes: []string{storage.ScopeReadWrite}}
	switch {
	case o.KeyFile != "":
		return readKey(o.KeyFile, detect)
	case o.Anonymous, o.emulated():
		return nil, nil
	}
	creds, err := credentials.DetectDefault(detect)
	if err != nil {
		return nil, fmt.Errorf("no credentials: name a key file, or run `gcloud auth application-default login`: %w", err)
	}
	return creds, nil
}

// readKey reads a file of credentials of any type: whoever may set its path
// may also run programs.
func readKey(path string, detect *credentials.DetectOptions) (*auth.Credentials, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if st.Size() > maxKeyFile {
		return nil, fmt.Errorf("key file %s: %d bytes are too many for credentials", path, st.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	var head struct {
		Type credentials.CredType `json:"type"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("key file %s is no JSON: %w", path, err)
	}
	creds, err := credentials.NewCredentialsFromJSON(head.Type, text, detect)
	if err != nil {
		return nil, fmt.Errorf("key file %s holds no usable credentials: %w", path, err)
	}
	return creds, nil
}
