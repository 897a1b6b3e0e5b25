package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// caseMount is a volume of a case's own on a mount.
type caseMount struct {
	*testing.T
	*remote
	bucket objstore.Store // the volume's prefix
	url    string
	dir    string
	state  string
	flags  []string
	m      *harness.Mount
}

// Once through a mount, over a real server.
func TestStorageManager_Cases_ThroughAMount(t *testing.T) {
	testenv.NeedFUSE(t)
	server := testenv.StoreServer(t, storeserver.Versitygw)
	r := remoteOf(t, server)
	t.Setenv("CISTERN_S3_ENDPOINT", r.proxy.URL())
	t.Setenv("AWS_REGION", server.Region)
	t.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
	t.Setenv("CISTERN_OBJECTSTORAGE_REQUEST_TIMEOUT", "2")
	volume := func(t *testing.T, name string) *caseMount {
		c := &caseMount{
			T: t, remote: r, bucket: objstore.WithPrefix(r.bare, name+"/"), url: "s3://" + server.Bucket + "/" + name,
			dir: filepath.Join(testenv.TempDir(t), "mnt"), state: filepath.Join(testenv.TempDir(t), "state"),
		}
		testenv.Format(t, c.url, "--object-size", "1M")
		return c
	}
	all := volume(t, "all")
	all.mount()
	for name, run := range smCases() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(all.dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			run(&smCase{T: t, tree: mounted{dir}, settle: func() {}, want: map[string][]byte{}})
		})
	}
	all.umount()
	for name, run := range mountCases() {
		t.Run(name, func(t *testing.T) { run(volume(t, strings.ToLower(name[:6]))) })
	}
}

func mountCases() map[string]func(c *caseMount) {
	return map[string]func(c *caseMount){
		"Case02_MissingObject": mount02, "Case09_CopyOfAMissingObject": mount09, "Case10_KilledDuringCommits": mount10, "Case11_JournalCut": mount11,
		"Case12_PowerLoss": mount12, "Case13_NoSpace": mount13, "Case14_Faults": mount14, "Case15_Outage": mount15, "Case16_SmallCache": mount16,
		"Case17_DeleteAndTruncateRace": mount17, "Case18_RestartWithAFullCache": mount18, "Case19_Sync": mount19, "Case20_Settings": mount20,
		"Case22_ConnectionChecks": mount22,
	}
}

func (c *caseMount) mount(flags ...string) {
	c.Helper()
	c.flags = flags
	c.m = testenv.Mount(c.T, c.url, testenv.MountOptions{Dir: c.dir, StateDir: c.state, Args: flags})
}

func (c *caseMount) umount() {
	c.Helper()
	testenv.Umount(c.T, c.m)
}

func (c *caseMount) kill() {
	c.Helper()
	c.must(c.m.Kill())
}

func (c *caseMount) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *caseMount) at(name string) string { return filepath.Join(c.dir, name) }

// cistern runs a command.
func (c *caseMount) cistern(args ...string) string {
	c.Helper()
	out, err := harness.Run(c.Context(), "", append([]string{testenv.Cistern(c.T)}, args...)...)
	if err != nil {
		c.Fatal(err)
	}
	return out
}

// fails runs a command that must end with a status and say something.
func (c *caseMount) fails(status int, want string, args ...string) {
	c.Helper()
	out, err := exec.CommandContext(c.Context(), testenv.Cistern(c.T), args...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != status || !strings.Contains(string(out), want) {
		c.Errorf("cistern %v: %v, want status %d and %q:\n%s", args, err, status, want, out)
	}
}

func (c *caseMount) write(name string, b []byte, off int64) {
	c.Helper()
	c.must(mounted{c.dir}.write(name, b, off))
}

func (c *caseMount) wantFile(name string, want []byte) {
	c.Helper()
	if got, err := os.ReadFile(c.at(name)); err != nil || !bytes.Equal(got, want) {
		c.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(want), err)
	}
}

func (c *caseMount) fsync(name string) {
	c.Helper()
	f, err := os.Open(c.at(name))
	c.must(err)
	c.must(errors.Join(f.Sync(), f.Close()))
}

// loseObjects unmounts and takes the objects and all that is local away.
func (c *caseMount) loseObjects() (last string) {
	c.Helper()
	c.umount()
	for _, prefix := range []string{metadata.ObjectPrefix, metadata.SegmentPrefix} {
		c.must(objstore.ListAll(c.Context(), c.bucket, prefix, "", func(i objstore.Info) error {
			last = i.Key
			return c.bucket.Delete(c.Context(), i.Key)
		}))
	}
	c.must(os.RemoveAll(c.state))
	return last
}

