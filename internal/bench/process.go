package bench

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Sleep is the job of the child processes: it runs until it is cut off.
type Sleep struct {
	N int `json:"n"`
}

// Kind is "bench.sleep".
func (Sleep) Kind() string { return "bench.sleep" }

// recovery kills a worker that holds running jobs and times when another runs
// each of them again.
func recovery(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Worker == nil {
		return nil, errors.New("needs a way to start child processes")
	}
	n := cmp.Or(r.Jobs, 50)
	dir, err := os.MkdirTemp("", "posthaste-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	requests := make([]outbox.Request, n)
	for i := range requests {
		requests[i].Args = Sleep{i}
	}
	if _, err := outbox.EnqueueMany(ctx, r.pool, requests); err != nil {
		return nil, err
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	killFirst, err := r.Worker(ctx, r.url, first)
	if err != nil {
		return nil, err
	}
	if _, err := awaitLines(ctx, first, n); err != nil {
		return nil, errors.Join(err, killFirst())
	}
	killSecond, err := r.Worker(ctx, r.url, second)
	if err != nil {
		return nil, errors.Join(err, killFirst())
	}
	// Somewhere inside the lease's life, as a crash would be.
	time.Sleep(3 * time.Second)
	killed := time.Now()
	if err := killFirst(); err != nil {
		return nil, err
	}
	starts, err := awaitLines(ctx, second, n)
	if err := errors.Join(err, killSecond()); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(starts))
	for i, at := range starts {
		took[i] = at.Sub(killed)
	}
	p := percentiles(took)
	return []Figure{{"p50_s", p[0].Value / 1000}, {"max_s", p[3].Value / 1000}}, nil
}

// awaitLines waits until the ledger has n lines and returns their times.
func awaitLines(ctx context.Context, ledger string, n int) ([]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		content, _ := os.ReadFile(ledger)
		var times []time.Time
		for line := range strings.Lines(string(content)) {
			if at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(line)); err == nil {
				times = append(times, at)
			}
		}
		if len(times) >= n {
			return times, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// idle counts the transactions that a process with nothing to do makes. The
// server counts them, so nothing is left out; its own autovacuum is in them too.
func idle(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Worker == nil {
		return nil, errors.New("needs a way to start child processes")
	}
	duration := cmp.Or(r.Duration, time.Minute)
	dir, err := os.MkdirTemp("", "posthaste-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r.pool.Reset() // our own connections leave the database alone
	kill, err := r.Worker(ctx, r.url, filepath.Join(dir, "ledger"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = kill() }()
	time.Sleep(5 * time.Second) // startup is not idle
	before, err := r.transactions(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(duration):
	}
	after, err := r.transactions(ctx)
	if err != nil {
		return nil, err
	}
	return []Figure{{"queries_per_minute", float64(after-before) / duration.Minutes()}}, nil
}

// transactions of the rig's database, counted from outside of it. A backend
// reports with a delay of up to a second, at both ends.
func (r *rig) transactions(ctx context.Context) (n int64, err error) {
	outside, err := pgx.Connect(ctx, r.DatabaseURL)
	if err != nil {
		return 0, err
	}
	defer func() { _ = outside.Close(ctx) }()
	err = outside.QueryRow(ctx, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1`, r.pool.Config().ConnConfig.Database).Scan(&n)
	return n, err
}
