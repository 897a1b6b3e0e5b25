package journal

import (
	"context"

	"github.com/cisternfs/cistern/internal/vfs"
)

type Journal struct{}
type Reservation struct{}
type DumpItem struct{}

func Open(fs vfs.FS, dir string, o Options) (*Journal, error) { return nil, ErrState }
func (j *Journal) Replay(after, knownDurable LSN, fn func(Record) error) (ReplayInfo, error) {
	return ReplayInfo{}, ErrState
}
func (j *Journal) Start(epoch uint64, next LSN) error { return ErrState }
func (j *Journal) Reserve(ctx context.Context, n int64, engine bool) (*Reservation, error) {
	return nil, ErrState
}
func (j *Journal) Pressure() <-chan struct{} { return nil }
func (r *Reservation) Release()              {}
func (j *Journal) Append(r *Reservation, entries ...Entry) (LSN, []Loc, error) {
	return 0, nil, ErrState
}
func (j *Journal) Sync(ctx context.Context, lsn LSN) error      { return ErrState }
func (j *Journal) End() LSN                                     { return 0 }
func (j *Journal) Durable() LSN                                 { return 0 }
func (j *Journal) ReadData(loc Loc, p []byte, off int64) error  { return ErrState }
func (j *Journal) Expanded(lsn LSN) (Loc, bool)                 { return Loc{}, false }
func (j *Journal) Free(upTo LSN) error                          { return ErrState }
func (j *Journal) Stats() Stats                                 { return Stats{} }
func (j *Journal) Close() error                                 { return ErrState }
func Dump(fs vfs.FS, dir string, fn func(DumpItem) error) error { return ErrState }
