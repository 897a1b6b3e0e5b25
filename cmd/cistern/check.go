package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// checkReport is what `cistern check --json` prints.
type checkReport struct {
	checkResult
	Found   []checkProblem `json:"found"`
	Rebuild string         `json:"index_to_rebuild,omitempty"`
	Pins    []pinResult    `json:"pins,omitempty"` // with --data: commits that are kept beside the last one

	damaged map[string]bool        // keys of the last commit's problems
	told    map[fileAndObject]bool // problems of the commits that were looked at
}

// fileAndObject is a problem that several commits have.
type fileAndObject struct {
	inode uint64
	key   string
}

// tell notes a problem of a commit.
func (r *checkReport) tell(p *checkProblem) {
	if r.told == nil {
		r.told, r.damaged = map[fileAndObject]bool{}, map[string]bool{}
	}
	if len(r.told) < maxFound {
		r.damaged[p.Key] = true
		r.told[fileAndObject{p.Inode, p.Key}] = true
	}
}

// maxFound bounds the problems that a JSON document lists.
const maxFound = 10000

func (a *app) checkCommand() *cobra.Command {
	var data, repair, asJSON, takeover bool
	c := &cobra.Command{
		Use: "check <vol>[@commit]", Short: "Verify a volume", Args: cobra.ExactArgs(1),
		Long: `Verifies that a volume's last commit contradicts neither itself nor the bucket:
the metadata, the manifest and the commits, and that every object and segment
is there with its size. --data also reads every byte, verifies it, and names the
file, range and object of any damage; also what snapshots, clones and mounts of a
point keep, each shared byte once. Exit status 4 means damage.

--repair mends what can be mended without a loss: it deletes uploads that no
commit names, and lets a damaged local index be built anew from the bucket.

Of a mount the last commit is verified: "cistern sync" before it commits what was
written just now. At a past commit, uploads that no commit names are not counted.`,
	}
	c.Flags().BoolVar(&data, "data", false, "read and verify every byte")
	c.Flags().BoolVar(&repair, "repair", false, "mend what can be mended safely")
	c.Flags().BoolVar(&takeover, "takeover", false, "with --repair: take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		open := func() (service, target, error) { return a.reader(ctx, args[0]) }
		if repair {
			open = func() (service, target, error) { return a.writer(ctx, args[0], takeover) }
		}
		s, t, err := open()
		if err != nil {
			return err
		}
		r := checkReport{Found: []checkProblem{}}
		if _, mounted := s.(*remote); repair && !mounted {
			if r.Rebuild, err = a.dropIndex(ctx, t); err != nil {
				return finish(ctx, s, err)
			}
		}
		bar := progress.Start(a.stderr, a.terminal && !asJSON, "checking", 0)
		r.checkResult, err = s.check(ctx, checkRequest{Data: data, Repair: repair}, func(e checkEvent) error {
			if e.Problem == nil {
				bar.Set(e.Done, e.Total)
				return nil
			}
			r.tell(e.Problem)
			if asJSON {
				if len(r.Found) < maxFound {
					r.Found = append(r.Found, *e.Problem)
				}
				return nil
			}
			return a.say("damage: %s", e.Problem)
		})
		if err = finish(ctx, s, err); err == nil && data && t.point == "" {
			err = a.checkPins(ctx, t, &r, bar, asJSON)
		}
		bar.Done(err == nil)
		if err != nil {
			return err
		}
		if t.point != "" {
			r.Orphans, r.OrphanBytes = 0, 0 // what came later is none
		}
		return a.showCheck(&r, data, asJSON)
	})
}

// pinResult is what was verified of a commit that pins keep.
type pinResult struct {
	Commit   uint64   `json:"commit"`
	Names    []string `json:"names"`
	Bytes    int64    `json:"verified_bytes"` // that no commit before in the list, nor the last one, has
	Problems int      `json:"problems"`
}

// checkPins verifies every byte of the commits that pins keep, but those of the last
// commit and each that several have once.
func (a *app) checkPins(ctx context.Context, t target, r *checkReport, bar *progress.Bar, asJSON bool) error {
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return err
	}
	list, err := gateway.PinnedCommits(ctx, s)
	if err != nil || len(list) == 0 {
		return err
	}
	return a.checkPinned(ctx, t, s, list, r, bar, asJSON)
}

// checkPinned is checkPins for pins as they were listed. A pin may go meanwhile, and
// what it kept with it: that is no damage.
func (a *app) checkPinned(ctx context.Context, t target, s *store, list []gateway.PinnedCommit, r *checkReport, bar *progress.Bar, asJSON bool) error {
	seen := gateway.NewVerified()
	at := func(n uint64, f func(v *view) error) error {
		v, err := a.openView(ctx, target{url: t.url, point: strconv.FormatUint(n, 10)})
		if err != nil {
			return err
		}
		return errors.Join(f(v), v.close())
	}
	err := at(r.Commit.N, func(v *view) error { return seen.Mark(v.View, r.damaged) })
	if err != nil && !notKept(err) { // then there is more to verify
		return err
	}
	for _, p := range list {
		if p.N == r.Commit.N {
			continue
		}
		result := pinResult{Commit: p.N, Names: p.Names}
		var found []checkProblem
		err := at(p.N, func(v *view) error {
			c, err := v.Check(ctx, gateway.CheckOptions{
				Data: true, Verified: seen, Progress: bar.Set,
				Problem: func(q gateway.Problem) {
					if r.told[fileAndObject{uint64(q.Inode), q.Key}] {
						return // of a commit before
					}
					result.Problems++
					if len(found) < maxFound {
						found = append(found, checkProblem{
							Path: text(q.Path), Inode: uint64(q.Inode), Offset: q.Off, Length: q.Len, Key: q.Key, Reason: fmt.Sprintf("%s; commit %d has it", q.Reason, p.N),
						})
					}
				},
			})
			result.Bytes = c.Bytes
			return err
		})
		if err != nil || result.Problems > 0 {
			gone, gerr := unpinned(ctx, s, p.N)
			if gone {
				continue
			}
			err = errors.Join(err, gerr)
		}
		if err != nil {
			return fmt.Errorf("commit %d, which %s keeps: %w", p.N, strings.Join(p.Names, ", "), err)
		}
		r.Problems += result.Problems
		r.Bytes += result.Bytes
		r.Pins = append(r.Pins, result)
		for i := range found {
			r.tell(&found[i])
		}
		if err := a.foundInPin(r, found, asJSON); err != nil {
			return err
		}
	}
	return nil
}

