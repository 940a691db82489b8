package bench

import (
	"cmp"
	"context"
	"time"
)

// burndown enqueues a backlog and burns it down.
func burndown(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 100_000)
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	var before string
	if err := r.pool.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&before); err != nil {
		return nil, err
	}
	started := time.Now()
	if err := r.insert(ctx, n); err != nil {
		return nil, err
	}
	enqueued := perSecond(int64(n), started)

	forgetPeak() // the requests were the producer's memory, not the worker's
	cpu := cpuTime()
	started = time.Now()
	w, err := r.work(ctx, r.system, nil)
	if err != nil {
		return nil, err
	}
	if err := r.settled(ctx, w, int64(n)); err != nil {
		return nil, err
	}
	rate := perSecond(int64(n), started)
	rss, cpu := peakMiB(), cpuTime()-cpu
	if err := w.stop(); err != nil {
		return nil, err
	}
	var wal float64
	if err := r.pool.QueryRow(ctx, `SELECT (pg_current_wal_lsn() - $1::pg_lsn)::float8`, before).Scan(
		&wal); err != nil {
		return nil, err
	}
	dead, err := r.deadTuples(ctx)
	return []Figure{
		{"bulk_enqueue_per_s", enqueued},
		{"jobs_per_s", rate},
		{"wal_bytes_per_job", wal / float64(n)},
		{"dead_tuples_per_job", dead / float64(n)},
		{"client_cpu_us_per_job", float64(cpu.Microseconds()) / float64(n)},
		{"rss_mib", rss},
	}, err
}

// steady enqueues and dispatches at the same time; the producer waits while 20 000 jobs are open.
func steady(ctx context.Context, r *rig) ([]Figure, error) {
	const mostOpen, batch = 20_000, 1000
	duration := cmp.Or(r.Duration, 10*time.Second)
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	w, err := r.work(ctx, r.system, nil)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	var enqueued int64
	for time.Since(started) < duration {
		if enqueued-w.done.Load() > mostOpen-batch {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := r.insert(ctx, batch); err != nil {
			return nil, err
		}
		enqueued += batch
	}
	if err := r.settled(ctx, w, enqueued); err != nil {
		return nil, err
	}
	rate := perSecond(enqueued, started)
	return []Figure{{"jobs_per_s", rate}}, w.stop()
}
