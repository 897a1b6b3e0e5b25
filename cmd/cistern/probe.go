package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/internal/progress"
	"github.com/cisternfs/cistern/objstore"
)

// probed is what `cistern probe` tells a program.
type probed struct {
	URL    string `json:"url"`
	Fit    bool   `json:"fit"`
	Reason string `json:"reason,omitempty"` // why it is not
	*objstore.ProbeReport
	Warnings []string `json:"warnings,omitempty"` // of the bucket's settings
}

func (a *app) probeCommand() *cobra.Command {
	var short, asJSON bool
	var seconds float64
	c := &cobra.Command{
		Use: "probe <url>", Short: "Find out whether an object store is fit for volumes, and how fast it is", Args: cobra.ExactArgs(1),
		Long: `Tries what a volume's safety rests on: the permissions, create-only and
compare-and-swap PUTs, also with 64 and 16 of them at a time, range reads, listing
and deleting. Then it measures PUT and GET of 4 KiB, 1 MiB and 5 MiB with 1 and 16
requests at a time. What it finds is evidence, not proof: a store that breaks a
promise once in a million requests passes.

It needs no volume and touches none: it works below probe/<random>/ in the prefix
and removes what it wrote, also when it is interrupted; so it does with a directory
of a file:// URL that format would make. Exit status: 0 fit, 1 not fit, 5 the store
can't be reached. format and mount do what --short does.`,
	}
	c.Flags().BoolVar(&short, "short", false, "only what format and mount look at, and the permissions")
	c.Flags().Float64Var(&seconds, "seconds", 2, "how long each of the twelve measurements takes, 0.1 to 60")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		u, err := parseURL(args[0])
		if err != nil {
			return err
		}
		if !(seconds >= 0.1 && seconds <= 60) {
			return usage(fmt.Errorf("--seconds %v: must be 0.1 to 60", seconds))
		}
		s, removed, err := a.openProbed(ctx, u)
		if err != nil {
			return err
		}
		defer removed()
		p := probed{URL: u.String()}
		bar := progress.StartCount(a.stderr, a.terminal && !asJSON, "probe")
		p.ProbeReport, err = objstore.ProbeStore(ctx, s.bare(), objstore.ProbeOptions{
			Short: short, CellTime: time.Duration(seconds * float64(time.Second)),
			Progress: func(done, total int) { bar.Set(int64(done), int64(total)) },
		})
		bar.Done(err == nil)
		if p.Left != "" && len(p.Checks) > 1 { // else nothing was written
			a.note("not everything was removed: delete what begins with probe/ in %s: %s", u, p.Left)
		}
		if ctx.Err() != nil {
			return errors.New("interrupted: there is no verdict")
		}
		if err != nil {
			return err
		}
		if p.Warnings, err = s.warnings(ctx); err != nil {
			p.Warnings = append(p.Warnings, fmt.Sprintf("the bucket's settings can't be read: %v", err))
		}
		p.Fit, p.Reason = p.ProbeReport.Fit(), p.ProbeReport.Reason()
		return a.showProbe(&p, asJSON)
	})
}

// openProbed opens the prefix that is probed. A directory that format would make is
// made; removed takes it away again.
func (a *app) openProbed(ctx context.Context, u objstore.URL) (s *store, removed func(), err error) {
	s, err = a.openStore(ctx, u, false, nil)
	if u.Scheme != objstore.SchemeFile || !errors.Is(err, objstore.ErrNoBucket) {
		return s, func() {}, err
	}
	if s, err = a.openStore(ctx, u, true, nil); err != nil {
		return nil, nil, err
	}
	return s, func() {
		err := s.clear(context.WithoutCancel(ctx))
		if err == nil {
			err = os.Remove(u.Path)
		}
		if err != nil && !errors.Is(err, syscall.ENOTEMPTY) { // somebody else uses it by now
			a.note("%s was made for the probe and can't be removed: %s", u.Path, sentence(err))
		}
	}, nil
}

// showProbe shows what a probe found. Its error has the exit status of the verdict.
func (a *app) showProbe(p *probed, asJSON bool) error {
	var err error
	if asJSON {
		err = a.printJSON(p)
	} else {
		err = errors.Join(a.writeOut(func(w io.Writer) { writeChecks(w, p) }), a.writeOut(func(w io.Writer) { writeSpeed(w, p) }))
		for _, warning := range p.Warnings {
			a.note("warning: %s", warning)
		}
		if err == nil && p.Fit {
			err = a.say("fit: a volume is safe at %s, as far as a probe can tell", p.URL)
		} else if err == nil {
			err = a.say("%s: %s", p.verdict(), strings.ReplaceAll(p.Reason, "\n", "; "))
		}
	}
	if err != nil || p.Fit {
		return err
	}
	if p.decided() {
		return said(exitFailed)
	}
	return said(exitStore)
}

// decided says whether something is known to be wrong.
func (p *probed) decided() bool {
	for _, c := range p.Checks {
		if c.Result == objstore.ProbeFailed || c.Result == objstore.ProbeDenied {
			return true
		}
	}
	return false
}

func (p *probed) verdict() string {
	if p.decided() {
		return "not fit"
	}
	return "no verdict"
}

func writeChecks(w io.Writer, p *probed) {
	for _, c := range p.Checks {
		result := c.Result
		if c.Detail != "" {
			result += ": " + strings.ReplaceAll(c.Detail, "\n", "; ")
		}
		fmt.Fprintf(w, "%s\t%s\n", c.Name, strings.TrimPrefix(result, objstore.ProbeNote+": "))
	}
}

func writeSpeed(w io.Writer, p *probed) {
	if len(p.Speed) == 0 {
		return
	}
	fmt.Fprintf(w, "\nop\tsize\tparallel\trequests\tmin ms\tmedian ms\tp95 ms\tp99 ms\tthroughput\terrors\n")
	for _, s := range p.Speed {
		errs := fmt.Sprint(s.Errors)
		if s.Error != "" {
			errs += ", the last: " + strings.ReplaceAll(s.Error, "\n", "; ")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%s/s\t%s\n", s.Op, size(s.Size), s.Parallel, s.Requests,
			s.Min*1000, s.Median*1000, s.P95*1000, s.P99*1000, size(int64(s.BytesPerSecond)), errs)
	}
}
