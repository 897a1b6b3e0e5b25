package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/objstore"
)

// peer is how another file system over an object store is begun: in the
// foreground, with its local cache in the target's state directory, and with
// what its manual offers for databases.
type peer struct {
	program string // looked up in PATH
	env     func(*Remote) []string
	// format makes the file system in the store; nil where there is nothing to do.
	format func(ctx context.Context, t *Target, program, meta string) error
	mount  func(t *Target, meta string) []string // arguments
}

// errNoProgram says that a peer isn't on the machine.
var errNoProgram = errors.New("it is not on this machine")

const (
	probeBytes  = 256 << 10 // of the write whose fsync is looked at
	uploadsWait = 5 * time.Minute
)

// peerOf is the peer of a kind.
func peerOf(k Kind) peer {
	switch k {
	case S3FS:
		return peer{program: "s3fs", env: awsEnv, format: makeFolderObject, mount: func(t *Target, _ string) []string {
			return []string{t.remote.server.Bucket + ":/" + t.Name, t.Dir, "-f", "-o", "url=" + t.remote.proxy.URL, "-o", "use_path_request_style",
				"-o", "endpoint=" + t.remote.server.Region, "-o", "use_cache=" + t.State, "-o", "parallel_count=16"}
		}}
	case Rclone:
		return peer{program: "rclone", env: rcloneEnv, mount: func(t *Target, _ string) []string {
			return []string{"mount", "bench:" + t.remote.server.Bucket + "/" + t.Name, t.Dir, "--config", "/dev/null", "--cache-dir", t.State,
				"--vfs-cache-mode", "full", "--vfs-write-back", "1s", "--dir-cache-time", "24h"}
		}}
	case JuiceFS:
		return peer{program: "juicefs", env: awsEnv, format: formatJuice, mount: func(t *Target, meta string) []string {
			return []string{"mount", meta, t.Dir, "--cache-dir", t.State, "--no-usage-report", "--no-syslog", "-f"}
		}}
	default:
		return peer{program: "gcsfuse", env: func(*Remote) []string { return nil }, mount: func(t *Target, _ string) []string {
			return []string{"--foreground", "--custom-endpoint", t.remote.proxy.URL, "--anonymous-access", "--implicit-dirs", "--only-dir", t.Name,
				"--temp-dir", t.State, "--enable-streaming-writes=false", "--enable-hns=false", t.remote.server.Bucket, t.Dir}
		}}
	}
}

func (p peer) describe() string {
	path, err := exec.LookPath(p.program)
	if err != nil {
		return "a peer: the program " + p.program + " is not on this machine"
	}
	return "a peer: " + path
}

func awsEnv(r *Remote) []string {
	return []string{
		"AWSACCESSKEYID=" + r.server.AccessKey, "AWSSECRETACCESSKEY=" + r.server.SecretKey,
		"AWS_ACCESS_KEY_ID=" + r.server.AccessKey, "AWS_SECRET_ACCESS_KEY=" + r.server.SecretKey,
	}
}

func rcloneEnv(r *Remote) []string {
	return []string{
		"RCLONE_CONFIG_BENCH_TYPE=s3", "RCLONE_CONFIG_BENCH_PROVIDER=Other", "RCLONE_CONFIG_BENCH_ENDPOINT=" + r.proxy.URL,
		"RCLONE_CONFIG_BENCH_REGION=" + r.server.Region, "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID=" + r.server.AccessKey,
		"RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY=" + r.server.SecretKey, "RCLONE_CONFIG_BENCH_NO_CHECK_BUCKET=true",
		"AWS_CA_BUNDLE=", // rclone's own transport can't take one, and the server speaks plain HTTP
	}
}

// makeFolderObject makes the object that stands for a folder, which s3fs wants to
// find.
func makeFolderObject(ctx context.Context, t *Target, _, _ string) error {
	_, err := t.remote.Raw.Put(ctx, t.Name+"/", strings.NewReader(""), 0, objstore.Condition{})
	return err
}

