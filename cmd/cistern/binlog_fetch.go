package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/progress"
)

// partSuffix is what a file is called while it is fetched.
const partSuffix = ".part"

func (a *app) binlogFetchCommand() *cobra.Command {
	var from, to string
	c := &cobra.Command{
		Use: "fetch <vol>[@point] <dir> [file…]", Short: "Copy binary logs out of an archive", Args: cobra.MinimumNArgs(2),
		Long: `Copies files, all unless some are named, into a local directory, byte for byte as
the server wrote them, and compares them with their checksums. A copy that was
interrupted goes on where it stopped; files that are there and right are left.
Files of several epochs go into a directory for each.`,
	}
	c.Flags().StringVar(&from, "from", "", "the first file of a range")
	c.Flags().StringVar(&to, "to", "", "the last file of a range")
	return a.readsBinlog(c, false, func(ctx context.Context, b *binlogArchive, args []string) error {
		files, err := b.chosen(ctx, args[1:], from, to)
		if err != nil {
			return err
		}
		dir := args[0]
		if st, err := os.Stat(dir); err != nil {
			return usage(fmt.Errorf("%w: the directory must be there", localError(dir, err)))
		} else if !st.IsDir() {
			return usage(fmt.Errorf("%s is not a directory", dir))
		}
		for _, f := range files {
			to := filepath.Join(dir, f.Name)
			if files[0].Epoch != files[len(files)-1].Epoch {
				to = filepath.Join(dir, filepath.FromSlash(f.Path()))
				if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
					return localError(filepath.Dir(to), err)
				}
			}
			if err := a.fetchBinlog(ctx, b, f, to); err != nil {
				return err
			}
		}
		return nil
	})
}

// crcOf is the checksum that catalogues have of a local file's first n bytes.
func crcOf(name string, n int64) (sum uint32, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close() // only read
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if size, err = io.Copy(h, io.LimitReader(f, n)); err != nil {
		return 0, 0, err
	}
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	return h.Sum32(), st.Size(), nil
}

// fetchBinlog copies one file. It has its name when it is there to its end.
func (a *app) fetchBinlog(ctx context.Context, b *binlogArchive, f *binlogfs.FileInfo, to string) error {
	switch sum, n, err := crcOf(to, f.Size); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return localError(to, err)
	case n == f.Size && sum == f.CRC32C:
		return a.say("%s: %d bytes, there already", to, f.Size)
	case n < f.Size:
		// An earlier copy of a file that has grown since.
		if err := os.Rename(to, to+partSuffix); err != nil {
			return localError(to, err)
		}
	default:
		return fmt.Errorf("%s is there and is another file than %s: move it away", to, f.Path())
	}
	part := to + partSuffix
	sum, have, err := crcOf(part, f.Size)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return localError(part, err)
	case have > f.Size:
		return fmt.Errorf("%s has more bytes than %s: remove it", part, f.Path())
	}
	if sum, err = a.fetchRest(ctx, b, f, part, have, sum); err != nil {
		return err
	}
	if sum != f.CRC32C {
		if err := os.Remove(part); err != nil {
			return localError(part, err)
		}
		return fmt.Errorf("%w: the bytes of %s have the checksum %08x, and its catalogue says %08x; the copy is removed: `cistern binlog verify` tells where", binlogfs.ErrCorrupt, f.Path(), sum, f.CRC32C)
	}
	if err := os.Rename(part, to); err != nil {
		return localError(to, err)
	}
	return a.say("%s: %d bytes", to, f.Size)
}

// fetchRest appends what a part has not, syncs it, and returns the checksum of all.
func (a *app) fetchRest(ctx context.Context, b *binlogArchive, f *binlogfs.FileInfo, part string, have int64, sum uint32) (_ uint32, err error) {
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640) // as servers make them: it has a database's rows
	if err != nil {
		return 0, localError(part, err)
	}
	defer func() { err = errors.Join(err, ignoreClosed(out.Close())) }()
	in, err := b.tree.Open(ctx, path.Join(b.dir, f.Path()))
	if err != nil {
		return 0, pathError(f.Path(), err)
	}
	defer in.Close() // only read
	bar := progress.Start(a.stderr, a.terminal, f.Name, f.Size)
	defer func() { bar.Done(err == nil) }()
	bar.Add(have)
	table := crc32.MakeTable(crc32.Castagnoli)
	buf := make([]byte, readPiece)
	for have < f.Size {
		p := buf[:min(int64(len(buf)), f.Size-have)]
		n, err := in.Read(ctx, p, have)
		if err == nil && n == 0 {
			err = fmt.Errorf("%w: it ends at %d, and its catalogue says %d", binlogfs.ErrCorrupt, have, f.Size)
		}
		if err != nil {
			return 0, pathError(f.Path(), err)
		}
		if _, err := out.Write(p[:n]); err != nil {
			return 0, localError(part, err)
		}
		sum = crc32.Update(sum, table, p[:n])
		have += int64(n)
		bar.Add(int64(n))
	}
	if err := out.Sync(); err != nil {
		return 0, localError(part, err)
	}
	return sum, nil
}
