package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// suiteOLTP is sysbench on MariaDB with every mix and several numbers of clients.
func suiteOLTP() Suite {
	return Suite{
		Name: "oltp",
		What: "sysbench on MariaDB: read only, read and write, write only, with 1, 4 and 16 clients",
		Jobs: func(c Config) []Job {
			var jobs []Job
			for _, mix := range []string{"read_only", "read_write", "write_only"} {
				for _, threads := range []int{1, 4, 16} {
					jobs = append(jobs, oltpJob(c, mix, threads))
				}
			}
			return jobs
		},
		Dirs: []Kind{Ext4, Loopback, Mount},
	}
}

func oltpJob(c Config, mix string, threads int) Job {
	bar := Bar{}
	if mix == "write_only" && threads == oltpThreads {
		bar = AgainstEither(0.75, 1.3)
	}
	return Job{
		Name: fmt.Sprintf("%s-%d", mix, threads), What: fmt.Sprintf("sysbench oltp_%s on MariaDB, %d client(s)", mix, threads),
		Setting: fmt.Sprintf("InnoDB, %d × %d rows, sync_binlog=1, innodb_flush_log_at_trx_commit=1, buffer pool 256 MiB, server started for the run", oltpTables, c.Rows),
		Metrics: []Metric{{Name: "throughput", Unit: "transactions/s", Bar: bar}},
		Prepare: func(ctx context.Context, t *Target) error {
			if _, err := os.Stat(filepath.Join(t.Dir, "oltp")); !errors.Is(err, fs.ErrNotExist) {
				return err // an earlier job's tables are the same
			}
			return prepareOLTP(ctx, t, c.Rows)
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runOLTPAs(ctx, t, "oltp_"+mix, threads, c.Rows, 2*c.Seconds)
		},
	}
}
