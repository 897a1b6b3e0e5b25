package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
)

// maxPayload is the largest payload of a transaction, in bytes: some fit a
// page, some take several.
const maxPayload = 40_000

// schema makes the ledger's tables.
var schema = []string{
	"CREATE DATABASE IF NOT EXISTS ledger",
	"CREATE TABLE IF NOT EXISTS ledger.parts (writer INT, seq BIGINT, payload LONGBLOB NOT NULL, PRIMARY KEY (writer, seq)) ENGINE=InnoDB",
	"CREATE TABLE IF NOT EXISTS ledger.checks (writer INT, seq BIGINT, crc INT UNSIGNED NOT NULL, PRIMARY KEY (writer, seq)) ENGINE=InnoDB",
	"CREATE TABLE IF NOT EXISTS ledger.heads (writer INT PRIMARY KEY, seq BIGINT NOT NULL) ENGINE=InnoDB",
}

// Ledger is what the database has acknowledged to its clients.
type Ledger struct {
	seed    uint64
	writers int

	mu    sync.Mutex // guards acked; never held during a query
	acked []account  // by writer
}

// account is one writer's acknowledged transactions: sums[i] is the checksum of
// the payload with seq i+1.
type account struct{ sums []uint32 }

// NewLedger makes the tables in db and an empty account for each writer.
func NewLedger(ctx context.Context, db *sql.DB, writers int, seed uint64) (*Ledger, error) {
	l := &Ledger{seed: seed, writers: writers, acked: make([]account, writers)}
	for _, statement := range schema {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, fmt.Errorf("make the ledger's tables: %w", err)
		}
	}
	for w := range writers {
		if _, err := db.ExecContext(ctx, "INSERT INTO ledger.heads VALUES (?, 0)", w); err != nil {
			return nil, fmt.Errorf("make the ledger's heads: %w", err)
		}
	}
	return l, nil
}

// payload is the bytes of one transaction, drawn from the seed so that they can
// be made again.
func (l *Ledger) payload(writer int, seq int64) []byte {
	r := rand.New(rand.NewPCG(l.seed^uint64(writer)<<48, uint64(seq)))
	size := 1 + r.IntN(400)
	if r.IntN(8) == 0 {
		size = 1 + r.IntN(maxPayload)
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Total is the number of acknowledged transactions.
func (l *Ledger) Total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.acked {
		n += len(a.sums)
	}
	return n
}

// Snapshot returns a ledger of what is acknowledged now.
func (l *Ledger) Snapshot() *Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Ledger{seed: l.seed, writers: l.writers}
	for _, a := range l.acked {
		s.acked = append(s.acked, account{slices.Clone(a.sums)})
	}
	return s
}

// Write lets every writer commit transactions until ctx ends or the database
// fails, and returns each writer's reason to stop: nil for ctx. The database
// failing is what the tests bring about, so it is for the caller to judge.
func (l *Ledger) Write(ctx context.Context, db *sql.DB) []error {
	reasons := make([]error, l.writers)
	var wg sync.WaitGroup
	for w := range l.writers {
		wg.Go(func() {
			for reasons[w] == nil && ctx.Err() == nil {
				reasons[w] = l.commitOne(ctx, db, w)
			}
		})
	}
	wg.Wait()
	return reasons
}

// commitOne commits the writer's next transaction and enters it in the account
// once COMMIT has returned. The queries don't follow ctx: it ends the loop
// between transactions, not the connection in the middle of one.
func (l *Ledger) commitOne(ctx context.Context, db *sql.DB, writer int) error {
	l.mu.Lock()
	seq := int64(len(l.acked[writer].sums)) + 1
	l.mu.Unlock()
	payload := l.payload(writer, seq)
	sum := crc32.ChecksumIEEE(payload)
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("writer %d, begin %d: %w", writer, seq, err)
	}
	if err := execAll(tx,
		statement{"INSERT INTO ledger.parts VALUES (?, ?, ?)", []any{writer, seq, payload}},
		statement{"INSERT INTO ledger.checks VALUES (?, ?, ?)", []any{writer, seq, sum}},
		statement{"UPDATE ledger.heads SET seq = ? WHERE writer = ?", []any{seq, writer}},
	); err != nil {
		return errors.Join(fmt.Errorf("writer %d, transaction %d: %w", writer, seq, err), tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("writer %d, commit %d: %w", writer, seq, err)
	}
	l.mu.Lock()
	l.acked[writer].sums = append(l.acked[writer].sums, sum)
	l.mu.Unlock()
	return nil
}

