package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// semiSyncArgs make a server wait for a replica that acknowledges, or make it one.
var semiSyncArgs = []string{"--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-timeout=600000", "--rpl-semi-sync-slave-enabled=1"}

// easyReplica takes fsyncs from a replica that is no part of what is measured:
// all programs share one disk.
var easyReplica = []string{"--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"}

// oltpPair is a primary with sysbench's tables, a replica, and a relay.
type oltpPair struct {
	c                figureConfig
	primary, replica *databaseServer
	relay            *relayServer
}

func (c figureConfig) openPair(ctx context.Context) (p *oltpPair, err error) {
	p = &oltpPair{c: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.primary, err = c.startDatabase(ctx, "primary", 1, semiSyncArgs...); err != nil {
		return p, err
	}
	if p.replica, err = c.startDatabase(ctx, "replica", 2, append(slices.Clone(semiSyncArgs), easyReplica...)...); err != nil {
		return p, err
	}
	if p.relay, err = c.newRelay(ctx, "relay", p.primary, "--semi-sync", "--serve-semi-sync"); err != nil {
		return p, err
	}
	// Nobody acknowledges yet.
	if err = p.primary.exec(ctx, "SET GLOBAL rpl_semi_sync_master_enabled=0", "CREATE DATABASE sbtest"); err != nil {
		return p, err
	}
	if _, err = sysbench(ctx, p.primary.MariaDB, c.Rows, "--threads=2", "prepare"); err != nil {
		return p, err
	}
	return p, p.primary.exec(ctx, "SET GLOBAL rpl_semi_sync_master_enabled=1")
}

func (p *oltpPair) close() error {
	return errors.Join(p.relay.close(), p.replica.close(), p.primary.close())
}

// direct makes the primary's replica the only one that acknowledges.
func (p *oltpPair) direct(ctx context.Context) error {
	if p.relay.proc != nil && p.relay.proc.Alive() {
		if err := p.relay.stop(ctx); err != nil {
			return err
		}
	}
	return p.settle(ctx, p.primary.addr())
}

// relayed puts the relay between both.
func (p *oltpPair) relayed(ctx context.Context) error {
	if err := p.replica.exec(ctx, "STOP SLAVE"); err != nil {
		return err
	}
	if p.relay.proc == nil || !p.relay.proc.Alive() {
		if err := p.relay.start(ctx); err != nil {
			return err
		}
	}
	// Who asks a relay for what it has not pulled yet is told that it never will.
	_, total, err := p.primary.logBytes(ctx)
	if err != nil {
		return err
	}
	if err := p.relay.has(ctx, total); err != nil {
		return err
	}
	return p.settle(ctx, p.relay.listen)
}

func (p *oltpPair) settle(ctx context.Context, addr string) error {
	if err := p.replica.follow(ctx, addr); err != nil {
		return err
	}
	if err := p.primary.semiSyncClients(ctx, 1); err != nil {
		return err
	}
	return p.replica.reached(ctx, p.primary)
}

// run returns sysbench's transactions per second; args are further options.
func (p *oltpPair) run(ctx context.Context, args ...string) (float64, error) {
	args = append(args, fmt.Sprintf("--time=%d", p.c.Seconds), "run")
	out, err := sysbench(ctx, p.primary.MariaDB, p.c.Rows, args...)
	if err != nil {
		return 0, err
	}
	return parseTPS(out)
}

// runRelayThroughput compares, in turn, and beginning with the other every round.
func runRelayThroughput(ctx context.Context, c figureConfig, f *figures) (err error) {
	p, err := c.openPair(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	threads := fmt.Sprintf("--threads=%d", c.Threads)
	for round := range c.Rounds {
		var direct, relayed float64
		for turn := range 2 {
			if (round+turn)%2 == 0 {
				if err := p.direct(ctx); err != nil {
					return err
				}
				if direct, err = p.run(ctx, threads); err != nil {
					return err
				}
				continue
			}
			if err := p.relayed(ctx); err != nil {
				return err
			}
			if relayed, err = p.measured(ctx, f, threads); err != nil {
				return err
			}
		}
		f.add("direct replica", "tps", direct)
		f.add("with the relay", "tps", relayed)
		f.add("ratio", "", relayed/direct)
	}
	f.bar("ratio", Higher, 0.95)
	return p.replica.reached(ctx, p.primary)
}

// measured is a run with the relay, and what the relay used for it.
func (p *oltpPair) measured(ctx context.Context, f *figures, threads string) (tps float64, err error) {
	cpu, err := p.relay.cpu()
	if err != nil {
		return 0, err
	}
	log, err := p.relay.metric(ctx, "cistern_binlog_bytes")
	if err != nil {
		return 0, err
	}
	meter, err := newStoreMeter(p.relay.bucket)
	if err != nil {
		return 0, err
	}
	memory := watchAnonymous(p.relay.proc.PID())
	err = meter.during(func() error {
		var err error
		if tps, err = p.run(ctx, threads); err != nil {
			return err
		}
		time.Sleep(2 * time.Second) // the last commit
		return nil
	})
	peak, merr := memory.end()
	after, cerr := p.relay.cpu()
	grown, berr := p.relay.metric(ctx, "cistern_binlog_bytes")
	if err := errors.Join(err, merr, cerr, berr); err != nil {
		return 0, err
	}
	up, puts := meter.bytes()
	mib := (grown - log) / mebibyte
	f.add("relay's CPU per 1,000 transactions", "s", (after-cpu).Seconds()/(tps*float64(p.c.Seconds))*1000)
	f.add("relay's memory, peak", "MiB", float64(peak)/mebibyte)
	f.add("uploaded per byte of log", "B", float64(up)/(grown-log))
	f.add("PUTs per MiB of log", "", float64(puts)/mib)
	return tps, nil
}

// xidEvent ends a transaction of InnoDB's.
const xidEvent = 16

// arrivals notes when the transactions of one file reach a reader.
type arrivals struct {
	r   *logReader
	mu  sync.Mutex // guards the fields below
	at  map[uint32]time.Time
	err error // what ended the reading
}

// watch reads until the connection is closed.
func (a *arrivals) watch(wg *sync.WaitGroup) {
	wg.Go(func() {
		for {
			kind, pos, _, err := a.r.next()
			now := time.Now()
			a.mu.Lock()
			a.err = err
			if err == nil && kind == xidEvent {
				a.at[pos] = now
			}
			a.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
}

// runRelayLag reads the same transactions from the primary and from the relay.
func runRelayLag(ctx context.Context, c figureConfig, f *figures) (err error) {
	p, err := c.openPair(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.relayed(ctx); err != nil {
		return err
	}
	if err := p.primary.exec(ctx, "FLUSH BINARY LOGS"); err != nil {
		return err
	}
	_, total, err := p.primary.logBytes(ctx)
	if err != nil {
		return err
	}
	if err := p.relay.has(ctx, total); err != nil {
		return err
	}
	file, err := p.primary.value(ctx, "SHOW MASTER STATUS", "File")
	if err != nil {
		return err
	}
	var readers []*arrivals
	var wg sync.WaitGroup
	end := func() (err error) {
		for _, a := range readers {
			err = errors.Join(err, a.r.close())
		}
		wg.Wait()
		readers = nil
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for i, addr := range []string{p.primary.addr(), p.relay.listen} {
		r, err := openReader(ctx, addr, uint32(200+i), file, dumpAnnotate)
		if err != nil {
			return err
		}
		a := &arrivals{r: r, at: map[uint32]time.Time{}}
		readers = append(readers, a)
		a.watch(&wg)
	}
	if _, err := p.run(ctx, "--threads=4", "--rate=200"); err != nil {
		return err
	}
	if err := p.replica.reached(ctx, p.primary); err != nil {
		return err
	}
	time.Sleep(time.Second)
	both := slices.Clone(readers)
	if err := end(); err != nil {
		return fmt.Errorf("close the readers: %w", err)
	}
	if err := addedLag(both[0].at, both[1].at, f); err != nil {
		return fmt.Errorf("%w; the relay's reader ended with %v", err, both[1].err)
	}
	return nil
}

// addedLag enters how much later the transactions came from the relay.
func addedLag(primary, relay map[uint32]time.Time, f *figures) error {
	var later []float64
	for pos, at := range primary {
		if got, ok := relay[pos]; ok {
			later = append(later, float64(got.Sub(at))/float64(time.Millisecond))
		}
	}
	if len(later) == 0 || len(later) < len(primary)*9/10 {
		return fmt.Errorf("of %d transactions only %d reached the reader of the relay: %w", len(primary), len(later), io.ErrUnexpectedEOF)
	}
	slices.Sort(later)
	f.add("transactions", "", float64(len(later)))
	f.add("lag added, median", "ms", medianOf(later))
	f.add("lag added, 99th percentile", "ms", later[len(later)*99/100])
	f.bar("lag added, median", Lower, 5)
	return nil
}
