package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
)

// app is one run of the program: everything that it has of the world around it.
type app struct {
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	lookup   func(string) (string, bool) // the environment
	signals  <-chan os.Signal
	terminal bool   // stderr is one: progress bars
	screen   bool   // stdout is one: top refreshes
	base     string // of state directories; empty: the user's
	local    int64  // bytes of journal, and of cache, of a command that owns a volume; 0: commandLocal

	argv       []string      // the command line; nil: the process's
	began      string        // the working directory that detach left; empty: the present one
	configFlag string        // --config
	keyFiles   []string      // --encrypt-key-file
	keys       *gateway.Keys // once they were read
	config     *configFile   // once it was read
}

// run executes a command line and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	var ran *ranError
	switch {
	case errors.As(err, &ran):
		err = ran.error
	case err != nil:
		err = usage(err)
	}
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprintf(a.stderr, "cistern: %s\n", sentence(err))
	}
	return exitStatus(err)
}

// ranError is what a command returned, as opposed to errors of its command line.
type ranError struct{ error }

// errSaid: the command has told about it already.
var errSaid = errors.New("failed")

// said is an error with an exit status that was told already.
func said(status int) error { return &statusError{errSaid, status} }

// command makes a command whose function ends at the first signal.
func (a *app) command(c *cobra.Command, f func(ctx context.Context, c *cobra.Command, args []string) error) *cobra.Command {
	return a.longCommand(c, func(ctx context.Context, c *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			select {
			case <-a.signals:
				cancel()
			case <-done:
			}
		}()
		err := f(ctx, c, args)
		close(done)
		<-ended
		cancel()
		return err
	})
}

// badUsage is an error of a command line, with where its help is.
func badUsage(c *cobra.Command, err error) error {
	var n *strconv.NumError
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) && errors.As(err, &n) {
		why := "is no number"
		if errors.Is(n, strconv.ErrRange) {
			why = "is out of range"
		}
		err = fmt.Errorf("--%s %s: %s", bad.GetFlag().Name, bad.GetValue(), why)
	}
	return fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())
}

// longCommand makes a command whose function looks after signals itself.
func (a *app) longCommand(c *cobra.Command, f func(ctx context.Context, c *cobra.Command, args []string) error) *cobra.Command {
	if accepts := c.Args; accepts != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if accepts(c, args) != nil {
				return badUsage(c, fmt.Errorf("%s where it is `%s`", count(len(args), "argument"), strings.TrimSuffix(c.UseLine(), " [flags]")))
			}
			return nil
		}
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f(c.Context(), c, args); err != nil {
			return &ranError{err}
		}
		return nil
	}
	return c
}

// printJSON writes one indented document.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// say writes a line for people.
func (a *app) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.stdout, format+"\n", args...); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// note tells about something beside the answer.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "cistern: %s\n", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// text is a name that may have bytes that are no UTF-8: in JSON it is then
// {"b64": …}.
type text string

type base64Text struct {
	B64 []byte `json:"b64"`
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(base64Text{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var x base64Text
		err := json.Unmarshal(b, &x)
		*t = text(x.B64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

// shown is a name for a terminal: quoted when it has what would not be seen.
func (t text) shown() string {
	for _, r := range string(t) {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return strconv.Quote(string(t))
		}
	}
	return string(t)
}

func size(n int64) string { return config.FormatSize(n) }

// count is a number of things: "1 inode", "2 inodes", "0 patches".
func count[N int | int64 | uint64](n N, one string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(one, "ch"), strings.HasSuffix(one, "ss"):
		one += "es"
	case strings.HasSuffix(one, "ry"):
		one = strings.TrimSuffix(one, "y") + "ies"
	default:
		one += "s"
	}
	return fmt.Sprintf("%d %s", n, one)
}
