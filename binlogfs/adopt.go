package binlogfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
)

// Errors of adopting.
var (
	// ErrEncrypted: a file whose events only its server can read.
	ErrEncrypted = errors.New("binary log is encrypted")
	// ErrNoLogs: the directory has no binary logs, or some of several servers.
	ErrNoLogs = errors.New("no binary logs")
)

// AdoptOptions say how a directory of binary logs is adopted.
type AdoptOptions struct {
	UUID     string // of the MySQL server; empty: as auto.cnf beside the logs has it
	NewEpoch bool   // the archive holds another server's log: begin an epoch
	// Progress is told how many of how many bytes are done; may be nil.
	Progress func(done, total int64)
}

// Adopted is what an adoption did.
type Adopted struct {
	Files   int   // in the archive now
	Had     int   // of those, archived wholly before
	Bytes   int64 // added
	Groups  int64 // of all
	Ripple  bool  // the files were Ripple's own and were written anew
	Dropped int64 // bytes of a group that had not ended at the end of the last file
}

// adoptable is one file of a directory.
type adoptable struct {
	name string
	size int64
	open func() (io.ReadCloser, error) // its bytes as the archive has them
}

// Adopt adds the binary logs of a directory, a server's or Ripple's, to an
// archive whose volume this process writes. Events go the way of a relay's: each
// checksum, place, group and GTID is verified, and files that are archived
// already are compared, so that an adoption that was interrupted goes on. It
// returns ErrGap where files or groups are missing between, ErrEncrypted,
// ErrOtherSource, ErrCorrupt and ErrNoLogs.
func Adopt(ctx context.Context, l *Log, dir fs.FS, o AdoptOptions) (*Adopted, error) {
	files, ripple, err := listAdoptable(dir)
	if err != nil {
		return nil, err
	}
	ad := &adopter{l: l, o: o, files: files, out: &Adopted{Ripple: ripple}}
	heads := make([]*logHead, len(files))
	for i, f := range files {
		ad.total += f.size
		heads[i], err = readHead(f)
		if errors.Is(err, errBegun) && i > 0 && i == len(files)-1 {
			ad.files, ad.total = files[:i], ad.total-f.size
			break
		}
		if err != nil {
			return nil, err
		}
		if i > 0 && heads[i].format.Flavor != heads[0].format.Flavor {
			return nil, fmt.Errorf("%w: %s is %s's, and %s is %s's", ErrNoLogs, files[0].name, heads[0].format.Flavor, f.name, heads[i].format.Flavor)
		}
	}
	s := Source{Flavor: heads[0].format.Flavor, ServerID: heads[0].serverID, UUID: o.UUID}
	if s.UUID == "" && s.Flavor == MySQL {
		s.UUID = uuidBeside(dir)
	}
	again, err := ad.began(&s)
	if err != nil {
		return nil, err
	}
	if ad.a, err = l.Append(ctx, s, o.NewEpoch && !again, nil); err != nil {
		return nil, err
	}
	for i := range ad.files {
		if err = ad.file(ctx, i, heads[i]); err != nil {
			break
		}
	}
	if cerr := ad.a.Close(ctx); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return ad.finish()
}

// adopter is an adoption under way.
type adopter struct {
	l     *Log
	a     *Appender
	o     AdoptOptions
	files []adoptable
	total int64
	done  int64
	out   *Adopted
}

// began says whether the last epoch is this directory's: an adoption that begins
// an epoch may have been interrupted.
func (ad *adopter) began(s *Source) (bool, error) {
	all, first := ad.l.Sources(), ad.files[0]
	if len(all) == 0 || !all[len(all)-1].Same(s) || ad.archived(first.name) == nil {
		return false, nil
	}
	r, err := first.open()
	if err != nil {
		return false, fmt.Errorf("%s: %w", first.name, err)
	}
	defer r.Close() // only read
	err = ad.compare(r, first.name)
	if errors.Is(err, ErrOtherSource) {
		return false, nil
	}
	return err == nil, err
}

// archived returns the catalogue of a file of the last epoch; nil when there is
// none.
func (ad *adopter) archived(name string) *FileInfo {
	all := ad.l.Sources()
	if len(all) == 0 {
		return nil
	}
	for _, f := range ad.l.Files() {
		if f.Epoch == all[len(all)-1].Epoch && f.Name == name {
			return f
		}
	}
	return nil
}