func formatJuice(ctx context.Context, t *Target, program, meta string) error {
	_, err := harness.Run(ctx, "", program, "format", "--storage", "s3", "--bucket", t.remote.proxy.URL+"/"+t.remote.server.Bucket,
		"--access-key", t.remote.server.AccessKey, "--secret-key", t.remote.server.SecretKey, "--trash-days", "0", meta, t.Name)
	return err
}

// peerMeta is where a peer with a database for its metadata keeps it.
func (t *Target) peerMeta() string { return "sqlite3://" + t.firstState + "-meta.db" }

// openPeer makes and mounts a peer's file system and looks what its fsync does.
func (t *Target) openPeer(ctx context.Context, _ string) error {
	t.Bucket = ""
	p := peerOf(t.Kind)
	program, err := exec.LookPath(p.program)
	if err != nil {
		return fmt.Errorf("%s: %w", p.program, errNoProgram)
	}
	if t.remote == nil || t.remote.server == nil {
		return errors.New("peers are measured with a store of the run's own: --store s3 or gs")
	}
	if (t.remote.server.AccessKey == "") != t.Kind.speaksGS() {
		return errors.New("it needs --store s3")
	}
	if p.format != nil {
		if err := p.format(ctx, t, program, t.peerMeta()); err != nil {
			return err
		}
	}
	if err := t.startPeer(ctx); err != nil {
		return err
	}
	return t.probeFsync(ctx)
}

// startPeer mounts it on the target's state directory.
func (t *Target) startPeer(ctx context.Context) error {
	if err := os.MkdirAll(t.State, 0o755); err != nil {
		return fmt.Errorf("make a peer's cache: %w", err)
	}
	p := peerOf(t.Kind)
	return t.start(ctx, harness.MountConfig{
		Argv: append([]string{p.program}, p.mount(t, t.peerMeta())...), Umount: []string{"fusermount3", "-u", t.Dir},
		Dir: t.Dir, StateDir: t.State, Env: p.env(t.remote), Silent: true,
	})
}

// probeFsync looks whether what fsync answered for has left the machine: none of
// the peers promises anything for its local copy.
func (t *Target) probeFsync(ctx context.Context) error {
	before, err := t.remote.Uploaded(ctx)
	if err != nil {
		return err
	}
	name := filepath.Join(t.Dir, "probe.dat")
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("probe fsync: %w", err)
	}
	defer f.Close() // closed a second time after an error only
	if err := writeNoise(f, probeBytes); err != nil {
		return fmt.Errorf("probe fsync: %w", err)
	}
	after, err := t.remote.Uploaded(ctx)
	if err != nil {
		return err
	}
	if sent := after - before; sent < probeBytes {
		t.NotDurable = fmt.Sprintf("when fsync of %d bytes returned, %d had been sent to the store", probeBytes, sent)
	}
	return errors.Join(f.Close(), os.Remove(name))
}

// quiescePeer waits until a peer has uploaded what it keeps back: rclone notes in
// a file beside each cached one whether it is dirty.
func (t *Target) quiescePeer(ctx context.Context) error {
	if t.Kind != Rclone {
		return t.clearStale()
	}
	ctx, cancel := context.WithTimeout(ctx, uploadsWait)
	defer cancel()
	for {
		dirty, err := rcloneDirty(filepath.Join(t.State, "vfsMeta"))
		if err != nil {
			return err
		}
		if dirty == "" {
			return t.clearStale()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the upload of %s: %w", dirty, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// rcloneDirty names a file that is not uploaded yet; empty when all are.
func rcloneDirty(dir string) (string, error) {
	dirty := ""
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return ignoreGone(err)
		}
		if strings.Contains(strings.ReplaceAll(string(text), " ", ""), `"Dirty":true`) {
			dirty = name
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look at rclone's cache: %w", err)
	}
	return dirty, nil
}