func mount02(c *caseMount) {
	c.mount()
	c.write("a", pattern(1<<20, 1), 0)
	key := c.loseObjects()
	c.mount()
	if _, err := os.ReadFile(c.at("nothing")); !errors.Is(err, syscall.ENOENT) {
		c.Errorf("a missing file: %v", err)
	}
	if _, err := os.ReadFile(c.at("a")); !errors.Is(err, syscall.EIO) || !strings.Contains(c.m.LogTail(), key) {
		c.Errorf("a missing object: %v, and the log:\n%s", err, c.m.LogTail())
	}
	c.umount()
}

func mount09(c *caseMount) {
	c.mount()
	c.write("a", pattern(1<<20, 1), 0)
	c.loseObjects()
	c.mount()
	was := pattern(3000, 2)
	c.write("b", was, 0)
	from, err := os.Open(c.at("a"))
	c.must(err)
	defer from.Close()
	to, err := os.OpenFile(c.at("b"), os.O_RDWR, 0)
	c.must(err)
	defer to.Close()
	off := int64(1)
	if n, err := unix.CopyFileRange(int(from.Fd()), &off, int(to.Fd()), nil, 4000, 0); n > 0 || err == nil {
		c.Errorf("the copy: %d, %v", n, err)
	}
	c.wantFile("b", was)
	c.kill()
}

// mount10 kills the mount while it commits, at moments that chance picks.
func mount10(c *caseMount) {
	want := contents{}
	for round := range 5 {
		c.mount("--commit-interval", "20ms")
		for name, b := range want {
			c.wantFile(name, []byte(b))
		}
		stop := time.After(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		for i, on := 0, true; on; i++ {
			name, b, off := fmt.Sprint("f", i%5), pattern(2000+i%9*20000, round+i), i%7*3000
			c.write(name, b, int64(off))
			want.put(name, b, off)
			select {
			case <-stop:
				on = false
			default:
			}
		}
		c.kill()
	}
	c.mount()
	for name, b := range want {
		c.wantFile(name, []byte(b))
	}
	c.umount()
	c.cistern("check", "--data", c.url)
}

func mount11(c *caseMount) {
	p := &inProcess{t: c.T, state: c.state}
	c.mount("--commit-interval", "1h")
	c.write("a", pattern(700, 1), 0)
	c.fsync("a")
	before := p.journalFiles()
	c.write("b", pattern(900, 2), 0)
	c.write("c", pattern(900, 3), 0)
	c.kill()
	name, _, to := grown(c.T, before, p.journalFiles())
	c.must(os.Truncate(name, int64(to-10)))
	c.mount()
	if !strings.Contains(c.m.LogTail(), "torn tail") {
		c.Errorf("nobody is told of the tail that went:\n%s", c.m.LogTail())
	}
	c.wantFile("a", pattern(700, 1))
	c.wantFile("b", pattern(900, 2))
	c.wantFile("c", nil)
	c.write("d", pattern(5000, 4), 0)
	c.kill()
	c.mount()
	c.wantFile("d", pattern(5000, 4))
	c.umount()
}

// mount12 puts back what the disk held when an fsync returned: the power went then.
func mount12(c *caseMount) {
	c.mount("--commit-interval", "1h")
	small, large := pattern(9000, 1), pattern(3<<20, 2)
	c.write("small", small, 0)
	c.write("large", large, 0)
	c.fsync("small")
	kept := c.state + ".kept"
	if out, err := exec.CommandContext(c.Context(), "cp", "-a", "--sparse=always", c.state, kept).CombinedOutput(); err != nil {
		c.Fatalf("%v: %s", err, out)
	}
	c.write("small", pattern(5000, 3), 4000)
	c.kill()
	c.must(os.RemoveAll(c.state))
	c.must(os.Rename(kept, c.state))
	c.mount()
	c.wantFile("small", small)
	c.wantFile("large", large)
	c.umount()
	c.cistern("check", "--data", c.url)
}

func mount13(c *caseMount) {
	testenv.SkipUnless(c.T, os.Geteuid() == 0, "mounting a small disk")
	disk := testenv.TempDir(c.T)
	c.must(unix.Mount("tmpfs", disk, "tmpfs", 0, "size=192m"))
	c.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }) // the mount is gone by then
	c.state = filepath.Join(disk, "state")
	c.mount("--commit-interval", "1h", "--cache-size", "64M", "--journal-size", "64M", "--limit-reached", "enospc")
	c.write("a", pattern(100000, 1), 0)
	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	c.must(err)
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	c.must(f.Close())
	want, piece := []byte{}, pattern(40000, 2)
	out, err := os.Create(c.at("b"))
	c.must(err)
	n, full := 0, false
	for i := 0; i < 10000 && !full; i++ {
		n, err = out.Write(piece)
		want = append(want, piece[:n]...)
		full = errors.Is(err, syscall.ENOSPC)
		if err != nil && !full {
			c.Fatal(err)
		}
	}
	if !full {
		c.Fatalf("%d bytes fit on a full disk", len(want))
	}
	c.wantFile("b", want)
	c.must(os.Remove(ballast))
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		n, err = out.Write(piece)
		want = append(want, piece[:n]...)
		if err == nil || time.Now().After(end) {
			break
		}
	}
	c.must(err)
	c.must(errors.Join(out.Sync(), out.Close()))
	c.kill()
	c.mount()
	c.wantFile("a", pattern(100000, 1))
	c.wantFile("b", want)
	c.umount()
}

