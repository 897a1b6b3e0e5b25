package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/columnstore/storagemanager/smtest"
	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/gcs"
	"github.com/cisternfs/cistern/objstore/s3"
)

// smCloud is a Storage Manager whose objects are on a real server, behind a proxy.
type smCloud struct {
	*place
	w      *smtest.World
	conf   string
	args   []string // of import and export, after the names
	bucket objstore.Store
	proxy  *faultproxy.Proxy
	base   string // URL that the volumes are below
}

const smCloudPrefix = "sm-"

func newSMCloud(t *testing.T, kind storeserver.Kind) *smCloud {
	t.Helper()
	server := testenv.StoreServer(t, kind)
	proxy, err := faultproxy.Start(server.Endpoint, faultproxy.Options{Serialise: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	p, w, conf := smPlace(t, "")
	c := &smCloud{place: p, w: w, conf: conf, proxy: proxy}
	if kind == storeserver.FakeGCS {
		c.bucket, err = gcs.Open(t.Context(), gcs.Options{Bucket: server.Bucket, Endpoint: server.Endpoint, Anonymous: true})
		c.base = "gs://" + server.Bucket + "/cistern"
		c.set("", "[GCS]\nendpoint = "+proxy.URL()+"\nanonymous = yes\n[Cistern]\nvolumes = "+c.base+"\n")
		c.args = []string{"--objects", "gs://" + server.Bucket}
	} else {
		c.bucket, err = s3.Open(t.Context(), s3.Options{
			Bucket: server.Bucket, Endpoint: server.Endpoint, Region: server.Region, AccessKeyID: server.AccessKey, SecretAccessKey: server.SecretKey,
		})
		// As Storage Manager has it: a host, its port, and no URL.
		at, perr := url.Parse(proxy.URL())
		if perr != nil {
			t.Fatal(perr)
		}
		c.base = "s3://" + server.Bucket + "/" + smCloudPrefix + "/cistern"
		c.set("service = LocalStorage", "service = S3")
		c.set("region = some_region\nbucket = some_bucket", fmt.Sprintf("region = %s\nbucket = %s\nendpoint = %s\nport_number = %s\nuse_http = enabled\nprefix = %s\naws_access_key_id = %s\naws_secret_access_key = %s",
			server.Region, server.Bucket, at.Hostname(), at.Port(), smCloudPrefix, server.AccessKey, server.SecretKey))
	}
	if err != nil {
		t.Fatal(err)
	}
	c.args = append(c.args, "--config", c.conf)
	return c
}

// set replaces a piece of the configuration file; with "" it adds one.
func (c *smCloud) set(old, text string) {
	c.t.Helper()
	body := readFile(c.t, c.conf)
	if old == "" {
		body += text
	} else if body = strings.Replace(body, old, text, 1); !strings.Contains(body, text) {
		c.t.Fatalf("%q is not in the file", old)
	}
	if err := os.WriteFile(c.conf, []byte(body), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// upload moves Storage Manager's objects to the server.
func (c *smCloud) upload() {
	c.t.Helper()
	prefix := smCloudPrefix
	if c.args[0] == "--objects" {
		prefix = ""
	}
	list, err := os.ReadDir(c.w.Bucket)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list {
		name := filepath.Join(c.w.Bucket, e.Name())
		if err := objstore.Create(c.t.Context(), c.bucket, prefix+e.Name(), []byte(readFile(c.t, name))); err != nil {
			c.t.Fatal(err)
		}
		if err := os.Remove(name); err != nil {
			c.t.Fatal(err)
		}
	}
}

// killedAt runs a command line and kills it at the n-th request for an object of
// Storage Manager's.
func (c *smCloud) killedAt(n int64, args ...string) {
	c.t.Helper()
	var asked atomic.Int64
	reached := make(chan struct{})
	c.proxy.Choose(func(r *http.Request) faultproxy.Fault {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "_data1~") || asked.Add(1) < n {
			return faultproxy.Fault{}
		}
		if asked.Load() == n {
			close(reached)
		}
		return faultproxy.Fault{Kind: faultproxy.Hang}
	})
	defer c.proxy.Choose(nil)
	cmd, errs := c.start("", args...)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-reached:
	case err := <-ended:
		c.t.Fatalf("it ended before: %v\n%s", err, errs)
	}
	if err := cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	<-ended
}

// TestImportColumnStore_RealServers: Storage Manager's objects are in S3 or GCS. Two
// imports are killed, the third goes on; an object is missing, a journal torn; what
// was imported comes out again byte for byte, and after --copy needs nothing more of
// Storage Manager.
func TestImportColumnStore_RealServers(t *testing.T) {
	testenv.Long(t)
	for _, kind := range []storeserver.Kind{storeserver.Versitygw, storeserver.FakeGCS} {
		for _, how := range []string{"by reference", "by copy"} {
			t.Run(kind.String()+"/"+how, func(t *testing.T) { newSMCloud(t, kind).roundTrip(how == "by copy") })
		}
	}
}

func (c *smCloud) roundTrip(byCopy bool) {
	t, w := c.t, c.w
	w.Shapes("data1")
	w.File("data2/whole", w.Whole(1<<20+7)...)
	lost := w.File("data2/lost", w.Whole(2<<20)...)
	w.Lose(lost[1])
	delete(w.Want, "data2/lost") // it is left out
	w.File("data2/torn", smtest.Piece{Length: 100, Stored: w.Noise(100), Changes: []storagemanager.Change{w.Change(10, 20)}, Tail: w.Noise(5)})
	c.upload()
	run := append([]string{"import", "columnstore"}, c.args...)
	if byCopy {
		run = append(run, "--copy")
	}
	c.killedAt(5, append(run, "--dbroot", "data1")...)
	c.killedAt(3, append(run, "--dbroot", "data1")...)
	if status, out, errs := c.binary(append(run, "--dbroot", "data1")...); status != 0 || !strings.Contains(out, "data1 is in "+c.base+"/data1") {
		t.Fatalf("%d, %s, %s", status, out, errs)
	}
	status, out, errs := c.binary(append(run, "--dbroot", "data2")...)
	if status != exitDamaged || !strings.Contains(errs, "lost: "+lost[1]+": the object is missing") || !strings.Contains(errs, "torn: ") || !strings.Contains(out, "left out 1") {
		t.Fatalf("data2: %d, %s, %s", status, out, errs)
	}
	if byCopy {
		err := objstore.ListAll(t.Context(), c.bucket, "", "", func(i objstore.Info) error {
			if strings.Contains(i.Key, "/cistern/") || strings.HasPrefix(i.Key, "cistern/") {
				return nil
			}
			return c.bucket.Delete(t.Context(), i.Key)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, root := range []string{"data1", "data2"} {
		c.mustBinary("check", "--config", c.conf, c.base+"/"+root, "--data")
	}
	c.mustBinary("export", "columnstore", "--config", c.conf, c.path("out"))
	w.Compare(c.path("out", "data1"), "data1")
	w.Compare(c.path("out", "data2"), "data2")
}

// TestTools_Requests_OfAMountThatHangs: the store does not answer. smps shows what
// waits, smkill ends it, which is asked for anew, and in the end the reader has its
// bytes.
func TestTools_Requests_OfAMountThatHangs(t *testing.T) {
	testenv.NeedFUSE(t)
	c := newSMCloud(t, storeserver.Versitygw)
	c.w.File("data1/f", c.w.Whole(3<<20)...)
	c.upload()
	c.mustBinary(append([]string{"import", "columnstore"}, c.args...)...)
	mnt := c.path("columnstore", "data1")
	t.Cleanup(func() {
		c.proxy.Choose(nil)
		if r, ok := (&app{lookup: os.LookupEnv}).findRecord(mnt); ok {
			c.kill(r.PID)
			_ = syscall.Unmount(mnt, syscall.MNT_DETACH) // fails where nothing is mounted any more
		}
	})
	conf := c.plainConfig(c.conf)
	c.mustBinary("mount", "--config", conf, "--state", c.path("state"), mnt)
	var asked atomic.Int64
	c.proxy.Choose(func(r *http.Request) faultproxy.Fault {
		if !strings.Contains(r.URL.Path, "_data1~") {
			return faultproxy.Fault{}
		}
		asked.Add(1)
		return faultproxy.Fault{Kind: faultproxy.Hang}
	})
	got := make(chan []byte, 1)
	go func() {
		b, err := os.ReadFile(filepath.Join(mnt, "f"))
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	tool := func(name string, args ...string) string {
		t.Helper()
		status, out, errs := c.tool(conf, name, args...)
		if status != 0 {
			t.Errorf("%s %v: %d, %s", name, args, status, errs)
		}
		return out
	}
	eventually(t, "a request waits", func() bool { return strings.Contains(tool("smps"), "_data1~") })
	first := strings.Fields(strings.Split(tool("smps", "-t"), "\n")[1])
	before := asked.Load()
	tool("smkill", first[0])
	eventually(t, "what was ended is asked for anew", func() bool { return asked.Load() > before })
	if strings.Contains(tool("smps"), first[0]+" ") {
		t.Errorf("%s is still there", first[0])
	}
	if status, _, errs := c.tool(conf, "smkill", first[0]); status != 1 || !strings.Contains(errs, "smps lists them") {
		t.Errorf("ended twice: %d, %s", status, errs)
	}
	tool("smkill", "all")
	c.proxy.Choose(nil)
	for done := false; !done; {
		select {
		case b := <-got:
			if !bytes.Equal(b, c.w.Want["data1/f"]) {
				t.Errorf("%d bytes that differ", len(b))
			}
			done = true
		case <-time.After(20 * time.Millisecond):
			_, _, _ = c.tool(conf, "smkill", "all") // those that still hang; none is fine
		}
	}
	c.must("umount", mnt)
}
