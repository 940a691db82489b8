package bench

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// Of the jobs that are dispatched while the API is asked: about a tenth of what
	// one process dispatches flat out, so that there is a rate to keep.
	offeredRate  = 5000 // a second
	offeredBatch = 50   // of one transaction

	// overloadFactor is how many times the clients there are that the API serves well.
	overloadFactor = 10
)

// beside measures dispatch at a steady rate of jobs: by itself, beside the API at
// work, and beside ten times its clients, who ask again at once when they are
// refused. All of it is one process, its clients included, on one machine.
func beside(ctx context.Context, r *rig) ([]Figure, error) {
	clients, duration := cmp.Or(r.Clients, 32), cmp.Or(r.Duration, 10*time.Second)
	addr, stop, err := r.serveAPI()
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	alone, err := r.offered(ctx, duration, func(ctx context.Context) error { return sleep(ctx, duration) })
	if err != nil {
		return nil, err
	}
	const job = `{"kind":"bench.other","payload":{"n":7}}` // that nobody here handles
	post := func(int) string {
		return fmt.Sprintf("POST /jobs HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(job), job)
	}
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
		figures = append(figures, Figure{name + "jobs_per_s", dispatched[i].rate}, Figure{name + "jobs_kept_percent", 100 * dispatched[i].rate / alone.rate})
		figures = append(figures, named(name+"pickup_", dispatched[i].pickup)...)
		figures = append(figures, Figure{name + "post_per_s", asked[i].rate}, Figure{name + "refused_per_s", asked[i].refused})
		figures = append(figures, named(name+"post_", asked[i].took)...)
	}
	return figures, nil
}

// flow is what became of jobs that came at a steady rate.
type flow struct {
	rate   float64 // at which they were handled
	pickup []time.Duration
}

// offered enqueues jobs at the offered rate for the duration, while also goes on,
// and has them dispatched. What is handled later does not count.
func (r *rig) offered(ctx context.Context, duration time.Duration, also func(context.Context) error) (flow, error) {
	batches := int(duration.Seconds() * offeredRate / offeredBatch)
	sent := make([]time.Time, batches)
	var mu sync.Mutex
	var f flow
	var enqueued int64
	counting := true
	w, err := r.work(ctx, r.system, func(job int) {
		mu.Lock()
		defer mu.Unlock()
		if !counting {
			return
		}
		f.pickup = append(f.pickup, time.Since(sent[job/offeredBatch]))
	})
	if err != nil {
		return f, err
	}
	started := time.Now()
	group, ctx2 := errgroup.WithContext(ctx)
	group.Go(func() error { return also(ctx2) })
	group.Go(func() error {
		for batch := range batches {
			due := started.Add(time.Duration(batch) * offeredBatch * time.Second / offeredRate)
			if err := sleep(ctx2, time.Until(due)); err != nil {
				return err
			}
			if time.Since(started) > duration {
				return nil // it could not keep up
			}
			mu.Lock()
			sent[batch] = time.Now()
			mu.Unlock()
			if err := r.system.EnqueueMany(ctx2, batch*offeredBatch, offeredBatch); err != nil {
				return err
			}
			enqueued += offeredBatch
		}
		return nil
	})
	err = group.Wait()
	mu.Lock()
	counting = false
	f.rate = perSecond(int64(len(f.pickup)), started)
	mu.Unlock()
	if err != nil {
		_ = w.stop()
		return f, err
	}
	if err := r.settled(ctx, w, enqueued); err != nil { // the next one begins without a backlog
		return f, err
	}
	return f, w.stop()
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
