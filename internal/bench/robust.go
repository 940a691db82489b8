package bench

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// rate burns n due jobs down and returns the rate, measured from the start of the dispatcher.
func (r *rig) rate(ctx context.Context, n int) (float64, error) {
	started := time.Now()
	w, err := r.work(ctx, r.system, nil)
	if err != nil {
		return 0, err
	}
	if err := r.settled(ctx, w, int64(n)); err != nil {
		return 0, err
	}
	rate := perSecond(int64(n), started)
	return rate, w.stop()
}

// heldSnapshot burns down twice: once alone, and once while an idle transaction keeps vacuum and index clean-up from
// removing anything.
func heldSnapshot(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 300_000)
	run := func() (float64, error) {
		if err := r.insert(ctx, n); err != nil {
			return 0, err
		}
		return r.rate(ctx, n)
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	clean, err := run()
	if err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	forgotten, err := r.forget(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = forgotten.Rollback(context.WithoutCancel(ctx)) }()
	held, err := run()
	if err != nil {
		return nil, err
	}
	return []Figure{{"clean_jobs_per_s", clean}, {"held_jobs_per_s", held}, {"kept", held / clean}}, nil
}

// future burns down due jobs without and with rows that are more urgent and due tomorrow. The two cases alternate, each
// in a database of its own, so that changes in the machine's speed affect both.
func future(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 1_000_000)
	beside, err := newRig(ctx, r.Options)
	if err != nil {
		return nil, err
	}
	defer beside.close()
	tomorrow := beside.ours(beside.pool, r.Notify)
	tomorrow.options = &outbox.Options{Priority: 10, RunAt: time.Now().Add(24 * time.Hour)}
	if err := inBatches(n, func(first, n int) error { return tomorrow.EnqueueMany(ctx, first, n) }); err != nil {
		return nil, err
	}
	const due, turns = 100_000, 5
	rates := map[*rig][]float64{}
	for range turns {
		for _, database := range []*rig{r, beside} {
			if err := database.insert(ctx, due); err != nil {
				return nil, err
			}
			if err := database.calm(ctx); err != nil {
				return nil, err
			}
			rate, err := database.rate(ctx, due)
			if err != nil {
				return nil, err
			}
			rates[database] = append(rates[database], rate)
		}
	}
	without, with := median(rates[r]), median(rates[beside])
	return []Figure{{"alone_jobs_per_s", without}, {"beside_jobs_per_s", with}, {"kept", with / without}}, nil
}

func median(rates []float64) float64 {
	slices.Sort(rates)
	return rates[len(rates)/2]
}

// backlog compares how long claims take with few and with many jobs open.
func backlog(ctx context.Context, r *rig) ([]Figure, error) {
	n := cmp.Or(r.Jobs, 1_000_000)
	const small = 10_000
	few, err := r.claimTimes(ctx, small)
	if err != nil {
		return nil, err
	}
	many, err := r.claimTimes(ctx, n)
	if err != nil {
		return nil, err
	}
	f, m := percentiles(few)[2].Value, percentiles(many)[2].Value
	return []Figure{{"claim_p99_ms_at_10000", f}, {"claim_p99_ms", m}, {"ratio", m / f}}, nil
}

// claimTimes runs 5 000 of n open jobs, one at a time so that a claim's time is that of finding a job, and returns how
// long the claims took.
func (r *rig) claimTimes(ctx context.Context, n int) ([]time.Duration, error) {
	if _, err := r.pool.Exec(ctx, `TRUNCATE outbox.jobs, outbox.history`); err != nil {
		return nil, err
	}
	if err := r.insert(ctx, n); err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	config := r.pool.Config()
	timer := &claimTimer{}
	config.ConnConfig.Tracer = timer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	w, err := r.work(ctx, r.ours(pool, r.Notify), func(int) { time.Sleep(20 * time.Millisecond) })
	if err != nil {
		return nil, err
	}
	for w.done.Load() < 5000 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := w.stop(); err != nil {
		return nil, err
	}
	return timer.took, ctx.Err()
}

// claimTimer measures the claiming statement on the wire.
type claimTimer struct {
	mu   sync.Mutex
	took []time.Duration
}

type claimStart struct{}

func (*claimTimer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "-- name: ClaimJobs") {
		return context.WithValue(ctx, claimStart{}, time.Now())
	}
	return ctx
}

func (t *claimTimer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if started, ok := ctx.Value(claimStart{}).(time.Time); ok {
		t.mu.Lock()
		t.took = append(t.took, time.Since(started))
		t.mu.Unlock()
	}
}
