package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/outbox"
)

// latency enqueues one job at a time, as a service with little load does. If this project is measured, it alternates
// between a producer in the worker's own program and one apart from it, as in a service with a separate worker.
func latency(ctx context.Context, r *rig) ([]Figure, error) {
	producers := []System{r.system}
	if _, ok := r.system.(*ours); ok {
		producers = append(producers, r.ours(r.pool, r.Notify))
	}
	n, every := cmp.Or(r.Jobs, 1000)*len(producers), cmp.Or(r.Every, 10*time.Millisecond)
	var mu sync.Mutex
	begun, took := make([]time.Time, n), make([]time.Duration, n)
	w, err := r.work(ctx, r.system, func(job int) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if job >= 0 {
			took[job] = now.Sub(begun[job])
		}
	})
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(min(every, 10*time.Millisecond))
	defer tick.Stop()
	const warmUp = 50
	for i := -warmUp; i < n; i++ {
		if i == 0 {
			tick.Reset(every)
		}
		<-tick.C
		err := producers[max(i, 0)%len(producers)].Commit(ctx, i, func(pgx.Tx) error { // begun, not yet stored
			if i >= 0 {
				mu.Lock()
				begun[i] = time.Now()
				mu.Unlock()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := r.settled(ctx, w, int64(n+warmUp)); err != nil {
		return nil, err
	}
	if err := w.stop(); err != nil {
		return nil, err
	}
	inTurn := make([][]time.Duration, len(producers))
	for i, t := range took {
		inTurn[i%len(producers)] = append(inTurn[i%len(producers)], t)
	}
	figures := percentiles(inTurn[0])
	if len(producers) > 1 {
		for _, f := range percentiles(inTurn[1]) {
			figures = append(figures, Figure{"apart_" + f.Name, f.Value})
		}
	}
	return figures, nil
}

func percentiles(took []time.Duration) []Figure {
	slices.Sort(took)
	at := func(q float64) float64 {
		if len(took) == 0 {
			return 0
		}
		return float64(took[min(int(q*float64(len(took))), len(took)-1)].Microseconds()) / 1000
	}
	return []Figure{{"p50_ms", at(0.5)}, {"p95_ms", at(0.95)}, {"p99_ms", at(0.99)}, {"max_ms", at(1)}}
}

// enqueue makes many clients commit transactions of a business row and a job.
func enqueue(ctx context.Context, r *rig) ([]Figure, error) {
	clients, duration := cmp.Or(r.Clients, 64), cmp.Or(r.Duration, 5*time.Second)
	if _, err := r.pool.Exec(
		ctx, `CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, placed_at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	names, systems := []string{"tx_per_s"}, []System{r.system}
	if r.System == nil && r.Notify == "" { // all three modes in turn, under the same conditions
		names, systems = nil, nil
		for _, mode := range []outbox.NotifyMode{outbox.NotifyOff, outbox.NotifyCoalesced, outbox.NotifyTransactional} {
			names, systems = append(names, fmt.Sprintf("tx_per_s_%s", mode)), append(systems, r.ours(r.pool, mode))
		}
	}
	const turns = 3
	committed := make([]float64, len(systems))
	for range turns {
		for i, system := range systems {
			n, err := commits(ctx, system, clients, duration/turns)
			if err != nil {
				return nil, err
			}
			committed[i] += n / turns
		}
	}
	var figures []Figure
	for i, name := range names {
		figures = append(figures, Figure{name, committed[i]})
	}
	if len(systems) > 1 {
		figures = append(figures, Figure{"coalesced_of_off", committed[1] / committed[0]})
	}
	return figures, nil
}

func commits(ctx context.Context, system System, clients int, duration time.Duration) (float64, error) {
	var committed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	for range clients {
		group.Go(func() error {
			for time.Since(started) < duration {
				err := system.Commit(ctx, 1, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO public.orders (customer) VALUES ($1)`, "somebody")
					return err
				})
				if err != nil {
					return err
				}
				committed.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return perSecond(committed.Load(), started), err
}
