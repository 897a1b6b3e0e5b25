package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore"
)

func TestExitStatus_Cases(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{gateway.ErrNotExist, 1},
		{usage(errors.New("x")), 2},
		{gateway.ErrNoVolume, 2},
		{gateway.ErrNewerFormat, 2},
		{fmt.Errorf("%w: %w", gateway.ErrStore, objstore.ErrNoBucket), 2},
		{objstore.ErrGuarantee, 2},
		{gateway.ErrOwned, 3},
		{gateway.ErrFenced, 3},
		{vfs.ErrLocked, 3},
		{gateway.ErrDamaged, 4},
		{gateway.ErrLostJournal, 4},
		{fmt.Errorf("%w: %w", gateway.ErrStore, objstore.ErrUnavailable), 5},
		{objstore.ErrPermission, 2},
		{fmt.Errorf("%w: %w", gateway.ErrUncommitted, objstore.ErrNoBucket), 5},
		{&control.Error{Message: "x", Status: 4}, 4},
		{said(4), 4},
	} {
		if got := exitStatus(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

func TestSentence_OneLineWithoutSystemCall(t *testing.T) {
	_, err := os.Open("/no/such\nfile")
	if got := sentence(fmt.Errorf("look: %w", errors.Join(err, errors.New("more")))); got != "look: /no/such; file: no such file or directory; more" {
		t.Errorf("%q", got)
	}
}

func TestSentence_NoneOfGosWords(t *testing.T) {
	for from, want := range map[string]string{
		`invalid argument "x" for "--server-id" flag: strconv.ParseUint: parsing "x": invalid syntax`:                       `invalid argument "x" for "--server-id" flag: it is not a whole number`,
		`invalid argument "9\"9" for "--n" flag: strconv.Atoi: parsing "9\"9": invalid syntax`:                              `invalid argument "9\"9" for "--n" flag: it is not a whole number`,
		`invalid argument "5000000000" for "--server-id" flag: strconv.ParseUint: parsing "5000000000": value out of range`: `invalid argument "5000000000" for "--server-id" flag: it is too large or too small`,
		`invalid argument "y" for "--json" flag: strconv.ParseBool: parsing "y": invalid syntax`:                            `invalid argument "y" for "--json" flag: it is not true or false`,
		"ask the mount: context deadline exceeded":                                                                          "ask the mount: it took too long",
		"read x: context canceled": "read x: it was interrupted",
	} {
		if got := sentence(errors.New(from)); got != want {
			t.Errorf("%s\n got %s\nwant %s", from, got, want)
		}
	}
}

func TestLookUpMount_NewestWinsAndEscapesAreUndone(t *testing.T) {
	const table = `22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:40 / /a\040b rw,nosuid - fuse.cistern file:///x\040y rw
41 22 0:41 / /c rw shared:1 master:2 - fuse.cistern s3://b/p rw
42 22 0:42 / /c rw - tmpfs tmpfs rw
not a line
`
	for dir, want := range map[string]mounted{"/a b": {"/a b", "file:///x y"}, "/c": {"/c", ""}, "/": {"/", ""}} {
		if got, ok := lookUpMount(table, dir); !ok || got != want {
			t.Errorf("%s: %v, %v", dir, got, ok)
		}
	}
	if got, ok := lookUpMount(table, "/d"); ok {
		t.Errorf("/d: %v", got)
	}
}

func TestModeString_Cases(t *testing.T) {
	for mode, want := range map[uint32]string{
		syscall.S_IFDIR | 0o1777: "drwxrwxrwt", syscall.S_IFREG | 0o4755: "-rwsr-xr-x", syscall.S_IFREG | 0o2640: "-rw-r-S---",
		syscall.S_IFLNK | 0o777: "lrwxrwxrwx", syscall.S_IFIFO: "p---------", 0: "?---------",
	} {
		if got := modeString(mode); got != want {
			t.Errorf("%o: %s, want %s", mode, got, want)
		}
	}
}

func TestText_JSON_KeepsEveryByte(t *testing.T) {
	for _, s := range []string{"", "plain", "ü\n\x00", "\xff\xfe", "half \xc3"} {
		b, err := json.Marshal(text(s))
		if err != nil {
			t.Fatal(err)
		}
		var got text
		if err := json.Unmarshal(b, &got); err != nil || string(got) != s {
			t.Errorf("%q became %q by %s, %v", s, got, b, err)
		}
	}
}

// Whoever can write to a directory of records could have a command send data to a
// socket of his.
func TestTrusted_OnlyOwnDirectoriesAndRoots(t *testing.T) {
	changes := map[string]func(dir string) error{
		"everybody writes": func(dir string) error { return os.Chmod(dir, 0o777) },
		"its group writes": func(dir string) error { return os.Chmod(dir, 0o775) },
		"a link": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".moved"), os.Symlink(dir+".moved", dir))
		},
		"a file": func(dir string) error { return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)) },
		"gone":   os.Remove,
	}
	if os.Geteuid() == 0 {
		changes["another's"] = func(dir string) error { return os.Chown(dir, 4711, 0) }
	}
	for name, change := range changes {
		dir := filepath.Join(t.TempDir(), "cistern")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if !trusted(dir) {
			t.Fatal("the own directory is not trusted")
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if trusted(dir) {
			t.Errorf("%s: trusted", name)
		}
	}
}

func TestApp_Records_AreFoundByMountAndURLAndGoAlone(t *testing.T) {
	dir := t.TempDir()
	a := &app{lookup: func(name string) (string, bool) { return dir, name == "XDG_RUNTIME_DIR" }}
	if os.Geteuid() == 0 {
		// Root's records lie in the system's directory; the user's are read too.
		if got := a.runDirs(); len(got) != 2 || got[1] != filepath.Join(dir, "cistern") {
			t.Errorf("%v", got)
		}
	}
	u, err := objstore.ParseURL("file:///volume" + filepath.Base(filepath.Dir(dir)))
	if err != nil {
		t.Fatal(err)
	}
	point := filepath.Join(dir, "mnt")
	remove, err := a.register(record{PID: 1, URL: u.String(), MountPoint: text(point)})
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := a.findRecord(point); !ok || r.URL != u.String() {
		t.Errorf("%+v, %v", r, ok)
	}
	if got := a.records(target{url: u}); len(got) != 1 || string(got[0].MountPoint) != point {
		t.Errorf("%+v", got)
	}
	later, err := a.register(record{PID: 2, URL: u.String(), MountPoint: text(point)})
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if r, ok := a.findRecord(point); !ok || r.PID != 2 {
		t.Error("the end of an earlier mount took a later one's record away")
	}
	if err := later(); err != nil {
		t.Error(err)
	}
	if _, ok := a.findRecord(point); ok {
		t.Error("the record is left")
	}
}

func TestDaemonArgs_GoBeforeTheDashes(t *testing.T) {
	for _, c := range [][2][]string{
		{{"mount", "u", "d"}, {"mount", "u", "d", "--foreground", "--ready-fd=3", "--state=/s"}},
		{{"mount", "--", "u", "d"}, {"mount", "--foreground", "--ready-fd=3", "--state=/s", "--", "u", "d"}},
	} {
		if got := daemonArgs(c[0], &mountOptions{state: "/s"}); fmt.Sprint(got) != fmt.Sprint(c[1]) {
			t.Errorf("%v: %v", c[0], got)
		}
	}
}
