package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// worker is a running worker of a system.
type worker struct {
	system System
	done   atomic.Int64
	stop   func() error
}

// work starts a worker whose handler calls onStart, if that is not nil.
func (r *rig) work(ctx context.Context, system System, onStart func(job int)) (*worker, error) {
	w := &worker{system: system}
	var err error
	w.stop, err = system.Work(ctx, func(_ context.Context, job int) {
		if onStart != nil {
			onStart(job)
		}
		w.done.Add(1)
	})
	return w, err
}

// settled waits until n jobs were handled and all of them are settled in the database.
func (r *rig) settled(ctx context.Context, w *worker, n int64) error {
	table, condition := w.system.Open()
	query := fmt.Sprintf(`SELECT EXISTS (SELECT FROM %s WHERE %s)`, table, condition)
	for {
		if w.done.Load() >= n {
			var open bool
			if err := r.pool.QueryRow(ctx, query).Scan(&open); err != nil {
				return err
			}
			if !open {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// insert enqueues n jobs in batches of 10 000, one transaction each.
func (r *rig) insert(ctx context.Context, n int) error {
	return inBatches(n, func(first, n int) error { return r.system.EnqueueMany(ctx, first, n) })
}

func inBatches(n int, enqueue func(first, n int) error) error {
	const batch = 10_000
	for first := 0; first < n; first += batch {
		if err := enqueue(first, min(batch, n-first)); err != nil {
			return err
		}
	}
	return nil
}

// calm runs the maintenance that earlier phases have left to the server.
func (r *rig) calm(ctx context.Context) error {
	table, _ := r.system.Open()
	_, err := r.pool.Exec(ctx, `VACUUM (ANALYZE) `+table)
	if err == nil {
		_, err = r.pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

func perSecond(n int64, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
