package e2e

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

// TestLedger_Verify_FindsEveryKindOfLoss damages a good database on purpose:
// the proof that the other tests can fail.
func TestLedger_Verify_FindsEveryKindOfLoss(t *testing.T) {
	testenv.Long(t)
	server := testenv.MariaDB(t, filepath.Join(testenv.TempDir(t), "data"))
	testenv.StartMariaDB(t, server)
	db, err := server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := NewLedger(t.Context(), db, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := startLoad(t, l, server)
	w.waitTotal(t, l, 40)
	for _, reason := range w.stop() {
		if reason != nil {
			t.Fatal(reason)
		}
	}
	if err := l.Verify(t.Context(), db, OneInFlight); err != nil {
		t.Fatalf("the undamaged ledger: %v", err)
	}
	earlier := l.Snapshot()
	earlier.acked[0].sums = earlier.acked[0].sums[:1]
	if err := earlier.Verify(t.Context(), db, OneInFlight); err == nil {
		t.Error("many unacknowledged transactions must be reported")
	}
	if err := earlier.Verify(t.Context(), db, Anything); err != nil {
		t.Errorf("a later state is right when anything may follow: %v", err)
	}
	last := len(l.acked[0].sums)
	for _, c := range []struct{ name, damage, want string }{
		{"missing", "DELETE FROM ledger.parts WHERE writer = 0 AND seq = 1; DELETE FROM ledger.checks WHERE writer = 0 AND seq = 1", "transaction 1 is missing"},
		{"half", "DELETE FROM ledger.checks WHERE writer = 0 AND seq = 2", "transaction 2 is there by half"},
		{"bytes", "UPDATE ledger.parts SET payload = 'x' WHERE writer = 0 AND seq = 3", "transaction 3 has wrong bytes"},
		{"head", "UPDATE ledger.heads SET seq = 1 WHERE writer = 0", "its head is 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			// Rolled back afterwards, so that each case damages a good state;
			// Verify reads through a handle that sees the uncommitted rows.
			defer tx.Rollback()
			dirty := dirtyReader(t, server.Socket())
			for statement := range strings.SplitSeq(c.damage, ";") {
				if _, err := tx.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			err = l.Verify(t.Context(), dirty, OneInFlight)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("of %d transactions: %v; want %q", last, err, c.want)
			}
		})
	}
}

// dirtyReader is a handle that reads what others have not committed.
func dirtyReader(t *testing.T, socket string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@unix("+socket+")/?interpolateParams=true&tx_isolation='READ-UNCOMMITTED'")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}