func mount14(c *caseMount) {
	defer c.proxy.Choose(nil)
	b := caseBucket{c.bare, c.proxy, storeserver.Versitygw}
	// The others are met by the engine in this process, and by random ones in
	// TestStores_Engine_RandomUnderFaults.
	all := b.passing(nil)
	for i, name := range []string{"503", "reset", "bit"} {
		arm := all[name]
		c.mount()
		c.write(name, pattern(1<<20+i, i), 0)
		arm(2)
		c.cistern("sync", c.dir)
		c.umount()
		c.must(os.RemoveAll(c.state))
		c.proxy.Choose(nil)
		c.mount()
		arm(2)
		c.wantFile(name, pattern(1<<20+i, i))
		c.proxy.Choose(nil)
		c.umount()
	}
	for status, code := range map[int]string{403: "AccessDenied", 404: "NoSuchBucket", 301: "PermanentRedirect"} {
		c.proxy.Choose(func(*http.Request) faultproxy.Fault {
			return faultproxy.Fault{Kind: faultproxy.Status, Status: status, Code: code}
		})
		c.fails(2, "", "mount", c.url, c.dir, "--state", c.state)
	}
}

func mount15(c *caseMount) {
	defer c.proxy.Choose(nil)
	c.mount("--commit-interval", "50ms")
	want := contents{}
	c.write("before", pattern(50000, 1), 0)
	c.cistern("sync", c.dir)
	c.proxy.Choose(func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Kind: faultproxy.Hang} })
	for i := range 100 {
		b, off, name := pattern(5000, i), i*700, fmt.Sprint("f", i%5)
		c.write(name, b, int64(off))
		want.put(name, b, off)
		if i%10 == 0 {
			c.fsync(name)
		}
	}
	c.wantFile("before", pattern(50000, 1))
	var fs unix.Statfs_t
	c.must(unix.Statfs(c.dir, &fs))
	if out := c.cistern("status", c.dir); !strings.Contains(out, "took too long") && !strings.Contains(out, "ncommitted") {
		c.Errorf("status during the outage:\n%s", out)
	}
	c.fails(5, "journal", "umount", c.dir)
	c.proxy.Choose(nil)
	c.mount()
	for name, b := range want {
		c.wantFile(name, []byte(b))
	}
	c.umount()
	c.cistern("check", "--data", c.url)
}

func mount16(c *caseMount) {
	c.mount("--cache-size", "16M", "--commit-interval", "100ms")
	var group sync.WaitGroup
	for w := range 8 {
		group.Go(func() {
			name, mine := fmt.Sprint("f", w), pattern(10<<20, w)
			if err := os.WriteFile(c.at(name), mine, 0o644); err != nil {
				c.Error(err)
			}
			for range 2 {
				c.wantFile(name, mine)
			}
		})
	}
	group.Wait()
	c.cistern("sync", c.dir)
	c.umount()
	// A file system counts with a file what it needs to know where the file's pieces
	// are: with ext4 a block of 4 KiB for up to 340 of them.
	used, most := int64(0), int64(16<<20)
	c.must(filepath.WalkDir(filepath.Join(c.state, "cache"), func(_ string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			used += i.Sys().(*syscall.Stat_t).Blocks * 512
			most += 4 << 10
		}
		return err
	}))
	if used > most {
		c.Errorf("the cache of 16 MiB takes %d bytes at rest", used)
	}
}

