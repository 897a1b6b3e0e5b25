package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
)

// SkipUnless skips the test when ok is false; where CI=true it fails instead,
// because a run that counts has everything installed. why says what is missing.
func SkipUnless(t testing.TB, ok bool, why string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("this test may not be skipped where CI=true: %s", why)
	}
	t.Skip(why)
}

// Long marks a test that go test -short leaves out.
func Long(t testing.TB) {
	t.Helper()
	SkipUnless(t, !testing.Short(), "a long test, left out by -short")
}

// NeedPrograms leaves the test out when one of the programs is not installed.
func NeedPrograms(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := exec.LookPath(name)
		SkipUnless(t, err == nil, name+" is not installed; scripts/install-deps.sh installs it")
	}
}

// NeedFUSE leaves the test out where FUSE can't be mounted.
func NeedFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	SkipUnless(t, err == nil, "/dev/fuse can't be opened, so nothing can be mounted")
	f.Close()
}

// FreePort returns a TCP port of 127.0.0.1 that nothing listened on a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// notTested names the file in which a run notes what it had to leave out, so that
// `make test` can say it at its end.
const notTested = "CISTERN_NOT_TESTED"

// Unavailable leaves a test out, also where CI=true, because it was proven that
// this machine can't run it: the registry that would have a server of another
// release was asked and answered that it has none. A registry that doesn't answer
// proves nothing; that test fails. Whoever runs the tests is told.
func Unavailable(t testing.TB, why string) {
	t.Helper()
	if name := os.Getenv(notTested); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err == nil {
			_, err = fmt.Fprintf(f, "NOT TESTED: %s: %s\n", t.Name(), why)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatalf("note what is not tested: %v", err)
		}
	}
	t.Skip("NOT TESTED: " + why)
}
