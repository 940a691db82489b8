package bench

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

const (
	// The jobs that are dispatched while the API gets requests: about a tenth of what one process can dispatch, so that
	// there is a rate to keep.
	offeredRate  = 5000 // a second
	offeredBatch = 50   // in one transaction

	// overloadFactor is how many times more clients there are than the API serves well.
	overloadFactor = 10
)

// beside measures dispatch of jobs that come at a steady rate: alone, beside the API under normal load, and beside ten
// times its clients, which repeat refused requests at once. Everything runs in one process on one machine, including
// the clients.
func beside(ctx context.Context, r *rig) ([]Figure, error) {
	clients, duration := cmp.Or(r.Clients, 32), cmp.Or(r.Duration, 10*time.Second)
	addr, bearer, stop, err := r.serve(ctx, r.API)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	alone, err := r.offered(ctx, duration, func(ctx context.Context) error { return backoff.Sleep(ctx, duration) })
	if err != nil {
		return nil, err
	}
	post := posting(bearer, `{"kind":"bench.other","payload":{"n":7}}`) // no worker here handles this kind
	var asked [2]loaded
	var dispatched [2]flow
	for i, n := range []int{clients, clients * overloadFactor} {
		dispatched[i], err = r.offered(ctx, duration, func(ctx context.Context) (err error) {
			asked[i], err = load(ctx, addr, n, duration, post, http.StatusAccepted, func([]byte) error { return nil })
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	figures := []Figure{{"alone_jobs_per_s", alone.rate}}
	figures = append(figures, named("alone_pickup_", alone.pickup)...)
	for i, name := range []string{"served_", "overloaded_"} {
		figures = append(figures, Figure{name + "jobs_per_s", dispatched[i].rate},
			Figure{name + "jobs_kept_percent", 100 * dispatched[i].rate / alone.rate})
		figures = append(figures, named(name+"pickup_", dispatched[i].pickup)...)
		figures = append(figures, Figure{name + "post_per_s", asked[i].rate},
			Figure{name + "refused_per_s", asked[i].refused})
		figures = append(figures, named(name+"post_", asked[i].took)...)
	}
	return figures, nil
}

// flow describes how jobs were dispatched that came at a steady rate.
type flow struct {
	rate   float64 // jobs handled per second
	pickup []time.Duration
}

// offered enqueues and dispatches jobs at the offered rate for the duration, while also runs. It does not count the
// first second: after that, jobs are handled as fast as they come, unless dispatch cannot keep up.
func (r *rig) offered(ctx context.Context, duration time.Duration, also func(context.Context) error) (flow, error) {
	batches := int(duration.Seconds() * offeredRate / offeredBatch)
	sent := make([]atomic.Int64, batches) // since started
	var mu sync.Mutex
	var f flow
	started := time.Now()
	w, err := r.work(ctx, r.system, func(job int) {
		now := time.Since(started)
		if now < time.Second || now > duration {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		f.pickup = append(f.pickup, now-time.Duration(sent[job/offeredBatch].Load()))
	})
	if err != nil {
		return f, err
	}
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return also(ctx2) })
	for batch := range batches { // concurrently: a slow commit delays no other
		group.Go(func() error {
			if err := backoff.Sleep(
				ctx2, time.Until(started.Add(time.Duration(batch)*offeredBatch*time.Second/offeredRate))); err != nil {
				return err
			}
			sent[batch].Store(int64(time.Since(started)))
			return r.system.EnqueueMany(ctx2, batch*offeredBatch, offeredBatch)
		})
	}
	if err = group.Wait(); err == nil {
		err = r.settled(ctx, w, int64(batches*offeredBatch)) // so that the next call starts without a backlog
	}
	mu.Lock()
	defer mu.Unlock()
	f.rate = float64(len(f.pickup)) / (duration - time.Second).Seconds()
	return f, errors.Join(err, w.stop())
}
