package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// pickup holds how long a job waited, from when its producer saw the commit until its first attempt began.
type pickup struct {
	Job   outbox.ID
	Key   string
	Acked time.Time
	Took  time.Duration
}

func (p pickup) String() string {
	return fmt.Sprintf("%s, committed at %s, started %s later", p.Key, p.Acked.UTC().Format("15:04:05.000"),
		p.Took.Round(time.Millisecond))
}

// pickups returns the pickups that the ledgers record, the slowest last.
func (r *Run) pickups() (all []pickup, err error) {
	committed, started := map[outbox.ID]pickup{}, map[outbox.ID]time.Time{}
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return nil, err
		}
		switch e.Event {
		case ledger.Acked:
			committed[e.Job] = pickup{Job: e.Job, Key: e.Key, Acked: e.At}
		case ledger.Start:
			if at, known := started[e.Job]; !known || e.At.Before(at) {
				started[e.Job] = e.At
			}
		}
	}
	for job, p := range committed {
		if at, known := started[job]; known { // Check reports a job that never started
			p.Took = max(at.Sub(p.Acked), 0)
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b pickup) int { return cmp.Compare(a.Took, b.Took) })
	return all, nil
}

// between returns the pickups of jobs that were committed between two times.
func between(all []pickup, from, until time.Time) (some []pickup) {
	for _, p := range all {
		if p.Acked.After(from) && p.Acked.Before(until) {
			some = append(some, p)
		}
	}
	return some
}

// quantile returns the q-quantile of pickups that are sorted; q is from 0 to 1.
func quantile(sorted []pickup, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Took
}

// startsWithin checks that every job started within limit of its commit.
func (r *Run) startsWithin(limit time.Duration) error {
	all, err := r.pickups()
	if err != nil {
		return err
	}
	var late []string
	for _, p := range slices.Backward(all) {
		if p.Took > limit {
			late = append(late, p.String())
		}
	}
	r.Figure("pickup_p50_ms", ms(quantile(all, 0.5)))
	r.Figure("pickup_p99_ms", ms(quantile(all, 0.99)))
	r.Expect("seconds from commit to start, slowest job", quantile(all, 1).Seconds(), "<=", limit.Seconds(), late...)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// trickle runs a producer for as long as during runs, and then drains, stops, and checks.
func (r *Run) trickle(ctx context.Context, workers []*child.Process, producer []string,
	during func(context.Context) error,
) error {
	p, err := r.Producer("p0", producer...)
	if err != nil {
		return err
	}
	if err := during(ctx); err != nil {
		return err
	}
	r.Progress("drain", 0, 0)
	if err := r.stop(ctx, p); err != nil {
		return err
	}
	if err := r.Drain(ctx, 0, time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, workers...); err != nil {
		return err
	}
	_, err = r.Check(ctx)
	return err
}
