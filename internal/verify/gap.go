package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// gap is one period without a listener, and the job that was committed in it.
type gap struct {
	job                       outbox.ID
	open, committed, back, up time.Time // up: the server answers again
}

const settled = 1200 * time.Millisecond // after so long a listener treats the next loss as its first

// listenerCut runs row C3.
func listenerCut(ctx context.Context, r *Run) error {
	rounds := r.Size(8, 100)
	clerk, err := r.newClerk()
	if err != nil {
		return err
	}
	defer clerk.close()
	if err := r.startWithAJob(ctx, clerk); err != nil {
		return err
	}
	w, err := r.Worker("w0", "OUTBOX_POLL_INTERVAL=5m")
	if err != nil {
		return err
	}
	if err := r.awaitStatus(ctx, "ready", w); err != nil {
		return err
	}
	if err := r.commitSlowly(ctx, clerk); err != nil {
		return err
	}
	var gaps []gap
	for i := range rounds {
		r.Progress("faults", i, rounds)
		if err := backoff.Sleep(ctx, settled); err != nil {
			return err
		}
		cut := r.terminateListener
		if i%2 == 1 {
			cut = r.restartFast
		}
		g, err := r.openGap(ctx, w, clerk, cut)
		if err != nil {
			return err
		}
		gaps = append(gaps, g)
	}
	if err := errors.Join(r.Drain(ctx, rounds, time.Minute), r.stop(ctx, w)); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.atLeast(rounds/2, "terminate the listener's session")
	r.atLeast(rounds/2, "restart Postgres -m fast")
	return r.bridged(gaps)
}

// openGap cuts the listener off, commits a job, and waits until the listener is back.
func (r *Run) openGap(ctx context.Context, w *child.Process, c *clerk, cut func(context.Context) error) (g gap,
	err error,
) {
	g.open = time.Now()
	if err := cut(ctx); err != nil {
		return g, err
	}
	g.up = time.Now()
	if g.job, g.committed, err = c.place(ctx); err != nil {
		return g, err
	}
	return g, r.Await(ctx, patience, "the listener to be back", func(context.Context) (bool, error) {
		hears, err := sayings(w, listenerHears, g.open)
		if len(hears) > 0 {
			g.back = hears[0].At
		}
		return len(hears) > 0, err
	})
}

func (r *Run) terminateListener(ctx context.Context) error {
	healed := r.Faults.Begin("terminate the listener's session", "")
	defer healed()
	hit, err := r.Number(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'posthaste-listener'`)
	if err == nil && hit != 1 {
		err = fmt.Errorf("there are %d listeners to terminate, want 1", hit)
	}
	return err
}

func (r *Run) restartFast(ctx context.Context) error {
	healed := r.Faults.Begin("restart Postgres -m fast", "")
	defer healed()
	err := r.Server.Restart(ctx, pgdev.Fast)
	r.DB.Reset() // our own connections are gone, too
	return err
}

// bridged checks how soon listeners and jobs came back after the gaps. The time of a job that was committed after the
// listener was back counts from its commit.
func (r *Run) bridged(gaps []gap) error {
	started := map[outbox.ID]time.Time{}
	for e, err := range ledger.All(r.ledgers()) {
		if err != nil {
			return err
		}
		if e.Event == ledger.Start && e.Epoch == 1 {
			started[e.Job] = e.At
		}
	}
	var reconnects, starts []time.Duration
	within := 0
	for _, g := range gaps {
		reconnects = append(reconnects, max(g.back.Sub(g.up), 0))
		if g.committed.Before(g.back) {
			within++
		}
		from := g.back
		if g.committed.After(from) {
			from = g.committed
		}
		starts = append(starts, max(started[g.job].Sub(from), 0))
	}
	slices.Sort(reconnects)
	slices.Sort(starts)
	r.Figure("reconnect_median_s", reconnects[len(reconnects)/2].Seconds())
	r.Expect("jobs committed while no listener was connected", float64(within), ">=", float64(len(gaps)/2))
	r.Expect("seconds until the listener was connected again, p99", reconnects[len(reconnects)*99/100].Seconds(),
		"<=", 1)
	r.Expect("seconds from the reconnection to the start of a job committed before it, worst",
		starts[len(starts)-1].Seconds(), "<=", pollSlack.Seconds())
	return nil
}
