package verify

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// directions are the kinds of partition, by what they hold back.
var directions = []struct {
	name              string
	requests, answers bool
}{
	{"both directions", true, true},
	{"requests", true, false},
	{"answers", false, true},
}

// partitions runs row B3.
func partitions(ctx context.Context, r *Run) error {
	if r.Tier == TierP {
		r.Lease = 3 * time.Second
	}
	jobs, rounds := r.Size(1_800, 50_000), r.Size(1, 30)
	random := fault.Random(r.Seed, "length of jobs")
	_, err := r.Enqueue(ctx, tasks(jobs, func(i int) probe.Task {
		lease := int(r.Lease.Milliseconds())
		switch i % 4 {
		case 0:
			return probe.Task{Do: "effect", Ms: random.IntN(lease / 2)}
		case 1:
			return probe.Task{Do: "once", Ms: random.IntN(lease / 2)}
		}
		return probe.Task{Do: "sleep", Ms: random.IntN(2 * lease)}
	}), outbox.Options{MaxAttempts: 1000})
	if err != nil {
		return err
	}
	var workers []*child.Process
	group, cutting := errgroup.WithContext(ctx)
	for i := range directions {
		network, dsn, err := fault.NewProxy(r.processURL())
		if err != nil {
			return err
		}
		defer network.Close()
		w, err := r.Worker(fmt.Sprintf("w%d", i), "OUTBOX_DATABASE_URL="+dsn, "VERIFY_CONCURRENCY=200",
			"VERIFY_POOL=16")
		if err != nil {
			return err
		}
		workers = append(workers, w)
		group.Go(func() error { return r.cutOff(cutting, network, i, rounds) })
	}
	r.Progress("partitions", 0, 0)
	if err := group.Wait(); err != nil {
		return err
	}
	if err := r.Drain(ctx, jobs, 2*time.Minute+time.Duration(jobs)*20*time.Millisecond); err != nil {
		return err
	}
	if err := r.stop(ctx, workers...); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.atLeast(rounds*len(directions), "network partition")
	return r.checkStops(ctx)
}

// cutOff partitions a worker from the server again and again, starting with the direction of the worker's number.
// Workers start at different times, so that some are always connected.
func (r *Run) cutOff(ctx context.Context, network *fault.Proxy, worker, rounds int) error {
	random := fault.Random(r.Seed, fmt.Sprint("partitions of ", worker))
	if err := backoff.Sleep(ctx, 2*time.Second+time.Duration(worker)*r.Lease*2/3); err != nil {
		return err
	}
	if err := r.awaitWork(ctx, fmt.Sprintf("w%d", worker)); err != nil {
		return err
	}
	for n := range rounds {
		d := directions[(worker+n)%len(directions)]
		r.Count("partitions: "+d.name, 1)
		healed := r.Faults.Begin("network partition", fmt.Sprintf("w%d", worker))
		if d.requests {
			network.Requests.Shut()
		}
		if d.answers {
			network.Answers.Shut()
		}
		err := backoff.Sleep(ctx, r.Lease*3/2)
		network.Requests.Open()
		network.Answers.Open()
		healed()
		if err != nil {
			return err
		}
		if n == rounds-1 {
			return nil
		}
		if err := backoff.Sleep(ctx, time.Duration(random.Int64N(int64(2*r.Lease)))); err != nil {
			return err
		}
	}
	return nil
}

// awaitWork waits until a worker holds many jobs, or few are left: a process takes a while to start, the longer the
// slower the machine is.
func (r *Run) awaitWork(ctx context.Context, worker string) error {
	return r.Await(ctx, patience, worker+" to have jobs", func(ctx context.Context) (busy bool, err error) {
		err = r.DB.QueryRow(ctx,
			`SELECT count(*) FILTER (WHERE starts_with(lease_owner, $1)) >= 100 OR count(*) < 300 FROM outbox.jobs`,
			worker+"-").Scan(&busy)
		return busy, err
	})
}

// checkStops compares when handlers ended, by the ledgers, with when their leases ended, by the database, for the
// handlers that a lost lease stopped or that outlived their lease. Both times come from this machine's clock.
func (r *Run) checkStops(ctx context.Context) error {
	expiry := map[string]time.Time{}
	var lease string
	var until time.Time
	rows, _ := r.DB.Query(
		ctx, `SELECT job || ' ' || epoch, max(expires) FROM verify.moves WHERE became = 'running' GROUP BY job, epoch`)
	if _, err := pgx.ForEachRow(rows, []any{&lease, &until},
		func() error { expiry[lease] = until; return nil }); err != nil {
		return err
	}
	stopped, inTime := 0, 0
	margin := time.Hour
	var late []string
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		until, leased := expiry[leaseOf(e.Job.String(), e.Epoch)]
		left := until.Sub(e.At)
		if e.Event != ledger.End || !leased || left > 0 && e.Cause != outbox.ErrLeaseLost.Error() {
			continue
		}
		stopped++
		margin = min(margin, left)
		if left > 0 {
			inTime++
		} else {
			late = append(late, fmt.Sprintf("%s, %s at epoch %d by %s: %s after the lease had ended", e.Do, e.Job,
				e.Epoch, e.Worker, -left))
		}
	}
	r.Count("handlers stopped by a lost lease, or that outlived it", stopped)
	r.Figure("stopped_before_lease_end_min_s", margin.Seconds())
	r.Expect("handlers stopped by a lost lease, or that outlived it", float64(stopped), ">=",
		float64(r.Size(100, 2000)))
	r.Expect("share of these handlers that ended before their lease, by the database's clock",
		float64(inTime)/float64(max(stopped, 1)), ">=", 0.999, late...)
	return nil
}
