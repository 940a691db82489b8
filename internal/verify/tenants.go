package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// newTenants runs row D11: while an idle transaction keeps the dead entries of a busy tenant, single jobs of other
// tenants start at once, beside the busy tenant's jobs and after them. They belong to tenants that the workers have
// never seen, without and with a key, and to tenants that had one job when the workers started and none since.
func newTenants(ctx context.Context, r *Run) error {
	busy := outbox.NewID()
	forgotten, err := r.holdSnapshot(ctx)
	if err != nil {
		return err
	}
	defer forgotten.Close(context.WithoutCancel(ctx))
	healed := r.Faults.Begin("idle transaction holds xmin", "")
	const deadEntries = 200_000
	if err := r.leaveDeadEntries(ctx, busy, deadEntries); err != nil {
		return err
	}
	quiet := make([]outbox.ID, 30)
	for i := range quiet {
		quiet[i] = outbox.NewID()
		if _, err := r.Enqueue(ctx, tasks(1, func(int) probe.Task { return probe.Task{Do: "nothing"} }),
			outbox.Options{Tenant: quiet[i]}); err != nil {
			return err
		}
	}
	backlog := tasks(r.Size(20_000, 400_000), func(int) probe.Task { return probe.Task{Do: "sleep", Ms: 5} })
	var last outbox.ID
	for first := 0; first < len(backlog); first += 10_000 {
		ids, err := r.Enqueue(ctx, backlog[first:first+10_000], outbox.Options{Tenant: busy})
		if err != nil {
			return err
		}
		last = ids[len(ids)-1]
	}
	crew, err := r.Crew(2, "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	if err := errors.Join(r.awaitStatus(ctx, "ready", crew.workers...), backoff.Sleep(ctx, 2*time.Second)); err != nil {
		return err
	}
	lone, err := r.placeLone(ctx, last, quiet)
	if err != nil {
		return err
	}
	if err := r.expectDead(ctx, deadEntries); err != nil {
		return err
	}
	if err := forgotten.Close(ctx); err != nil {
		return err
	}
	healed()
	if err := r.expectPickedUp(lone); err != nil {
		return err
	}
	return r.endSteady(ctx, nil, crew)
}

// placeLone commits single jobs, one at a time, until the last job of the busy tenant is done and for a while after. It
// returns the ids of each sort.
func (r *Run) placeLone(ctx context.Context, last outbox.ID, quiet []outbox.ID) (map[string]map[outbox.ID]bool, error) {
	const after, quietFor = 4 * time.Second, 12 * time.Second
	clerk, err := r.newClerk()
	if err != nil {
		return nil, err
	}
	producer := outbox.NewProducer(r.DB, outbox.NotifyCoalesced)
	lone := map[string]map[outbox.ID]bool{"new tenants": {}, "new tenants, with a key": {}, "quiet tenants": {}}
	place := func(of string, options outbox.Options) error {
		id, _, err := clerk.placeWith(ctx, producer, probe.Task{Do: "nothing"}, options)
		lone[of][id] = true
		if err == nil {
			err = r.Await(ctx, patience, "a single job to be done", func(ctx context.Context) (bool, error) {
				return r.isDone(ctx, id)
			})
		}
		return errors.Join(err, backoff.Sleep(ctx, 20*time.Millisecond))
	}
	began := time.Now()
	var drained time.Time
	for drained.IsZero() || time.Since(drained) < after || len(quiet) > 0 {
		if err := errors.Join(place("new tenants", outbox.Options{Tenant: outbox.NewID()}),
			place("new tenants, with a key",
				outbox.Options{Tenant: outbox.NewID(), Key: outbox.KeyRules{Name: "lone"}})); err != nil {
			return nil, errors.Join(err, clerk.close())
		}
		if len(quiet) > 0 && time.Since(began) > quietFor {
			if err := place("quiet tenants", outbox.Options{Tenant: quiet[0]}); err != nil {
				return nil, errors.Join(err, clerk.close())
			}
			quiet = quiet[1:]
		}
		if drained.IsZero() {
			done, err := r.isDone(ctx, last)
			if err != nil {
				return nil, errors.Join(err, clerk.close())
			}
			if done {
				drained = time.Now()
				r.Figure("busy_tenant_done_s", drained.Sub(began).Seconds())
			}
		}
	}
	return lone, clerk.close()
}

func (r *Run) isDone(ctx context.Context, id outbox.ID) (done bool, err error) {
	err = r.DB.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.history WHERE id = $1)`, id.String()).Scan(&done)
	return done, err
}

func (r *Run) expectPickedUp(lone map[string]map[outbox.ID]bool) error {
	all, err := r.pickups()
	if err != nil {
		return err
	}
	for of, ids := range lone {
		var some []pickup
		for _, p := range all {
			if ids[p.Job] {
				some = append(some, p)
			}
		}
		if len(some) < len(ids) {
			return fmt.Errorf("%d of %d single jobs of %s have started", len(some), len(ids), of)
		}
		r.Count("single jobs of "+of, len(some))
		r.Expect("ms from commit to start, "+of+", median", milliseconds(quantile(some, 0.5)), "<=", 20)
		r.Expect("ms from commit to start, "+of+", worst", milliseconds(quantile(some, 1)), "<=", 1000)
	}
	return nil
}
