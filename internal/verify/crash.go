package verify

import (
	"context"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// postmasterKills runs row A5.
func postmasterKills(ctx context.Context, r *Run) error {
	silent, err := r.crashInSilence(ctx)
	if err != nil {
		return err
	}
	crashes := r.Size(4, 20)
	var took []time.Duration
	f := flow{
		jobs: r.Size(4_000, 200_000), producers: 4, workers: 3, concurrency: 16,
		producerEnv: insisting(r.pace("20ms", "5ms")),
	}
	f.faults = func(ctx context.Context, _ *crew) error {
		for range crashes {
			if backoff.Sleep(ctx, 1500*time.Millisecond) != nil {
				return nil
			}
			resumed, err := r.crashPostgres(context.WithoutCancel(ctx))
			if err != nil {
				return err
			}
			took = append(took, resumed)
		}
		return nil
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	slices.Sort(took)
	r.atLeast(crashes, "kill -9 postmaster")
	if len(took) > 0 {
		median, worst := took[len(took)/2].Seconds(), took[len(took)-1].Seconds()
		r.Figure("resumed_median_s", median)
		r.Figure("resumed_max_s", worst)
		r.Expect("seconds from the restarted server's first answer to the first completed job, median", median, "<=", 2)
		r.Expect("seconds from the restarted server's first answer to the first completed job, worst", worst, "<=", 3)
	}
	r.allAcked(f.jobs + silent)
	return nil
}

const silentCrash = "kill -9 postmaster right after a single commit"

// crashInSilence crashes the server when nothing else commits. By the row's settings, the server writes its WAL out
// when a commit waits for that, and otherwise every ten seconds; under load any commit would also save those before it.
//
//	clerk      commit   crash
//	worker                      claim, start   crash   (claim, start)
//
// The server forgets a commit that did not wait for the disk: the order is lost, or the job is claimed again with the
// epoch of its first execution. crashInSilence returns how many orders it placed.
func (r *Run) crashInSilence(ctx context.Context) (placed int, err error) {
	clerk, err := r.newClerk()
	if err != nil {
		return 0, err
	}
	defer clerk.close()
	w, err := r.Worker("lone", "OUTBOX_REAP=off", "OUTBOX_LEASE_TTL=2m") // it must keep its lease
	if err != nil {
		return 0, err
	}
	entries := ledger.NewTail(r.ledgerOf(w.Name))
	if err := r.awaitStatus(ctx, "ready", w); err != nil {
		return 0, err
	}
	rounds := r.Size(1, 5)
	for i := range rounds {
		// The job becomes due when the server is back: the commit of a claim would wait for the disk, and save the
		// order's commit.
		job, _, err := clerk.placeWith(ctx, r.DB, probe.Task{Do: "sleep", Ms: 500}, outbox.Options{Delay: time.Second})
		if err == nil {
			err = r.crash(ctx, silentCrash)
		}
		if err != nil {
			return 0, err
		}
		kept, err := r.Number(
			ctx, `SELECT count(*) FROM (SELECT id FROM outbox.jobs UNION ALL SELECT id FROM outbox.history) AS stored WHERE id = $1`, job.String())
		if err != nil {
			return 0, err
		}
		if kept == 0 {
			continue // the order is lost: Check reports that
		}
		if err := r.awaitEntries(ctx, entries, ledger.Start, i+1); err != nil {
			return 0, err
		}
		if err := r.crash(ctx, silentCrash); err != nil {
			return 0, err
		}
		if err := r.Drain(ctx, rounds, patience); err != nil {
			return 0, err
		}
	}
	r.atLeast(2*rounds, silentCrash)
	return rounds, r.stop(ctx, w)
}

// crash kills the postmaster and starts it again.
func (r *Run) crash(ctx context.Context, kind string) error {
	healed := r.Faults.Begin(kind, "")
	if err := r.Server.Kill9(); err != nil {
		return err
	}
	if err := r.Server.StartAgain(ctx); err != nil {
		return err
	}
	r.DB.Reset() // our own connections are gone, too
	healed()
	return nil
}

// crashPostgres kills the postmaster, starts it again, and returns the time from the server's first answer to the first
// completed job.
func (r *Run) crashPostgres(ctx context.Context) (resumed time.Duration, err error) {
	if err := r.crash(ctx, "kill -9 postmaster"); err != nil {
		return 0, err
	}
	return r.firstDone(ctx, time.Now())
}

// firstDone waits for the first job that is completed after accepts, and returns how long after accepts that was.
func (r *Run) firstDone(ctx context.Context, accepts time.Time) (took time.Duration, err error) {
	err = r.Await(ctx, time.Minute, "the first job to be done", func(ctx context.Context) (bool, error) {
		var first *time.Time
		err := r.DB.QueryRow(ctx, `SELECT min(at) FROM verify.moves WHERE became = 'succeeded' AND at >= $1`,
			accepts).Scan(&first)
		if first != nil {
			took = first.Sub(accepts)
		}
		return first != nil, err
	})
	return took, err
}