type statement struct {
	text string
	args []any
}

func execAll(tx *sql.Tx, statements ...statement) error {
	for _, s := range statements {
		if _, err := tx.Exec(s.text, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// Beyond says how many transactions past the acknowledged ones a state may
// hold.
type Beyond int64

const (
	// OneInFlight is the crash of a database: each writer had at most one
	// COMMIT under way.
	OneInFlight Beyond = 1
	// Anything is a state of a later moment than the ledger's.
	Anything Beyond = 1 << 60
)

// Verify compares the database with the ledger. Each difference is one of the
// joined errors. Transactions beyond the acknowledged ones, as many as allowed,
// must be whole as well.
func (l *Ledger) Verify(ctx context.Context, db *sql.DB, allowed Beyond) error {
	var errs []error
	for w := range l.writers {
		if err := l.verifyWriter(ctx, db, w, allowed); err != nil {
			errs = append(errs, fmt.Errorf("writer %d: %w", w, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Ledger) verifyWriter(ctx context.Context, db *sql.DB, writer int, allowed Beyond) error {
	l.mu.Lock()
	sums := slices.Clone(l.acked[writer].sums)
	l.mu.Unlock()
	parts, err := column[[]byte](ctx, db, "SELECT seq, payload FROM ledger.parts WHERE writer = ?", writer)
	if err != nil {
		return err
	}
	checks, err := column[uint32](ctx, db, "SELECT seq, crc FROM ledger.checks WHERE writer = ?", writer)
	if err != nil {
		return err
	}
	var head int64
	if err := db.QueryRowContext(ctx, "SELECT seq FROM ledger.heads WHERE writer = ?", writer).Scan(&head); err != nil {
		return fmt.Errorf("read its head: %w", err)
	}
	var errs []error
	fail := func(format string, args ...any) {
		if len(errs) < 20 {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	acked := int64(len(sums))
	if head < acked || head-acked > int64(allowed) {
		fail("its head is %d, acknowledged are %d", head, acked)
	}
	if int64(len(parts)) != head || int64(len(checks)) != head {
		fail("half a transaction: head %d, %d parts, %d checks", head, len(parts), len(checks))
	}
	for seq := int64(1); seq <= max(head, acked); seq++ {
		payload, havePart := parts[seq]
		crc, haveCheck := checks[seq]
		want := crc32.ChecksumIEEE(l.payload(writer, seq))
		switch {
		case seq <= acked && !havePart && !haveCheck:
			fail("committed transaction %d is missing", seq)
		case havePart != haveCheck:
			fail("transaction %d is there by half: part %v, check %v", seq, havePart, haveCheck)
		case havePart && (crc != want || crc32.ChecksumIEEE(payload) != want):
			fail("transaction %d has wrong bytes", seq)
		}
	}
	return errors.Join(errs...)
}

// column reads rows of (seq, value).
func column[T any](ctx context.Context, db *sql.DB, query string, writer int) (map[int64]T, error) {
	rows, err := db.QueryContext(ctx, query, writer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	defer rows.Close()
	out := map[int64]T{}
	for rows.Next() {
		var seq int64
		var value T
		if err := rows.Scan(&seq, &value); err != nil {
			return nil, fmt.Errorf("%s: %w", query, err)
		}
		out[seq] = value
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	return out, nil
}

// Adopt enters the transactions that the database holds beyond the account:
// their COMMIT was under way, took effect, and was never answered. Call it after
// a successful Verify.
func (l *Ledger) Adopt(ctx context.Context, db *sql.DB) error {
	for w := range l.writers {
		var head int64
		if err := db.QueryRowContext(ctx, "SELECT seq FROM ledger.heads WHERE writer = ?", w).Scan(&head); err != nil {
			return fmt.Errorf("read the head of writer %d: %w", w, err)
		}
		l.mu.Lock()
		a := &l.acked[w]
		for seq := int64(len(a.sums)) + 1; seq <= head; seq++ {
			a.sums = append(a.sums, crc32.ChecksumIEEE(l.payload(w, seq)))
		}
		l.mu.Unlock()
	}
	return nil
}
