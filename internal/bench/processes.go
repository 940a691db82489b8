package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
)

// processes burns jobs down with one process and with several, alternately, and reports the ratio of the rates: the
// several processes share one queue and the machine. The jobs become due at one moment, when all processes have been
// running for a while.
func processes(ctx context.Context, r *rig) ([]Figure, error) {
	if r.Process == nil {
		return nil, errors.New("needs a way to start child processes")
	}
	n, jobs := cmp.Or(r.Processes, 12), cmp.Or(r.Jobs, 60_000)
	const turns = 3
	rates := map[int][]float64{}
	for range turns {
		for _, several := range []int{1, n} {
			rate, err := r.together(ctx, several, jobs)
			if err != nil {
				return nil, fmt.Errorf("%d processes: %w", several, err)
			}
			rates[several] = append(rates[several], rate)
		}
	}
	one, all := median(rates[1]), median(rates[n])
	return []Figure{
		{"one_jobs_per_s", one},
		{"processes_jobs_per_s", all},
		{"processes", float64(n)},
		{"processes_ratio", all / one},
	}, nil
}

// together returns the rate at which n processes burn jobs down.
func (r *rig) together(ctx context.Context, n, jobs int) (rate float64, err error) {
	if _, err := r.pool.Exec(ctx, `TRUNCATE outbox.jobs, outbox.history, outbox.workers`); err != nil {
		return 0, err
	}
	for range n {
		kill, err := r.Process(ctx, r.url)
		if err != nil {
			return 0, err
		}
		defer func() { _ = kill() }()
	}
	if err := r.until(ctx, `SELECT count(*) >= $1 FROM outbox.workers`, n); err != nil {
		return 0, err
	}
	due := time.Now().Add(2*time.Second + time.Duration(jobs/10)*time.Millisecond)
	later := r.ours(r.pool, r.Notify)
	later.options = &outbox.Options{RunAt: due}
	if err := inBatches(jobs, func(first, n int) error { return later.EnqueueMany(ctx, first, n) }); err != nil {
		return 0, err
	}
	if err := r.calm(ctx); err != nil {
		return 0, err
	}
	if time.Now().After(due) {
		return 0, errors.New(
			"the jobs were due before the last of them was stored: the machine is too slow for so many")
	}
	if err := backoff.Sleep(ctx, time.Until(due)); err != nil {
		return 0, err
	}
	// By the index, in which dead entries are skipped once they were seen.
	if err := r.until(ctx, `SELECT NOT EXISTS (SELECT FROM outbox.jobs ORDER BY id LIMIT $1)`, 1); err != nil {
		return 0, err
	}
	return perSecond(int64(jobs), due), nil
}

// until repeats a query until it returns true.
func (r *rig) until(ctx context.Context, question string, arg int) error {
	for {
		var yes bool
		if err := r.pool.QueryRow(ctx, question, arg).Scan(&yes); err != nil || yes {
			return err
		}
		if err := backoff.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// WorkOn runs one of the processes of workload processes: it executes the jobs of a database until ctx ends.
func WorkOn(ctx context.Context, databaseURL string) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	r := &rig{url: databaseURL, pool: pool}
	stop, err := r.ours(pool, outbox.NotifyOff).Work(ctx, func(context.Context, int) {})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return stop()
}
