package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// defaultLease is the lease of a worker whose settings name none.
const defaultLease = 15 * time.Second

// heldRows runs row B11: the transactions of handlers lock their job's row for longer than the lease, and the handlers
// run on after the COMMIT. Meanwhile extensions skip the row, and so do reapers; after the COMMIT either may reach it
// first.
func heldRows(ctx context.Context, r *Run) error {
	const each = 40
	r.Lease = defaultLease
	holding := fault.Random(r.Seed, "hold")
	longest := r.Size(20_000, 45_000)
	queues := map[string]int{"alone": 1, "shared": 4} // by queue: the number of its processes
	var workers []*child.Process
	for queue, processes := range queues {
		for i := range processes {
			p, err := r.Worker(fmt.Sprintf("%s-%d", queue, i), "VERIFY_QUEUE="+queue, fmt.Sprint("VERIFY_POOL=", each),
				fmt.Sprint("VERIFY_CONCURRENCY=", 2*each/processes))
			if err != nil {
				return err
			}
			workers = append(workers, p)
		}
		tenant := outbox.NewID()
		for i := range each {
			o := outbox.Options{Queue: queue, MaxAttempts: 1}
			if i%2 == 1 {
				o.Tenant = tenant
			}
			if i%4 > 1 {
				o.Key.Name = fmt.Sprint(i)
			}
			ms := 16_000 + holding.IntN(longest-16_000)
			if _, err := r.Enqueue(ctx, []probe.Task{{N: i, Do: "hold", Ms: ms}}, o); err != nil {
				return err
			}
		}
	}
	if err := r.Drain(ctx, each*len(queues), 2*time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, workers...); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.Expect("executions, compared with one per job", float64(r.record.Counts["executions"]), "=",
		float64(each*len(queues)))
	for what, sql := range map[string]string{
		"jobs that succeeded on the first attempt, with their result stored": `SELECT count(*) FROM outbox.history WHERE status = 'succeeded' AND attempt = 1 AND lost_leases = 0 AND result = '"held"'`,
		"jobs whose attempt took longer than the lease":                      `SELECT count(*) FROM outbox.history WHERE finished_at - started_at > interval '16 seconds'`,
	} {
		n, err := r.Number(ctx, sql)
		if err != nil {
			return err
		}
		r.Expect(what, float64(n), "=", float64(each*len(queues)))
	}
	return nil
}
