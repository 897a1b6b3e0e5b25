package progress

import (
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Bar shows one piece of work. The zero value shows nothing.
type Bar struct {
	all *mpb.Progress
	bar *mpb.Bar
}

// Start begins a bar on w, if w is a terminal. total is in bytes; 0 means that
// it isn't known yet.
func Start(w io.Writer, terminal bool, name string, total int64) *Bar {
	if !terminal {
		return &Bar{}
	}
	const most = 40
	if r := []rune(name); len(r) > most {
		name = "…" + string(r[len(r)-most+1:])
	}
	all := mpb.New(mpb.WithOutput(w), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	bar := all.AddBar(total,
		mpb.PrependDecorators(decor.Name(name+" ")),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f of % .1f"), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")),
	)
	return &Bar{all: all, bar: bar}
}

// StartCount begins a bar that counts parts, on w, if w is a terminal. How many
// there are is told by Set.
func StartCount(w io.Writer, terminal bool, name string) *Bar {
	if !terminal {
		return &Bar{}
	}
	all := mpb.New(mpb.WithOutput(w), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))
	bar := all.AddBar(0, mpb.PrependDecorators(decor.Name(name+" ")), mpb.AppendDecorators(decor.CountersNoUnit("%d of %d")))
	return &Bar{all: all, bar: bar}
}

// Add says that n more bytes are done.
func (b *Bar) Add(n int64) {
	if b.bar != nil {
		b.bar.IncrInt64(n)
	}
}

// Set says that done of total bytes are done.
func (b *Bar) Set(done, total int64) {
	if b.bar != nil {
		b.bar.SetTotal(total, false)
		b.bar.SetCurrent(done)
	}
}

// Done ends the bar, as finished or where it stands.
func (b *Bar) Done(finished bool) {
	if b.bar == nil {
		return
	}
	if finished {
		b.bar.SetTotal(-1, true)
	} else {
		b.bar.Abort(false)
	}
	b.all.Wait()
}

// Reader returns r with what is read from it added to the bar.
func (b *Bar) Reader(r io.Reader) io.Reader { return &reader{r, b} }

type reader struct {
	io.Reader
	b *Bar
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.b.Add(int64(n))
	return n, err
}

// Writer returns w with what is written to it added to the bar.
func (b *Bar) Writer(w io.Writer) io.Writer { return &writer{w, b} }

type writer struct {
	io.Writer
	b *Bar
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.b.Add(int64(n))
	return n, err
}
