package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestBackupSuite_Parse_Sizes(t *testing.T) {
	c, err := backupSuite().parse([]string{"--sizes-mib", "4,16", "--data-mib", "3"})
	if err != nil || !slices.Equal(c.Sizes, []int64{4 * mebibyte, 16 * mebibyte}) || c.DataBytes != 3*mebibyte || c.Rounds != 10 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = backupSuite().parse([]string{"--quick", "--sizes-mib", "5"}); err != nil || !slices.Equal(c.Sizes, []int64{5 * mebibyte}) || c.DataBytes != 16*mebibyte || c.Rounds != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []string{"", "0", "4,", "4,x", "-1"} {
		if _, err := backupSuite().parse([]string{"--sizes-mib", bad}); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestFigureSuites_EveryJob_Measures runs the suites, small, as the commands do.
func TestFigureSuites_EveryJob_Measures(t *testing.T) {
	testenv.Long(t)
	testenv.NeedPrograms(t, "mariadbd", "mariadb-install-db", "mariadb-binlog", "mariadb-backup", "mydumper", "rsync", "sysbench")
	dir, program := testenv.TempDir(t), testenv.Binary(t, "./bench")
	for _, s := range figureSuites() {
		small := []string{"--mib", "16"}
		if s.name == "backup" {
			small = []string{"--data-mib", "2", "--sizes-mib", "2,4"}
		}
		t.Run(s.name, func(t *testing.T) {
			name := filepath.Join(dir, s.name+".json")
			args := append([]string{program, s.name, "--quick", "--seconds", "1", "--cistern", testenv.Cistern(t), "--base", dir, "--json", name}, small...)
			out, err := harness.Run(t.Context(), "", args...)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var r figureReport
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			for _, j := range s.jobs {
				if !slices.ContainsFunc(r.Figures, func(f *figure) bool { return f.Job == j.name }) {
					t.Errorf("job %s has no figure\n%s", j.name, out)
				}
			}
			for _, f := range r.Figures {
				if len(f.Values) == 0 || f.Median < 0 || f.Median == 0 && f.Unit != "ms" {
					t.Errorf("%s of %s: %v %s", f.Name, f.Job, f.Values, f.Unit)
				}
			}
			if left, err := filepath.Glob(filepath.Join(dir, "bench-*")); err != nil || len(left) > 0 {
				t.Errorf("the run left %v, %v", left, err)
			}
		})
	}
}
