package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
)

func (a *app) dumpJournal() *cobra.Command {
	var data, asJSON bool
	c := &cobra.Command{
		Use: "journal <state directory or mounted directory>", Short: "Show a journal's files and records", Args: cobra.ExactArgs(1),
		Long: `Shows the records of a journal, damaged files and dead records included. Of a
journal in use it shows what it finds.`,
	}
	c.Flags().BoolVar(&data, "data", false, "the first bytes of each record's data, too")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		dir, err := a.journalDir(args[0])
		if err != nil {
			return err
		}
		damage := 0
		show := func(i *journal.DumpItem) error { return a.showJournal(i, data) }
		list := jsonList{a: a}
		if asJSON {
			show = func(i *journal.DumpItem) error { return list.add(journalItemOf(i, data)) }
		}
		err = journal.Dump(vfs.OS(), dir, func(i journal.DumpItem) error {
			if ctx.Err() != nil {
				return gateway.ErrInterrupted
			}
			if i.Kind == journal.DumpDamage {
				damage++
			}
			return show(&i)
		})
		if asJSON {
			err = errors.Join(err, list.end())
		}
		if err == nil && damage > 0 {
			a.note("no whole group in %s: damage, or the torn tail of a journal that was not closed", count(damage, "place"))
		}
		return err
	})
}

// journalDir finds the journal of a state directory, itself, or a mount.
func (a *app) journalDir(arg string) (string, error) {
	dir := arg
	if m, ok, err := findMount(dir); err == nil && ok {
		r, found := a.findRecord(m.dir)
		if !found {
			return "", fmt.Errorf("the state directory of %s is not known: name it", m.dir)
		}
		dir = string(r.StateDir)
	}
	if filepath.Base(dir) != "journal" {
		dir = filepath.Join(dir, "journal")
	}
	if _, err := os.Stat(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", usage(fmt.Errorf("%s holds no journal", arg))
		}
		return "", localError(dir, err)
	}
	return dir, nil
}

// dumpedBytes is how many of a record's bytes --data shows.
const dumpedBytes = 256

func (a *app) showJournal(i *journal.DumpItem, data bool) error {
	switch i.Kind {
	case journal.DumpFile:
		return a.say("%s  %d bytes, incarnation %d, epoch %d, from LSN %d, durable %d", i.File, i.Length, i.Incarnation, i.Epoch, i.First, i.Durable)
	case journal.DumpGroup:
		return a.say("  %8d group of %s, LSN %d to %d, epoch %d, durable %d", i.Off, count(i.Count, "record"), i.First, i.Last, i.Epoch, i.Durable)
	case journal.DumpSpare:
		return a.say("%s  spare", i.File)
	case journal.DumpSynced:
		if i.Reason != "" {
			return a.say("%s  tells nothing: it %s", i.File, i.Reason)
		}
		return a.say("%s  durable %d", i.File, i.Durable)
	case journal.DumpDamage:
		return a.say("  %8d %s", i.Off, i.Reason)
	}
	d, err := gateway.Describe(i.Record)
	what := d.String()
	if err != nil {
		d.Kind, what = fmt.Sprintf("kind %d", i.Record.Op), err.Error()
	}
	if n := len(i.Record.Data); n > 0 {
		what += ", " + count(n, "byte") + " of data"
	}
	if err := a.say("           LSN %d  %-9s %s", i.Record.LSN, d.Kind, what); err != nil || !data || len(i.Record.Data) == 0 {
		return err
	}
	return a.say("%s", strings.TrimRight(hex.Dump(i.Record.Data[:min(len(i.Record.Data), dumpedBytes)]), "\n"))
}

// journalItem is the JSON of one thing in a journal; which fields it has depends
// on its kind.
type journalItem struct {
	Kind        journal.DumpKind `json:"kind"` // file, group, record, damage, spare or synced
	File        string           `json:"file"`
	Offset      int64            `json:"offset"` // in the file; of a record: its group's
	Length      int64            `json:"length,omitempty"`
	Incarnation uint64           `json:"incarnation,omitempty,string"`
	Epoch       uint64           `json:"epoch,omitempty,string"`
	First       journal.LSN      `json:"first_lsn,omitempty,string"`
	Last        journal.LSN      `json:"last_lsn,omitempty,string"`
	Durable     journal.LSN      `json:"durable_lsn,omitempty,string"`
	Records     int              `json:"records,omitempty"`
	Operation   string           `json:"operation,omitempty"`
	Fields      map[string]any   `json:"fields,omitempty"`
	DataBytes   int              `json:"data_bytes,omitempty"`
	Data        []byte           `json:"data,omitempty"` // the first bytes, base64
	Reason      string           `json:"reason,omitempty"`
}

func journalItemOf(i *journal.DumpItem, data bool) journalItem {
	item := journalItem{
		Kind: i.Kind, File: i.File, Offset: i.Off, Length: i.Length, Incarnation: i.Incarnation, Epoch: i.Epoch,
		First: i.First, Last: i.Last, Durable: i.Durable, Records: i.Count, Reason: i.Reason,
	}
	if i.Kind != journal.DumpRecord {
		return item
	}
	d, err := gateway.Describe(i.Record)
	if err != nil {
		item.Reason = err.Error()
		return item
	}
	item.Operation, item.Fields = d.Kind, map[string]any{}
	for _, f := range d.Fields {
		value := f.Value
		if s, ok := value.(string); ok {
			value = text(s)
		}
		item.Fields[jsonName(f.Name)] = value
	}
	item.DataBytes = len(i.Record.Data)
	if data {
		item.Data = i.Record.Data[:min(len(i.Record.Data), dumpedBytes)]
	}
	return item
}

// jsonName makes a field's name of words for people.
func jsonName(words string) string { return strings.NewReplacer(" ", "_", "-", "_").Replace(words) }

// jsonList writes a list of documents as it comes, since it may be long.
type jsonList struct {
	a *app
	n int
}

func (l *jsonList) add(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	before := "[\n "
	if l.n > 0 {
		before = ",\n "
	}
	l.n++
	return l.write(before + string(b))
}

func (l *jsonList) end() error {
	if l.n == 0 {
		return l.write("[]\n")
	}
	return l.write("\n]\n")
}

func (l *jsonList) write(s string) error {
	if _, err := l.a.stdout.Write([]byte(s)); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