// file adds one file, or what the archive has not of it.
func (ad *adopter) file(ctx context.Context, i int, head *logHead) error {
	f := ad.files[i]
	had := int64(0)
	if info := ad.archived(f.name); info != nil {
		had = info.Size
	} else if err := ad.follows(f, head); err != nil {
		return err
	}
	r, err := f.open()
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	defer r.Close() // only read
	in := bufio.NewReaderSize(&progressReader{r, ad}, scanBuffer)
	if had > 0 {
		if err := ad.compare(in, f.name); err != nil {
			return err
		}
		if _, err := in.Peek(1); errors.Is(err, io.EOF) {
			ad.out.Had++
			return nil
		}
	}
	last, _ := ad.a.Resume()
	if had > 0 && last != f.name {
		return fmt.Errorf("%w: the directory's %s goes on after %d, where the archive's ends and %s follows", ErrGap, f.name, had, last)
	}
	if err := ad.a.Rotate(ctx, f.name, max(had, int64(len(magic)))); err != nil {
		return err
	}
	if had == 0 {
		if _, err := io.CopyN(io.Discard, in, int64(len(magic))); err != nil {
			return fmt.Errorf("%s: %w", f.name, unexpected(err))
		}
		had = int64(len(magic))
	}
	return ad.events(ctx, in, f.name, had, i == len(ad.files)-1)
}

// follows refuses a file that does not go on where the archive ends.
func (ad *adopter) follows(f adoptable, head *logHead) error {
	last, _ := ad.a.Resume()
	if last == "" {
		return nil
	}
	if logNumber(f.name) <= logNumber(last) {
		return fmt.Errorf("%w: the archive ends with %s and has no %s, and nothing can be put before what is archived", ErrGap, last, f.name)
	}
	had, err := stateAfter(ad.archived(last))
	if err != nil {
		return err
	}
	if more := had.Missing(head.previous); more != "" {
		return fmt.Errorf("%w: %s begins after the groups %s, which %s does not have at its end", ErrGap, f.name, more, last)
	}
	if less := head.previous.Missing(had); less != "" {
		return fmt.Errorf("%w: %s begins without the groups %s, which %s has at its end: the server's log was reset between", ErrGap, f.name, less, last)
	}
	return nil
}

// compare reads the part of a file that is archived.
func (ad *adopter) compare(in io.Reader, name string) error {
	info := ad.archived(name)
	h := crc32.New(castagnoli)
	if n, err := io.CopyN(h, in, info.Size); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", name, err)
	} else if n < info.Size {
		return fmt.Errorf("%w: the directory's %s ends at %d, and the archive has %d bytes of it", ErrOtherSource, name, n, info.Size)
	}
	if h.Sum32() != info.CRC32C {
		return fmt.Errorf("%w: the first %d bytes of the directory's %s are not those of the archive's", ErrOtherSource, info.Size, name)
	}
	return nil
}

// events hands a file's events to the appender.
func (ad *adopter) events(ctx context.Context, in *bufio.Reader, name string, at int64, last bool) error {
	from := at
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		raw, err := in.Peek(headerSize)
		if len(raw) == 0 && errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ad.cut(ctx, err, name, at, from, last)
		}
		h, err := DecodeHeader(raw)
		if err != nil {
			return fmt.Errorf("%s at %d: %w", name, at, err)
		}
		stored, err := ad.a.Event(ctx, int64(h.Size), io.LimitReader(in, int64(h.Size)))
		if err != nil {
			return ad.cut(ctx, err, name, at, from, last)
		}
		if !stored {
			return fmt.Errorf("%w: %s has an event %s at %d that belongs in no file", ErrCorrupt, name, EventName(h.Type), at)
		}
		at += int64(h.Size)
	}
	return ad.ended(ctx, name, at, from, last)
}

// cut is the end of a file within an event: what a server that crashed, or still
// runs, leaves at the end of its last one.
func (ad *adopter) cut(ctx context.Context, err error, name string, at, from int64, last bool) error {
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s at %d: %w", name, at, err)
	}
	if !last {
		return fmt.Errorf("%w: %s ends within the event at %d", ErrCorrupt, name, at)
	}
	return ad.ended(ctx, name, ad.files[len(ad.files)-1].size, from, last)
}

// ended closes the file in the archive. It must end with a whole group, but for
// the last one, whose open group is dropped.
func (ad *adopter) ended(ctx context.Context, name string, end, from int64, last bool) error {
	if err := ad.a.leave(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	have := max(from, ad.archived(name).Size)
	if have < end && !last {
		return fmt.Errorf("%w: %s ends within the group at %d", ErrCorrupt, name, have)
	}
	ad.out.Dropped = max(end-have, 0)
	ad.out.Bytes += have - from
	if from == int64(len(magic)) {
		ad.out.Bytes += from
	}
	return nil
}

// finish sums up.
func (ad *adopter) finish() (*Adopted, error) {
	for _, f := range ad.files {
		info := ad.archived(f.name)
		if info == nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, f.name, errBegun)
		}
		ad.out.Files++
		ad.out.Groups += info.Groups
	}
	return ad.out, nil
}

// progressReader tells of the bytes that were read.
type progressReader struct {
	r  io.Reader
	ad *adopter
}

// Read implements io.Reader.
func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.ad.done += int64(n)
	if p.ad.o.Progress != nil {
		p.ad.o.Progress(min(p.ad.done, p.ad.total), p.ad.total)
	}
	return n, err
}
