package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// maxDump bounds a document that is dumped, in bytes.
const maxDump = 256 << 20

func (a *app) dumpCommand() *cobra.Command {
	c := &cobra.Command{Use: "dump", Short: "Show what Cistern keeps, as it keeps it", Args: cobra.NoArgs}
	c.RunE = func(*cobra.Command, []string) error {
		return fmt.Errorf("say what to dump: journal, commit, manifest, segment, pin or lease")
	}
	c.AddCommand(a.dumpJournal(), a.dumpCommit(), a.dumpManifest(), a.dumpSegment(), a.dumpPin(), a.dumpLease())
	return c
}

// dumps makes a command that dumps from a volume's bucket what may be encrypted.
func (a *app) dumps(c *cobra.Command, f func(ctx context.Context, t target, s *store, args []string) error) *cobra.Command {
	return a.dumpsFrom(c, a.openVolume, f)
}

// dumpsPlain is dumps for what never is: it needs no key.
func (a *app) dumpsPlain(c *cobra.Command, f func(ctx context.Context, t target, s *store, args []string) error) *cobra.Command {
	return a.dumpsFrom(c, func(ctx context.Context, u objstore.URL) (*store, error) { return a.openStore(ctx, u, false, nil) }, f)
}

func (a *app) dumpsFrom(c *cobra.Command, open func(context.Context, objstore.URL) (*store, error), f func(ctx context.Context, t target, s *store, args []string) error) *cobra.Command {
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		s, err := open(ctx, t.url)
		if err != nil {
			return err
		}
		return f(ctx, t, s, args[1:])
	})
}

// dumpKey prints a JSON document of the bucket as it is, indented. One that does
// not parse or verify is printed all the same, and is damage.
func (a *app) dumpKey(ctx context.Context, s *store, key string, verify func(body []byte) error) error {
	body, _, err := objstore.ReadAll(ctx, s, key, maxDump)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, body, "", "  "); err != nil {
		out = *bytes.NewBuffer(body)
	}
	out.WriteByte('\n')
	if _, err := a.stdout.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if err := verify(body); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// number reads the optional number of a commit; 0 is the last.
func number(args []string) (uint64, error) {
	if len(args) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil || n == 0 {
		return 0, usage(fmt.Errorf("%q is not a commit's number", args[0]))
	}
	return n, nil
}

func (a *app) dumpCommit() *cobra.Command {
	c := &cobra.Command{Use: "commit <vol> [number]", Short: "Show a commit's document, the last one's by default", Args: cobra.RangeArgs(1, 2)}
	return a.dumps(c, func(ctx context.Context, t target, s *store, args []string) error {
		n, err := number(args)
		if err != nil {
			return err
		}
		i, err := gateway.FindCommit(ctx, s, n, t.url.String())
		if err != nil {
			return pointError(err)
		}
		return a.dumpKey(ctx, s, metadata.CommitKey(i.ID), func(body []byte) error { _, err := metadata.DecodeCommit(body); return err })
	})
}

func (a *app) dumpManifest() *cobra.Command {
	c := &cobra.Command{Use: "manifest <vol> [commit]", Short: "Show the manifest that a commit builds on, the last one by default", Args: cobra.RangeArgs(1, 2)}
	return a.dumps(c, func(ctx context.Context, t target, s *store, args []string) error {
		n, err := number(args)
		if err != nil {
			return err
		}
		i, err := gateway.FindCommit(ctx, s, n, t.url.String())
		if err != nil {
			return pointError(err)
		}
		if i.Manifest.N == 0 {
			return a.say("commit %s builds on no manifest: the commits before it are all there", i.ID)
		}
		return a.dumpKey(ctx, s, metadata.ManifestKey(i.Manifest), func(body []byte) error { _, err := metadata.DecodeManifest(body); return err })
	})
}

func (a *app) dumpLease() *cobra.Command {
	c := &cobra.Command{Use: "lease <vol>", Short: "Show the lease", Args: cobra.ExactArgs(1)}
	return a.dumpsPlain(c, func(ctx context.Context, _ target, s *store, _ []string) error {
		return a.dumpKey(ctx, s, metadata.LeaseKey, func(body []byte) error { _, err := metadata.DecodeLease(body); return err })
	})
}

func (a *app) dumpPin() *cobra.Command {
	c := &cobra.Command{Use: "pin <vol> [name]", Short: "Show pins", Args: cobra.RangeArgs(1, 2)}
	return a.dumpsPlain(c, func(ctx context.Context, t target, s *store, args []string) error {
		found := 0
		err := objstore.ListAll(ctx, s, metadata.PinPrefix, "", func(i objstore.Info) error {
			if name, _, ok := metadata.ParsePinKey(i.Key); len(args) > 0 && (!ok || name != args[0]) {
				return nil
			}
			found++
			return a.dumpKey(ctx, s, i.Key, func(body []byte) error { _, err := metadata.DecodePin(body); return err })
		})
		if err == nil && found == 0 && len(args) > 0 {
			return fmt.Errorf("%w: %s has no pin %q", gateway.ErrNotExist, t.url, args[0])
		}
		return err
	})
}

// segmentExtent is one use of a segment's bytes.
type segmentExtent struct {
	offset, length uint32
	inode          gateway.InodeID
	fileOff        int64
	commit         uint64
}

func (a *app) dumpSegment() *cobra.Command {
	c := &cobra.Command{
		Use: "segment <vol>[@commit] [key]", Short: "List the segments, or what of a segment is used by which file", Args: cobra.RangeArgs(1, 2),
	}
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		v, err := a.openView(ctx, t)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			err = a.listSegments(v)
		} else {
			err = a.showSegment(v, strings.TrimPrefix(args[1], "/"))
		}
		return errors.Join(err, v.close())
	})
}

func (a *app) listSegments(v *view) error {
	var told error
	err := v.Index().Segments(func(s metadata.Segment) bool {
		told = a.say("%s  %d bytes, %d live, born in commit %d", s.Key, s.Size, s.Live, s.Birth)
		return told == nil
	})
	return errors.Join(err, told)
}

func (a *app) showSegment(v *view, key string) error {
	s, err := v.Index().Segment(key)
	if errors.Is(err, metadata.ErrNotExist) {
		return fmt.Errorf("%w: the commit refers to no segment %s", gateway.ErrNotExist, key)
	}
	if err != nil {
		return err
	}
	var list []segmentExtent
	slot := v.Doc().ObjectSize
	err = v.Index().AllSlots(func(ino gateway.InodeID, no uint32, s *metadata.Slot) bool {
		for _, p := range s.Patches {
			if !p.Zero && p.Seg.Key == key {
				list = append(list, segmentExtent{p.SegOff, p.Len, ino, int64(no)*slot + int64(p.Off), p.Commit})
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	sort.Slice(list, func(i, j int) bool { return list[i].offset < list[j].offset })
	if err := a.say("%s  %d bytes, %d live, born in commit %d", s.Key, s.Size, s.Live, s.Birth); err != nil {
		return err
	}
	for _, e := range list {
		if err := a.say("%10d +%-8d inode %d at %d, commit %d", e.offset, e.length, e.inode, e.fileOff, e.commit); err != nil {
			return err
		}
	}
	return nil
}
