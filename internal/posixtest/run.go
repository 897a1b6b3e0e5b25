package posixtest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// errnoCase is one way for an operation to fail.
type errnoCase struct {
	op   string
	want unix.Errno
	name string
	call func(e *env) error
	fuse *unix.Errno // the answer on FUSE where that differs; 0 is success
}

// behaviour is a property that takes more than one call to see.
type behaviour struct {
	name  string
	check func(e *env)
}

// Run checks dir, an existing directory that every user can reach, as subtests
// of t. It must run as root.
func Run(t *testing.T, dir string) {
	t.Helper()
	if unix.Geteuid() != 0 {
		t.Fatal("posixtest needs root: it becomes other users")
	}
	if err := asA(func() error { return unix.Access(dir, unix.X_OK) }); err != nil {
		t.Fatalf("ordinary users can't reach %s: %v", dir, err)
	}
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	for _, cases := range [][]errnoCase{openCases(), nameCases(), renameCases(), attrCases(), dataCases(), xattrCases(), lockCases()} {
		for _, c := range cases {
			t.Run(fmt.Sprintf("errno/%s/%s/%s", c.op, unix.ErrnoName(c.want), c.name), func(t *testing.T) {
				checkErrno(fresh(t, dir), c)
			})
		}
	}
	for _, list := range [][]behaviour{nameBehaviours(), attrBehaviours(), dataBehaviours(), mapBehaviours(), dirBehaviours(), lockBehaviours()} {
		for _, b := range list {
			t.Run("behaviour/"+b.name, func(t *testing.T) { b.check(fresh(t, dir)) })
		}
	}
}

func checkErrno(e *env, c errnoCase) {
	want := c.want
	if e.kind == onFUSE && c.fuse != nil {
		want = *c.fuse
	}
	err := c.call(e)
	if want == 0 {
		if err != nil {
			e.Fatalf("%s, %s: %v, want success", c.op, c.name, err)
		}
		return
	}
	if !errors.Is(err, want) {
		e.Fatalf("%s, %s: %v, want %v (%s)", c.op, c.name, err, want, unix.ErrnoName(want))
	}
}

// otherwise is the errno on FUSE where it differs.
func otherwise(errno unix.Errno) *unix.Errno { return &errno }
