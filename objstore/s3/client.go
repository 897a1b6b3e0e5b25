package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/cisternfs/cistern/objstore"
)

// How connections are kept.
const (
	dialTimeout = 5 * time.Second
	idleTimeout = 30 * time.Second
	idleConns   = 64
	wireBuffer  = 64 << 10 // bytes, each way of a connection
)

// Store is a bucket.
type Store struct {
	client  *awss3.Client
	creds   *aws.CredentialsCache
	o       Options
	region  string
	where   string      // the endpoint, for messages
	tagging string      // Options.Tags as the header wants them
	plain   bool        // requests go over plain HTTP
	bare    atomic.Bool // conditions are sent without quotes
	crcs    atomic.Bool // a reply had the CRC32C of what was stored: the store computes it
	quoted  atomic.Bool // a condition with quotes was met once: the store knows them
	log     *slog.Logger
}

var _ objstore.Store = (*Store)(nil)

// Open returns the bucket that the options name. It makes no request of the
// bucket: a missing one is noticed by the first Get, Put or List. What is wrong
// with the options or with the files that they name is an error here.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("S3 bucket %s: %w", o.Bucket, err)
	}
	s := &Store{o: o, log: o.Logger, tagging: tagging(o.Tags)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	cfg, err := loadConfig(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("S3 bucket %s: %w", o.Bucket, err)
	}
	s.creds = chain(cfg, &o)
	s.client = awss3.NewFromConfig(cfg, s.configure)
	s.region = s.client.Options().Region
	if s.region == "" {
		return nil, fmt.Errorf("S3 bucket %s: its region is not known: set region in the section [S3] of the configuration file, or AWS_REGION", o.Bucket)
	}
	return s, nil
}

// Place names the service that is asked, by its address. It makes no request.
func (s *Store) Place() string { return s.where }

// configure sets the client's own options.
func (s *Store) configure(c *awss3.Options) {
	c.Retryer = aws.NopRetryer{}
	c.Credentials = s.creds
	c.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	c.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	c.DisableLogOutputChecksumValidationSkipped = true
	c.ContinueHeaderThresholdBytes = -1 // never: see doc.go
	if s.o.Endpoint != "" {
		c.BaseEndpoint = aws.String(s.o.Endpoint)
	}
	own := c.BaseEndpoint != nil
	s.where = "Amazon S3"
	if own {
		s.where = *c.BaseEndpoint
		if u, err := url.Parse(s.where); err == nil {
			s.where, s.plain = u.Redacted(), u.Scheme == "http"
		}
		if c.Region == "" {
			c.Region = "us-east-1" // what stores that have no regions expect in a signature
		}
	}
	switch s.o.Addressing {
	case AddressingAuto:
		c.UsePathStyle = own
	default:
		c.UsePathStyle = s.o.Addressing == AddressingPath
	}
}

// loadConfig reads the environment and the shared files, and makes the HTTP
// client. The SDK wants a client of its own kind, or AWS_CA_BUNDLE is an error.
func loadConfig(ctx context.Context, o *Options) (aws.Config, error) {
	pool, err := roots(o.CAFile)
	if err != nil {
		return aws.Config{}, err
	}
	client := awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = 2*idleConns, idleConns, idleTimeout
			t.ReadBufferSize, t.WriteBufferSize = wireBuffer, wireBuffer
			t.DisableCompression = true // lengths and ranges are of the stored bytes
			onlyHTTP1(t)
		})
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithLogger(logging.Nop{}), // the SDK's own writes to standard error what errors tell as well
	}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(o.Profile))
	}
	if o.AccessKeyID != "" {
		load = append(load, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(o.AccessKeyID, o.SecretAccessKey, o.SessionToken)))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("read the AWS configuration: %w", err)
	}
	if loaded, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok {
		cfg.HTTPClient = loaded.WithTransportOptions(func(t *http.Transport) { trust(t, pool, o.InsecureTLS) })
	} else if pool != nil || o.InsecureTLS {
		return aws.Config{}, errors.New("the AWS configuration replaced the HTTP client, so that the TLS settings can't be applied")
	}
	return cfg, nil
}

// onlyHTTP1 gives each request under way a connection: over HTTP/2 a bulk load
// and the lease would share one. The SDK's transport comes with HTTP/2 set up.
func onlyHTTP1(t *http.Transport) {
	t.ForceAttemptHTTP2, t.Protocols = false, new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.TLSClientConfig.NextProtos = []string{"http/1.1"}
}

// trust applies the options for TLS; what the environment set stays otherwise.
func trust(t *http.Transport, pool *x509.CertPool, insecure bool) {
	if pool != nil {
		t.TLSClientConfig.RootCAs = pool
	}
	t.TLSClientConfig.InsecureSkipVerify = insecure
}

// roots returns the system's roots and those of a file; nil without a file.
func roots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the CA file: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's CA certificates: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA file %s holds no certificate in PEM form", path)
	}
	return pool, nil
}

// tagging writes tags as the header x-amz-tagging has them, sorted by key.
func tagging(tags map[string]string) string {
	v := url.Values{}
	for key, value := range tags {
		v.Set(key, value)
	}
	return v.Encode()
}
