package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore"
)

// A writing command that finds no mount owns the volume while it runs, with a state
// directory of its own:
//
//	<state root>/command-<random>/        as a mount's
//	<state root>/command-<random>/kept    it holds what the bucket has not, and its user was told so
//
// One that was killed leaves it, and the lease with it. The next command on the same
// volume takes both up. When the volume has gone on without it instead, it is swept
// after a while: its command never said that it was done.
const (
	commandPrefix = "command-"
	keptName      = "kept"
)

// keepNewState is how long a command's state directory without an owner is left
// alone: a command that just begins has none yet.
const keepNewState = time.Hour

// leftState returns the state directory that a killed command on this machine left
// with the volume's lease; empty when there is none.
func (a *app) leftState(ctx context.Context, s objstore.Store) (string, error) {
	base, err := a.stateBase()
	if err != nil {
		return "", err
	}
	l, err := gateway.ReadLease(ctx, s)
	if err != nil {
		return "", err
	}
	dir := l.Owner.StateDir
	if l.Released || l.Owner.Host != gateway.HostOwner("").Host || !isCommandState(base, dir) || probeLock(dir) != nil {
		return "", nil
	}
	if _, err := os.Stat(filepath.Join(dir, ownerName)); err != nil {
		return "", nil // what it had is gone, or not to be seen
	}
	a.note("a command on this machine, process %d, was killed while it wrote to the volume: this one goes on with what it left in %s", l.Owner.PID, dir)
	return dir, nil
}

// newCommandState makes a state directory for a command.
func (a *app) newCommandState() (string, error) {
	base, err := a.stateBase()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	dir, err := os.MkdirTemp(base, commandPrefix)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return dir, nil
}

// isCommandState says whether a path is a command's state directory in a state root.
func isCommandState(base, dir string) bool {
	return filepath.Dir(dir) == filepath.Clean(base) && strings.HasPrefix(filepath.Base(dir), commandPrefix)
}

// dropCommandState removes the state directory of a command that is done. Its owner
// goes first, so that what is left of it by a kill is known to be nothing.
func dropCommandState(dir string) error {
	if err := os.Remove(filepath.Join(dir, ownerName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return localError(dir, err)
	}
	return os.RemoveAll(dir)
}

// keepCommandState marks the state directory of a command that has told its user what
// only it holds.
func keepCommandState(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, keptName), nil, 0o600); err != nil {
		return fmt.Errorf("mark the state directory as needed: %w", localError(dir, err))
	}
	return nil
}

// sweepCommands removes what killed commands left in the state root long enough ago:
// directories in which nothing was ever written, and those of the volume with this
// id, which the caller owns in another directory. One that can't be removed is left
// to the next.
func (a *app) sweepCommands(id string) []error {
	base, err := a.stateBase()
	if err != nil {
		return nil // there are none
	}
	list, err := os.ReadDir(base)
	if err != nil {
		return nil // no command has written anything
	}
	var errs []error
	for _, e := range list {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), commandPrefix) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		if err := sweepCommand(dir, id, time.Now()); err != nil && !errors.Is(err, vfs.ErrLocked) {
			errs = append(errs, fmt.Errorf("what a killed command left in %s stays: %w", dir, err))
		}
	}
	return errs
}

// sweepCommand removes one, if nobody needs it; ErrLocked when it is in use.
func sweepCommand(dir, id string, now time.Time) error {
	if _, err := os.Lstat(filepath.Join(dir, keptName)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	st, err := os.Stat(filepath.Join(dir, ownerName))
	least := keepEndedState
	if errors.Is(err, fs.ErrNotExist) {
		st, err = os.Stat(dir)
		least = keepNewState
	} else if of, err := stateVolume(dir); err != nil || of != id {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Sub(st.ModTime()) < least {
		return nil // it has just gone, or just begins
	}
	if err != nil {
		return localError(dir, err)
	}
	return lockedRemoval(dir)
}

// lockedRemoval removes a state directory that nobody uses.
func lockedRemoval(dir string) error {
	l, err := vfs.OS().Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	return errors.Join(dropCommandState(dir), l.Close())
}
