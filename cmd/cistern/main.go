package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Exit statuses.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitOwned   = 3
	exitDamaged = 4
	exitStore   = 5
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv, signals: signals,
		terminal: term.IsTerminal(int(os.Stderr.Fd())), screen: term.IsTerminal(int(os.Stdout.Fd())),
	}
	switch name := filepath.Base(os.Args[0]); {
	case name == mountHelper:
		os.Exit(a.runHelper(context.Background(), os.Args[1:]))
	case isTool(name):
		os.Exit(a.runTool(context.Background(), name, os.Args[1:]))
	}
	os.Exit(a.run(context.Background(), os.Args[1:]))
}

// statusError gives an error the exit status that its cause does not tell.
type statusError struct {
	error
	status int
}

func (e *statusError) Unwrap() error { return e.error }

// usage marks an error as one of usage or configuration.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &statusError{err, exitUsage}
}

// exitStatus is the exit status that an error means.
func exitStatus(err error) int {
	var own *statusError
	var remote *control.Error
	is := func(causes ...error) bool {
		for _, c := range causes {
			if errors.Is(err, c) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &remote):
		return remote.Status
	case is(gateway.ErrUncommitted):
		return exitStore
	case is(gateway.ErrDamaged, gateway.ErrLostJournal, metadata.ErrDamaged, objstore.ErrDamaged, binlogfs.ErrCorrupt):
		return exitDamaged
	case is(gateway.ErrFenced, gateway.ErrOwned, vfs.ErrLocked):
		return exitOwned
	case is(binlogfs.ErrMark, binlogfs.ErrPolicy, binlogfs.ErrNoLogs, gateway.ErrNoVolume, gateway.ErrCollected, gateway.ErrKey, gateway.ErrNewerFormat, metadata.ErrNewerFormat, objstore.ErrNoBucket, objstore.ErrGuarantee, objstore.ErrPermission):
		return exitUsage
	case is(gateway.ErrStore, objstore.ErrUnavailable):
		return exitStore
	}
	return exitFailed
}

// sentence is an error as one line.
func sentence(err error) string {
	var path *fs.PathError
	text := strings.TrimSpace(err.Error())
	if errors.As(err, &path) {
		// Go's own errors begin with the name of a system call.
		text = strings.Replace(text, path.Error(), path.Path+": "+path.Err.Error(), 1)
	}
	return strings.ReplaceAll(plainWords(text), "\n", "; ")
}

// plainWords says in a user's words what Go's packages say in their own.
func plainWords(text string) string {
	for _, w := range []struct{ from, to string }{
		{`strconv\.Parse(Int|Uint)|strconv\.Atoi`, "a whole number"},
		{`strconv\.ParseFloat`, "a number"},
		{`strconv\.ParseBool`, "true or false"},
	} {
		text = regexp.MustCompile(`(`+w.from+`): parsing ("(?:[^"\\]|\\.)*"): invalid syntax`).ReplaceAllString(text, "it is not "+w.to)
		text = regexp.MustCompile(`(`+w.from+`): parsing ("(?:[^"\\]|\\.)*"): value out of range`).ReplaceAllString(text, "it is too large or too small")
	}
	return strings.NewReplacer("context deadline exceeded", "it took too long", "context canceled", "it was interrupted").Replace(text)
}