func mount17(c *caseMount) {
	c.mount("--cache-size", "16M", "--commit-interval", "20ms")
	all := pattern(3<<20, 17)
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(17, uint64(w)))
			for range 250 {
				if err := raceOnMount(c.at("victim"), rng, all); err != nil {
					c.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	c.umount()
	c.cistern("check", "--data", c.url)
}

// raceOnMount is raceOnce for a mounted file.
func raceOnMount(path string, rng *rand.Rand, all []byte) error {
	m := mounted{filepath.Dir(path)}
	name := filepath.Base(path)
	off := rng.IntN(len(all) - 1)
	n := 1 + rng.IntN(min(300000, len(all)-off))
	var err error
	switch k := rng.IntN(20); {
	case k == 0:
		err = m.unlink(name)
	case k < 3:
		err = m.truncate(name, int64(off))
	case k < 10:
		err = m.write(name, all[off:off+n], int64(off))
	default:
		var f *os.File
		if f, err = os.Open(path); err != nil {
			break
		}
		defer f.Close()
		got := make([]byte, n)
		k, _ := f.ReadAt(got, int64(off)) // the end may come earlier
		for i, b := range got[:k] {
			if b != 0 && b != all[off+i] {
				return fmt.Errorf("byte %d is another one", off+i)
			}
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return nil // another one has just replaced it
	}
	return err
}

func mount18(c *caseMount) {
	defer c.proxy.Choose(nil)
	c.mount()
	body := pattern(24<<20, 1)
	c.write("a", body, 0)
	c.cistern("sync", c.dir)
	c.write("dirty", pattern(7000, 2), 0)
	c.kill()
	var asked atomic.Int64
	c.proxy.Choose(func(r *http.Request) faultproxy.Fault {
		if r.Method != http.MethodPut && (strings.Contains(r.URL.Path, metadata.ObjectPrefix) || strings.Contains(r.URL.Path, metadata.SegmentPrefix)) {
			asked.Add(1)
		}
		return faultproxy.Fault{}
	})
	c.mount()
	c.wantFile("a", body)
	c.wantFile("dirty", pattern(7000, 2))
	if n := asked.Load(); n != 0 {
		c.Errorf("a restart and the first reads ask the store %d times for what is cached", n)
	}
	c.umount()
	if got := c.cistern("cat", c.url, "dirty"); got != string(pattern(7000, 2)) {
		c.Errorf("what was dirty: %d bytes in the bucket", len(got))
	}
}

func mount19(c *caseMount) {
	c.mount("--commit-interval", "1h")
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
				err = mounted{c.dir}.write("busy", pattern(3000, i), int64(i%50)*3000)
			}
		}
		ended <- err
	}()
	for i := range 3 {
		name := fmt.Sprint("done", i)
		c.write(name, pattern(5000, i), 0)
		commit, err := harness.CommitNumber(c.cistern("sync", c.dir))
		c.must(err)
		if got := c.cistern("cat", c.url+"@"+commit, name); got != string(pattern(5000, i)) {
			c.Errorf("%s: %d bytes are in the bucket after sync", name, len(got))
		}
	}
	close(stop)
	c.must(<-ended)
	c.umount()
}

// mount20 gives bad settings to a mount, at its start and while it runs.
func mount20(c *caseMount) {
	conf := filepath.Join(testenv.TempDir(c.T), "storagemanager.cnf")
	set := func(value string) {
		c.must(os.WriteFile(conf, []byte("[Cache]\n"+value+"\n"), 0o600))
	}
	for _, v := range []string{"1T", "2GiB", "500m"} {
		set("cache_size = " + v)
		c.cistern("config", "check", conf)
	}
	limit := func() int64 {
		var s struct {
			Cache gateway.CacheStatus `json:"cache"`
		}
		c.must(json.Unmarshal([]byte(c.cistern("status", "--json", c.dir)), &s))
		return s.Cache.Limit
	}
	set("cache_size = 64M")
	c.mount("--config", conf)
	if got := limit(); got != 64<<20 {
		c.Fatalf("the cache's limit is %d", got)
	}
	bad := map[string]string{
		"cache_size = 64x": "unknown unit", "cache_size = 8q": "unknown unit", "cache_size = -1": "negative", "cache_size = 0": "more than zero",
		"cache_size =": "empty", "cache_size = 99999999999999999999": "larger", "cache_size = 1M": "at least", "cash_size = 64M": "no such setting",
	}
	for value, why := range bad {
		set(value)
		c.fails(2, why, "mount", "--config", conf, c.url, c.dir+".other")
		before := strings.Count(c.m.LogTail(), "configuration refused")
		c.must(syscall.Kill(c.m.PID(), syscall.SIGHUP))
		for strings.Count(c.m.LogTail(), "configuration refused") == before {
			time.Sleep(5 * time.Millisecond)
		}
		if got := limit(); got != 64<<20 {
			c.Errorf("%s: the cache's limit is %d then", value, got)
		}
	}
	c.umount()
}

func mount22(c *caseMount) {
	c.mount()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if out, err := exec.CommandContext(c.Context(), testenv.Cistern(c.T), "probe", c.url).CombinedOutput(); err != nil {
				c.Errorf("%v: %s", err, out)
			}
		})
	}
	group.Wait()
	c.must(objstore.ListAll(c.Context(), c.bucket, "probe/", "", func(i objstore.Info) error {
		c.Errorf("%s is left", i.Key)
		return nil
	}))
	c.umount()
}
