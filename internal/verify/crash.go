package verify

import (
	"context"
	"slices"
	"time"
)

// postmasterKills is row A5.
func postmasterKills(ctx context.Context, r *Run) error {
	crashes := r.Size(4, 20)
	var took []time.Duration
	f := flow{jobs: r.Size(4_000, 200_000), producers: 4, workers: 3, concurrency: 16, producerEnv: insisting(r.pace("20ms", "5ms"))}
	f.faults = func(ctx context.Context, _ *crew) error {
		for range crashes {
			if sleep(ctx, 1500*time.Millisecond) != nil {
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
		r.Expect("seconds until the first completion, median", median, "<=", 2)
		r.Expect("seconds until the first completion, worst", worst, "<=", 3)
	}
	r.allAcked(f.jobs)
	return nil
}

// crashPostgres kills the postmaster, starts it again, and returns how long it
// took from its first answer to the first job that was done.
func (r *Run) crashPostgres(ctx context.Context) (resumed time.Duration, err error) {
	healed := r.Faults.Begin("kill -9 postmaster", "")
	if err := r.Server.Kill9(); err != nil {
		return 0, err
	}
	if err := r.Server.StartAgain(ctx); err != nil {
		return 0, err
	}
	r.DB.Reset()
	healed()
	return r.firstDone(ctx, time.Now())
}

// firstDone is how long it takes from when the server accepts until a job is done.
func (r *Run) firstDone(ctx context.Context, accepts time.Time) (took time.Duration, err error) {
	err = r.Await(ctx, time.Minute, "the first job to be done", func(ctx context.Context) (bool, error) {
		var first *time.Time
		err := r.DB.QueryRow(ctx, `SELECT min(at) FROM verify.moves WHERE became = 'succeeded' AND at >= $1`, accepts).Scan(&first)
		if first != nil {
			took = first.Sub(accepts)
		}
		return first != nil, err
	})
	return took, err
}
