package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/gcs"
	"github.com/cisternfs/cistern/objstore/s3"
)

// storeWait bounds the start of a store server, its first compiling included.
const storeWait = 15 * time.Minute

// Remote is an object store that mounts and plain requests reach over the same
// network: a server and a proxy of the run's own, or a bucket that was named.
type Remote struct {
	What string         // for the report
	Env  []string       // for the cistern command
	Raw  objstore.Store // plain requests, without decorators

	bucket string              // URL without a slash at its end
	server *storeserver.Server // nil for a bucket that was named
	proxy  *proxyProcess       // nil with server
}

// Uploaded is how many bytes of requests have passed the proxy; 0 without one.
func (r *Remote) Uploaded(ctx context.Context) (int64, error) {
	if r.proxy == nil {
		return 0, nil
	}
	counts, err := r.proxy.Counts(ctx)
	total := int64(0)
	for _, c := range counts {
		total += c.In
	}
	return total, err
}

// RemoteConfig says which store, and what its network is like.
type RemoteConfig struct {
	Store     string // s3, gs, or the URL of a prefix in a bucket
	Latency   time.Duration
	Bandwidth int64  // bytes per second each way; 0: no limit
	Program   string // this program's binary, to run the proxy from
}

// OpenRemote starts the servers that a store needs and opens it. Close ends
// them.
func OpenRemote(ctx context.Context, c RemoteConfig) (*Remote, error) {
	if strings.Contains(c.Store, "://") {
		return openNamed(ctx, c.Store)
	}
	kind, ok := map[string]storeserver.Kind{"s3": storeserver.Versitygw, "gs": storeserver.FakeGCS}[c.Store]
	if !ok {
		return nil, fmt.Errorf("--store %s: choose s3, gs, or a URL like s3://bucket/prefix: %w", c.Store, errUsage)
	}
	startCtx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	server, err := storeserver.Start(startCtx, kind)
	if err != nil {
		return nil, err
	}
	r := &Remote{server: server, bucket: c.Store + "://" + server.Bucket}
	if r.proxy, err = startProxy(startCtx, c, server); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.What = fmt.Sprintf("%v behind a proxy: %v before each request, %s each way", server.Kind, c.Latency, perSecond(c.Bandwidth))
	if kind == storeserver.Versitygw {
		r.Env = []string{
			"AWS_ENDPOINT_URL_S3=" + r.proxy.URL, "AWS_REGION=" + server.Region,
			"AWS_ACCESS_KEY_ID=" + server.AccessKey, "AWS_SECRET_ACCESS_KEY=" + server.SecretKey,
		}
		r.Raw, err = s3.Open(ctx, s3.Options{
			Bucket: server.Bucket, Endpoint: r.proxy.URL, Region: server.Region,
			AccessKeyID: server.AccessKey, SecretAccessKey: server.SecretKey,
		})
	} else {
		r.Env = []string{"CISTERN_GCS_ENDPOINT=" + r.proxy.URL, "CISTERN_GCS_ANONYMOUS=true"}
		r.Raw, err = gcs.Open(ctx, gcs.Options{Bucket: server.Bucket, Endpoint: r.proxy.URL, Anonymous: true})
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// openNamed opens a bucket as the environment says it is reached.
func openNamed(ctx context.Context, text string) (*Remote, error) {
	u, err := objstore.ParseURL(text)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", errors.Join(errUsage, err))
	}
	r := &Remote{What: u.String() + ", reached as the environment says", bucket: strings.TrimSuffix(u.String(), "/")}
	var s objstore.Store
	switch u.Scheme {
	case objstore.SchemeS3:
		s, err = s3.Open(ctx, s3.Options{Bucket: u.Bucket})
	case objstore.SchemeGCS:
		s, err = gcs.Open(ctx, gcs.Options{Bucket: u.Bucket})
	default:
		err = fmt.Errorf("--store %s: it is no object store: %w", u, errUsage)
	}
	if err != nil {
		return nil, err
	}
	r.Raw = objstore.WithPrefix(s, u.Prefix())
	return r, nil
}

func perSecond(bytes int64) string {
	if bytes == 0 {
		return "no limit of bandwidth"
	}
	return fmt.Sprintf("%s/s", size(bytes))
}

// URL is that of a volume of this name.
func (r *Remote) URL(name string) string { return r.bucket + "/" + name }

// Requests is how many requests have passed the proxy; 0 without one.
func (r *Remote) Requests(ctx context.Context) (int64, error) {
	if r.proxy == nil {
		return 0, nil
	}
	counts, err := r.proxy.Counts(ctx)
	total := int64(0)
	for _, c := range counts {
		total += c.Requests
	}
	return total, err
}

// CPU returns the time that server and proxy have used so far; 0 for a bucket
// that was named.
func (r *Remote) CPU() (server, proxy time.Duration, err error) {
	if r.proxy == nil {
		return 0, 0, nil
	}
	if server, err = procCPU(r.server.PID()); err != nil {
		return 0, 0, err
	}
	proxy, err = procCPU(r.proxy.PID())
	return server, proxy, err
}

// Close ends the proxy and the server and removes what they kept. A bucket that
// was named keeps what the run put there.
func (r *Remote) Close() error {
	var err error
	if r.proxy != nil {
		err = r.proxy.Kill()
	}
	if r.server != nil {
		err = errors.Join(err, r.server.Close())
	}
	return err
}
