package verify

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
)

// poolExhausted runs row D3: handlers hold every connection of their pool for several times the length of a lease,
// while other handlers wait for one.
func poolExhausted(ctx context.Context, r *Run) error {
	const pool, waiting = 4, 60
	r.Lease = time.Duration(r.Size(3, 15)) * time.Second
	blocked := time.Duration(r.Size(9, 60)) * time.Second
	env := []string{"VERIFY_POOL=4", "VERIFY_CONCURRENCY=64"}
	busy, err := r.Worker("busy", env...)
	if err != nil {
		return err
	}
	if err := r.place(ctx, repeated(pool, probe.Task{Do: "hog", Ms: int(blocked.Milliseconds())})...); err != nil {
		return err
	}
	if err := r.awaitRunning(ctx, pool); err != nil {
		return err
	}
	defer r.Faults.Begin("handlers hold every connection", busy.Name)()
	if err := r.place(ctx, repeated(waiting, probe.Task{Do: "effect"})...); err != nil {
		return err
	}
	if err := r.awaitRunning(ctx, pool+waiting); err != nil {
		return err
	}
	idle, err := r.Worker("idle", env...) // it would claim a job whose lease is lost
	if err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, blocked); err != nil {
		return err
	}
	if err := r.expectLeasesKept(ctx, busy, idle); err != nil {
		return err
	}
	if err := r.Drain(ctx, pool+waiting, time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, busy, idle); err != nil {
		return err
	}
	_, err = r.Check(ctx)
	r.Expect("leases expired", float64(r.record.Counts["leases expired"]), "=", 0)
	r.Expect("executions, compared with one per job", float64(r.record.Counts["executions"]), "=", pool+waiting)
	return err
}

func (r *Run) awaitRunning(ctx context.Context, jobs int) error {
	return r.Await(ctx, patience, "the jobs to run", func(ctx context.Context) (bool, error) {
		var n int
		err := r.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`).Scan(&n)
		return n == jobs, err
	})
}

// expectLeasesKept checks the workers' metrics, and the times at which leases were extended: an extension is due when a
// third of the lease is over, at the keeper's next look, which comes every fifteenth of the lease.
func (r *Run) expectLeasesKept(ctx context.Context, workers ...*child.Process) error {
	for name, what := range map[string]string{
		"outbox_dispatcher_extensions_late_total": "lease extensions that came too late",
		"outbox_dispatcher_leases_lost_total":     "outcomes refused because a lease was lost",
	} {
		sum, err := metric(ctx, name, workers...)
		if err != nil {
			return err
		}
		r.Expect(what, sum, "=", 0)
	}
	var extensions int
	var p99, worst float64
	err := r.DB.QueryRow(ctx, `
		SELECT count(*), coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY late), 0), coalesce(max(late), 0)
		FROM (SELECT was, became, extract(epoch FROM at - lag(at) OVER (PARTITION BY job ORDER BY seq))::float8 - $1::float8 AS late
		      FROM verify.moves) AS moves
		WHERE was = 'running' AND became = 'running'`, (r.Lease/3+r.Lease/15).Seconds()).Scan(&extensions, &p99, &worst)
	if err != nil {
		return err
	}
	r.Count("lease extensions", extensions)
	r.Figure("extension_late_p99_ms", p99*1000)
	r.Figure("extension_late_max_ms", worst*1000)
	r.Expect("lease extensions observed", float64(extensions), ">=", 300)
	r.Expect("ms by which a lease extension was late, p99", p99*1000, "<=", 200)
	return nil
}
