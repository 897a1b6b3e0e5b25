package dbtest

import (
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

func TestStart_EveryKind_AnswersAndLogs(t *testing.T) {
	testenv.Long(t)
	for _, k := range Kinds() {
		t.Run(string(k), func(t *testing.T) {
			s := Start(t, k)
			s.Exec(t, "create database d", "create table d.t (i int primary key)", "insert into d.t values (1)")
			if got := s.Value(t, "select count(*) from d.t"); got != "1" {
				t.Errorf("%s rows", got)
			}
			s.Kill(t)
			s.Restart(t)
			if logs := s.BinaryLogs(t); len(logs) != 2 {
				t.Errorf("binary logs %v", logs)
			}
		})
	}
}
