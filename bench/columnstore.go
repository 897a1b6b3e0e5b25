package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cisternfs/cistern/bench/tpch"
	"github.com/cisternfs/cistern/internal/harness"
)

// realRows is how many rows the recorded cpimport loaded.
const realRows = 1_200_000

// openColumnStore checks that the real programs are there; their server's
// configuration says where its DBRoots are.
func (t *Target) openColumnStore() error {
	t.Bucket = ""
	for _, program := range []string{"cpimport", "mariadb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s: %w: the replay of its recorded operations stands in for it", program, errNoProgram)
		}
	}
	t.Options = "the ColumnStore of this machine, with its DBRoots wherever Columnstore.xml has them"
	return nil
}

// columnStoreJob is the real thing, where there is one.
func columnStoreJob() Job {
	return Job{
		Name: "columnstore", What: "the real cpimport of lineitem, Query 1, DML and DROP TABLE",
		Setting: fmt.Sprintf("%d rows, a database of its own (cistern_bench) in the server that `mariadb` reaches", realRows),
		Targets: []Kind{ColumnStore},
		Metrics: []Metric{
			{Name: "cpimport", Unit: "s", Better: Lower}, {Name: "Query 1", Unit: "s", Better: Lower},
			{Name: "DML", Unit: "s", Better: Lower}, {Name: "drop table", Unit: "s", Better: Lower},
		},
		Prepare: func(_ context.Context, t *Target) error { return writeLineitem(lineitemFile(t)) },
		Run:     runColumnStore,
	}
}

func lineitemFile(t *Target) string { return filepath.Join(t.Dir, "lineitem.tbl") }

func writeLineitem(name string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write lineitem: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, mebibyte)
	if err := tpch.WriteLineitem(w, realRows, 1); err != nil {
		return err
	}
	return w.Flush()
}

func runColumnStore(ctx context.Context, t *Target) (_ map[string]float64, err error) {
	const database = "cistern_bench"
	sql := func(text string) error {
		_, err := harness.Run(ctx, "", "mariadb", "-e", text)
		return err
	}
	if err := sql("CREATE DATABASE IF NOT EXISTS " + database); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sql("DROP DATABASE "+database)) }()
	use := "USE " + database + "; "
	if err := sql(use + "DROP TABLE IF EXISTS lineitem; " + tpch.CreateTable + " ENGINE=ColumnStore"); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"cpimport", func() error {
			_, err := harness.Run(ctx, "", "cpimport", "-s", "\t", database, "lineitem", lineitemFile(t))
			return err
		}},
		{"Query 1", func() error { return sql(use + tpch.Query1) }},
		{"DML", func() error {
			return sql(use + "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey < 100; DELETE FROM lineitem WHERE l_orderkey < 3000")
		}},
		{"drop table", func() error { return sql(use + "DROP TABLE lineitem") }},
	} {
		begun := time.Now()
		if err := step.do(); err != nil {
			return nil, err
		}
		values[step.name] = time.Since(begun).Seconds()
	}
	return values, nil
}