// foundInPin tells of problems, or keeps them for the JSON document.
func (a *app) foundInPin(r *checkReport, found []checkProblem, asJSON bool) error {
	for i := range found {
		if !asJSON {
			if err := a.say("damage: %s", &found[i]); err != nil {
				return err
			}
		} else if len(r.Found) < maxFound {
			r.Found = append(r.Found, found[i])
		}
	}
	return nil
}

// notKept says whether an error is that of a commit that is not kept any more.
func notKept(err error) bool {
	return errors.Is(err, gateway.ErrNotExist) || errors.Is(err, gateway.ErrCollected)
}

// unpinned says whether no pin keeps a commit any more.
func unpinned(ctx context.Context, s *store, n uint64) (bool, error) {
	list, err := gateway.PinnedCommits(ctx, s)
	return err == nil && !slices.ContainsFunc(list, func(p gateway.PinnedCommit) bool { return p.N == n }), err
}

func (p *checkProblem) String() string {
	q := gateway.Problem{Path: string(p.Path), Inode: gateway.InodeID(p.Inode), Off: p.Offset, Len: p.Length, Key: p.Key, Reason: p.Reason}
	if q.Path != "" {
		q.Path = "/" + p.Path.shown()
	}
	return q.String()
}

func (a *app) showCheck(r *checkReport, data, asJSON bool) error {
	var err error
	if asJSON {
		err = a.printJSON(r)
	} else {
		verified := "sizes compared"
		if data {
			verified = size(r.Bytes) + " verified"
		}
		err = a.say("commit %d: %s, %s, %s, %s, %s and %s after them; %s; %s of %s",
			r.Commit.N, count(r.Inodes, "inode"), count(r.Slots, "slot"), count(r.Objects, "object"), count(r.Segments, "segment"),
			count(r.Pages, "manifest page"), count(r.Commits, "commit"), verified, count(r.Orphans, "orphan"), size(r.OrphanBytes))
		for i := range r.Pins {
			if p := &r.Pins[i]; err == nil {
				err = a.say("commit %d (%s): %s more verified", p.Commit, text(strings.Join(p.Names, ", ")).shown(), size(p.Bytes))
			}
		}
		if err == nil && r.Problems == 0 {
			err = a.say("no damage found")
		}
		if err == nil && r.StoredBytes != r.PlainBytes {
			err = a.say("%s of data take %s", size(r.PlainBytes), size(r.StoredBytes))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Keys)) {
			if err == nil {
				err = a.say("encryption key %s: %s need it", name, size(r.Keys[name]))
			}
		}
		if err == nil && r.Deleted > 0 {
			err = a.say("repair: %s deleted", count(r.Deleted, "orphan"))
		}
		if err == nil && r.Rebuild != "" {
			err = a.say("repair: the local index in %s was damaged; the next mount builds it anew", r.Rebuild)
		}
	}
	if err != nil {
		return err
	}
	if r.Problems > 0 {
		a.note("damage found: %s", count(r.Problems, "problem"))
		return said(exitDamaged)
	}
	return nil
}

// dropIndex deletes the index of the volume's default state directory when it is
// damaged, and returns where it was. Everything in it can be read from the bucket.
func (a *app) dropIndex(ctx context.Context, t target) (string, error) {
	st, err := a.openStore(ctx, t.url, false, nil)
	if err != nil {
		return "", err
	}
	doc, err := gateway.ReadVolumeDoc(ctx, st, t.url.String())
	if err != nil {
		return "", err
	}
	state, named := a.lookup("CISTERN_STATE")
	if !named {
		if state, err = a.volumeState(t.url, doc.ID); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(state, "index")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if of, err := stateVolume(state); err != nil || of != doc.ID {
		return "", err // another volume's
	}
	lock, err := vfs.OS().Lock(filepath.Join(state, "lock"))
	if err != nil {
		return "", fmt.Errorf("state directory %s: %w", state, err)
	}
	defer lock.Close() // nothing was written to it
	if sound, err := indexSound(dir, doc.ObjectSize); err != nil || sound {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove the damaged index: %w", err)
	}
	return dir, nil
}

// indexSound says whether a local index opens and agrees with itself.
func indexSound(dir string, objectSize int64) (sound bool, err error) {
	kv, err := metadata.OpenBadgerKV(dir, quietLogger())
	if errors.Is(err, metadata.ErrDamaged) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("index in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, kv.Close()) }()
	ix, err := metadata.OpenIndex(kv, objectSize)
	if err == nil {
		problems := 0
		if err = ix.Check(func(string) { problems++ }); err == nil {
			return problems == 0, nil
		}
	}
	if errors.Is(err, metadata.ErrDamaged) {
		return false, nil
	}
	return false, fmt.Errorf("index in %s: %w", dir, err)
}
