package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// Noop is the job of most workloads.
type Noop struct {
	N int `json:"n"`
}

// Kind is "bench.noop".
func (Noop) Kind() string { return "bench.noop" }

// worker is what one process does in production, with all defaults: listener,
// dispatcher and reaper.
type worker struct {
	wake listener.Signal
	done atomic.Int64
	stop func() error

	// succeeded is how many jobs the database has moved to the history.
	succeeded func() int64
}

// work starts a worker whose handler calls onStart.
func (r *rig) work(ctx context.Context, pool *pgxpool.Pool, onStart func(*outbox.Job[Noop])) (*worker, error) {
	wake := listener.NewSignal()
	w := &worker{wake: wake}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[Noop]) error {
		if onStart != nil {
			onStart(job)
		}
		w.done.Add(1)
		return nil
	})
	l, err := listener.New(r.url, outbox.Channel, wake, listener.Config{Canary: pool})
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	w.succeeded = func() int64 { return counted(registry, "job_completed_total", "success") }
	d, err := dispatcher.New(pool, &mux, dispatcher.Config{Wake: wake, Hearing: l.Hearing, Registerer: registry})
	if err != nil {
		return nil, err
	}
	reap, err := reaper.New(pool, reaper.Config{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i, run := range []func(context.Context) error{l.Run, d.Run, reap.Run} {
		wg.Go(func() { errs[i] = run(ctx) })
	}
	w.stop = func() error {
		cancel()
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return fmt.Errorf("stop the worker: %w", err)
			}
		}
		return nil
	}
	return w, nil
}

// counted is the sum of a counter's series that have this status.
func counted(registry *prometheus.Registry, name, status string) int64 {
	families, err := registry.Gather()
	if err != nil {
		return 0
	}
	var sum float64
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if family.GetName() == name && slices.ContainsFunc(series.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == "status" && l.GetValue() == status
			}) {
				sum += series.GetCounter().GetValue()
			}
		}
	}
	return int64(sum)
}

// settled waits until the database has settled n jobs, by the dispatcher's own
// count: a query for what is still open would take a core from what it measures.
func (r *rig) settled(ctx context.Context, w *worker, n int64) error {
	for w.done.Load() < n || w.succeeded() < n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// noneDue is asked when the clock has stopped: what settled counted is what the
// database says.
func (r *rig) noneDue(ctx context.Context) error {
	var open int64
	err := r.pool.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs WHERE run_at <= now()`).Scan(&open)
	if err == nil && open > 0 {
		err = fmt.Errorf("%d jobs are not settled", open)
	}
	return err
}

// insert enqueues n jobs in batches of 10 000, a transaction each.
func (r *rig) insert(ctx context.Context, n int, o outbox.Options) error {
	requests := make([]outbox.Request, min(n, 10_000))
	for start := 0; start < n; start += len(requests) {
		requests = requests[:min(len(requests), n-start)]
		for i := range requests {
			requests[i] = outbox.Request{Args: Noop{start + i}, Options: o}
		}
		if _, err := outbox.EnqueueMany(ctx, r.pool, requests); err != nil {
			return err
		}
	}
	return nil
}

// settle lets the server finish what earlier phases left it to do.
func (r *rig) calm(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, `VACUUM (ANALYZE) outbox.jobs`)
	if err == nil {
		_, err = r.pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

func perSecond(n int64, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
