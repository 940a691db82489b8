package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tenants compares how long a tenant's jobs wait that come 50 per second: alone, and while a million jobs of another
// tenant, or of the root tenant, wait in the same queue. A job takes 10 ms, so that jobs wait for a turn and not for a
// core. All cases use the same database, and alternate, so that changes in the machine's speed affect all. With --keys
// all jobs share that many keys.
func tenants(ctx context.Context, r *rig) ([]Figure, error) {
	if r.HoldSnapshot {
		return tenantsHeld(ctx, r)
	}
	backlog, every := cmp.Or(r.Jobs, 1_000_000), cmp.Or(r.Every, 20*time.Millisecond)
	const turns, each = 3, 250
	small := outbox.NewID()
	var key func(int) string
	if r.Keys > 0 {
		key = func(job int) string { return fmt.Sprint("key-", job%r.Keys) }
	}
	scenes := []struct {
		name  string
		whose outbox.ID // the tenant of the backlog; zero means no backlog
		waits []time.Duration
	}{{name: "alone"}, {name: "beside", whose: outbox.NewID()}, {name: "beside_root", whose: outbox.RootTenant}}
	for range turns {
		for i := range scenes {
			scene := &scenes[i]
			if _, err := r.pool.Exec(ctx, `TRUNCATE outbox.jobs, outbox.history`); err != nil {
				return nil, err
			}
			o := r.ours(r.pool, r.Notify)
			o.options, o.key = &outbox.Options{Tenant: scene.whose}, key
			if !scene.whose.IsZero() {
				if err := inBatches(backlog, func(_, n int) error { return o.repeat(ctx, -1, n) }); err != nil {
					return nil, err
				}
			}
			if err := r.calm(ctx); err != nil {
				return nil, err
			}
			waits, err := r.waits(ctx, outbox.Options{Tenant: small}, key, each, every)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", scene.name, err)
			}
			scene.waits = append(scene.waits, waits...)
		}
	}
	var figures []Figure
	p99 := map[string]float64{}
	for _, scene := range scenes {
		all := percentiles(scene.waits)
		p99[scene.name] = all[2].Value
		figures = append(figures, Figure{scene.name + "_p50_ms", all[0].Value},
			Figure{scene.name + "_p99_ms", all[2].Value})
	}
	return append(figures, Figure{"p99_beside_of_alone", p99["beside"] / p99["alone"]},
		Figure{"p99_beside_root_of_alone", p99["beside_root"] / p99["alone"]}), nil
}

// waits commits n jobs, one at a time, and returns how long each waited from before its insert until its handler
// started. Jobs with the number -1 belong to the backlog.
func (r *rig) waits(ctx context.Context, opts outbox.Options, key func(int) string, n int,
	every time.Duration,
) ([]time.Duration, error) {
	const warmUp = 25
	var mu sync.Mutex
	begun, took, left := make([]time.Time, n+warmUp), make([]time.Duration, n+warmUp), n+warmUp
	system := r.ours(r.pool, r.Notify)
	w, err := r.work(ctx, system, func(job int) {
		if job >= 0 {
			mu.Lock()
			took[job] = time.Since(begun[job])
			left--
			mu.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
	})
	if err != nil {
		return nil, err
	}
	// The first claims are small: the dispatcher first learns how long jobs take.
	if err := backoff.Sleep(ctx, 500*time.Millisecond); err != nil {
		return nil, err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range begun {
		<-tick.C
		if key != nil {
			opts.Key.Name = key(i)
		}
		err := system.producer.InTx(ctx, func(tx pgx.Tx) error {
			mu.Lock()
			begun[i] = time.Now()
			mu.Unlock()
			_, err := outbox.Enqueue(ctx, tx, Noop{i}, opts)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for missing := true; missing; {
		if err := backoff.Sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
		mu.Lock()
		missing = left > 0
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(took[warmUp:]), w.stop()
}
