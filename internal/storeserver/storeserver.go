package storeserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// Kind is one of the servers.
type Kind int

// The servers: the package comment tells them apart.
const (
	Versitygw Kind = iota
	Rclone
	FakeGCS
)

// programs are the binaries of the kinds.
func (k Kind) program() program {
	return [...]program{
		Versitygw: {"versitygw", "github.com/versity/versitygw/cmd/versitygw"},
		Rclone:    {"rclone", "./rclone"},
		FakeGCS:   {"fake-gcs-server", "github.com/fsouza/fake-gcs-server"},
	}[k]
}

// String is the program's name.
func (k Kind) String() string { return k.program().name }

// The one account and bucket of every server.
const (
	accessKey = "cistern-test"
	secretKey = "cistern-test-secret"
	region    = "us-east-1"
	bucket    = "cistern-bucket"
)

// Server is a running store server with one empty bucket. The fields say how a
// client reaches it; those of S3 alone are empty for FakeGCS.
type Server struct {
	Kind      Kind
	Endpoint  string // http://127.0.0.1:port
	Bucket    string
	Region    string // S3
	AccessKey string // S3
	SecretKey string // S3

	dir  string // all that the server keeps on the local disk
	argv []string
	env  []string
	proc *harness.Process
}

// Start builds the server's program when it isn't built yet, which takes
// minutes, starts it and returns when it answers. The caller calls Close.
func Start(ctx context.Context, kind Kind) (*Server, error) {
	binary, err := build(ctx, kind.program())
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cst-store-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for %v: %w", kind, err)
	}
	s := &Server{Kind: kind, Endpoint: "http://" + address, Bucket: bucket, dir: dir}
	if err := s.prepare(binary, address); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.proc, err = harness.Start(s.argv, "", s.env...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if kind == FakeGCS {
		if err := s.makeGCSBucket(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// prepare fills in how the server is started and reached. The S3 servers take a
// folder of their directory as a bucket.
func (s *Server) prepare(binary, address string) error {
	if s.Kind == FakeGCS {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		// Reads are answered only under the public host.
		s.argv = []string{
			binary, "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
			"-public-host", address, "-external-url", s.Endpoint, "-log-level", "warn",
		}
		return nil
	}
	s.Region, s.AccessKey, s.SecretKey = region, accessKey, secretKey
	root := filepath.Join(s.dir, "root")
	if err := os.MkdirAll(filepath.Join(root, bucket), 0o755); err != nil {
		return fmt.Errorf("make the bucket of %v: %w", s.Kind, err)
	}
	if s.Kind == Versitygw {
		s.argv = []string{binary, "--quiet", "--port", address, "posix", root}
		s.env = []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey}
		return nil
	}
	// An empty --config keeps it in memory. Writing back at once makes an
	// object durable when its PUT is answered.
	s.argv = []string{
		binary, "serve", "s3", "--config", "", "--cache-dir", filepath.Join(s.dir, "cache"), "--addr", address,
		"--auth-key", accessKey + "," + secretKey, "--vfs-cache-mode", "full", "--vfs-write-back", "0s", root,
	}
	return nil
}

// freeAddress finds a port of 127.0.0.1 that nothing listened on a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// waitReady waits for any answer over HTTP: a refusal is one.
func (s *Server) waitReady(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/", nil)
		if err != nil {
			return err
		}
		reply, err := client.Do(req)
		if err == nil {
			return reply.Body.Close()
		}
		select {
		case <-s.proc.Done():
			return fmt.Errorf("%v ended before it answered at %s\n%s", s.Kind, s.Endpoint, s.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%v does not answer at %s: %w\n%s", s.Kind, s.Endpoint, errors.Join(ctx.Err(), err), s.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// makeGCSBucket makes the bucket by the API, since there is no directory to
// make it in.
func (s *Server) makeGCSBucket(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint+"/storage/v1/b?project=test", strings.NewReader(`{"name":"`+s.Bucket+`"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("make the bucket of %v: %w", s.Kind, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 4<<10))
	if err != nil || reply.StatusCode != http.StatusOK {
		return fmt.Errorf("make the bucket of %v: %s (%v)\n%s", s.Kind, reply.Status, err, text)
	}
	return nil
}

// PID is the server's process id, for its CPU time in /proc.
func (s *Server) PID() int { return s.proc.PID() }

// LogTail returns the last lines that the server printed.
func (s *Server) LogTail() string { return s.proc.LogTail() }

// Close kills the server and removes what it kept. It is no error when it has
// ended already.
func (s *Server) Close() error {
	var err error
	if s.proc != nil {
		err = s.proc.Kill()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
