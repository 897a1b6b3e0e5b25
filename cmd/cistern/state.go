package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore"
)

const (
	socketName = "control.sock"
	logName    = "mount.log"
	ownerName  = "owner.json" // the engine's, in the state directory of a writer
)

// stateBase is where state directories go unless --state names one.
func (a *app) stateBase() (string, error) {
	if a.base != "" {
		return a.base, nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/cistern", nil
	}
	if dir, ok := a.lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "cistern"), nil
	}
	home, ok := a.lookup("HOME")
	if !ok || !filepath.IsAbs(home) {
		return "", usage(errors.New("HOME is not set: name a state directory with --state"))
	}
	return filepath.Join(home, ".local", "state", "cistern"), nil
}

// stateDir is the default state directory of a volume.
func (a *app) stateDir(u objstore.URL) (string, error) {
	base, err := a.stateBase()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, shortHash(u.String())), nil
}

// volumeState is the default state directory of the volume that is at a URL now:
// one of its own when the usual one holds what an earlier volume left there.
func (a *app) volumeState(u objstore.URL, id string) (string, error) {
	dir, err := a.stateDir(u)
	if err != nil {
		return "", err
	}
	of, err := stateVolume(dir)
	if err != nil || of == "" || of == id {
		return dir, err
	}
	return dir + "-" + id[:min(len(id), 8)], nil
}

// dropState deletes the default state directory of a volume that was destroyed,
// and returns where it was; empty when there was none.
func (a *app) dropState(u objstore.URL, id string) (string, error) {
	dir, err := a.volumeState(u, id)
	if err != nil {
		return "", err
	}
	if of, err := stateVolume(dir); err != nil || of != id {
		return "", err
	}
	lock, err := vfs.OS().Lock(filepath.Join(dir, "lock"))
	if errors.Is(err, vfs.ErrLocked) {
		err = vfs.ErrLocked // which names its file
	}
	if err != nil {
		return "", fmt.Errorf("state directory: %w", localError(dir, err))
	}
	defer lock.Close() // of a file that is gone
	if err := os.RemoveAll(dir); err != nil {
		return "", localError(dir, err)
	}
	return dir, nil
}

func shortHash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:12])
}

// stateVolume returns the id of the volume whose state a directory holds; empty when it
// has no owner.json, or one that is damaged, which is judged when the volume is opened.
func stateVolume(dir string) (string, error) {
	id, err := gateway.StateVolume(vfs.OS(), dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", localError(filepath.Join(dir, ownerName), err))
	}
	return id, nil
}

// record says who serves a mount point.
type record struct {
	PID        int       `json:"pid"`
	URL        string    `json:"url"`
	MountPoint text      `json:"mount_point"`
	StateDir   text      `json:"state_dir"`
	Socket     text      `json:"socket"`
	Started    time.Time `json:"started"`
}

// runDirs are where records lie, the one for writing first.
func (a *app) runDirs() []string {
	var dirs []string
	if dir, ok := a.lookup("XDG_RUNTIME_DIR"); ok && filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "cistern"))
	}
	const system = "/run/cistern"
	if os.Geteuid() == 0 {
		return append([]string{system}, dirs...)
	}
	if len(dirs) == 0 {
		dirs = append(dirs, filepath.Join(os.TempDir(), "cistern-"+strconv.Itoa(os.Geteuid())))
	}
	return append(dirs, system)
}

// trusted says whether a directory of records is this user's or root's, and no
// other's to write to: a record names the socket to which a command sends data.
func trusted(dir string) bool { return keptBy(dir, 0, os.Geteuid()) }

// recordDirs are the directories whose records count.
func (a *app) recordDirs() []string {
	return slices.DeleteFunc(a.runDirs(), func(dir string) bool { return !trusted(dir) })
}

func recordName(mountPoint string) string { return shortHash(mountPoint) + ".json" }

// register writes a mount's record and returns what removes it.
func (a *app) register(r record) (remove func() error, err error) {
	dir := a.runDirs()[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("register the mount: %w", err)
	}
	if !trusted(dir) {
		return nil, fmt.Errorf("register the mount: %s is no directory, or another user's to write to: move it away, or set XDG_RUNTIME_DIR to a directory of this user's", dir)
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("register the mount: %w", err)
	}
	place := string(r.MountPoint)
	if place == "" { // a process that shows the volume nowhere
		place = string(r.StateDir)
	}
	path := filepath.Join(dir, recordName(place))
	tmp := path + "." + strconv.Itoa(r.PID)
	err = os.WriteFile(tmp, append(body, '\n'), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, fmt.Errorf("register the mount: %w", err)
	}
	return func() error {
		// A later mount may have put its own there.
		if now, found := readRecord(path); found && now.PID != r.PID {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take the mount out of the registry: %w", err)
		}
		return nil
	}, nil
}

// findRecord returns the record of a mount point, if there is one that reads.
func (a *app) findRecord(mountPoint string) (record, bool) {
	for _, dir := range a.recordDirs() {
		if r, ok := readRecord(filepath.Join(dir, recordName(mountPoint))); ok && string(r.MountPoint) == mountPoint {
			return r, true
		}
	}
	return record{}, false
}

// records returns the records of mounts that may be a target's.
func (a *app) records(t target) []record {
	if t.mount != "" {
		if r, ok := a.findRecord(t.mount); ok {
			return []record{r}
		}
		return nil
	}
	var found []record
	for r := range a.allRecords() {
		if r.URL == t.url.String() {
			found = append(found, r)
		}
	}
	return found
}

// allRecords are those of all mounts of this machine that can be read.
func (a *app) allRecords() iter.Seq[record] {
	return func(yield func(record) bool) {
		for _, dir := range a.recordDirs() {
			list, err := os.ReadDir(dir)
			if err != nil {
				continue // nobody has mounted anything there
			}
			for _, e := range list {
				if r, ok := readRecord(filepath.Join(dir, e.Name())); ok && !yield(r) {
					return
				}
			}
		}
	}
}

func readRecord(path string) (record, bool) {
	var r record
	body, err := os.ReadFile(path)
	return r, err == nil && json.Unmarshal(body, &r) == nil
}
