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

// latency enqueues one job at a time, as a service does that is not busy: in turns
// from the worker's own program and, as a service with a companion does, apart
// from it.
func latency(ctx context.Context, r *rig) ([]Figure, error) {
	n, every := cmp.Or(r.Jobs, 1000), cmp.Or(r.Every, 10*time.Millisecond)
	var mu sync.Mutex
	begun := make([]time.Time, 2*n)
	took := make([]time.Duration, 2*n)
	w, err := r.work(ctx, r.pool, func(job *outbox.Job[Noop]) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		if i := job.Args.N; i >= 0 {
			took[i] = now.Sub(begun[i])
		}
	})
	if err != nil {
		return nil, err
	}
	within, apart := outbox.NewProducer(r.pool, r.Notify), outbox.NewProducer(r.pool, r.Notify)
	within.AlsoWake(w.wake.Set)
	one := func(producer *outbox.Producer, i int) error {
		return producer.InTx(ctx, func(tx pgx.Tx) error {
			if i >= 0 {
				mu.Lock()
				begun[i] = time.Now()
				mu.Unlock()
			}
			_, err := outbox.Enqueue(ctx, tx, Noop{i}, outbox.Options{})
			return err
		})
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	const warmUp = 50
	for i := -warmUp; i < 2*n; i++ {
		producer := within
		if i >= 0 && i%2 == 1 {
			producer = apart
		}
		<-tick.C
		if err := one(producer, i); err != nil {
			return nil, err
		}
	}
	if err := r.settled(ctx, w, int64(2*n+warmUp)); err != nil {
		return nil, err
	}
	if err := w.stop(); err != nil {
		return nil, err
	}
	var inTurn [2][]time.Duration
	for i, t := range took {
		inTurn[i%2] = append(inTurn[i%2], t)
	}
	figures := percentiles(inTurn[0])
	for _, f := range percentiles(inTurn[1]) {
		figures = append(figures, Figure{"apart_" + f.Name, f.Value})
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

// enqueue has many clients commit a business row and a job each.
func enqueue(ctx context.Context, r *rig) ([]Figure, error) {
	clients, duration := cmp.Or(r.Clients, 64), cmp.Or(r.Duration, 5*time.Second)
	if _, err := r.pool.Exec(ctx, `CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, placed_at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	modes := []outbox.NotifyMode{r.Notify}
	if r.Notify == "" { // all three, in turns, so that they see the same machine
		modes = []outbox.NotifyMode{outbox.NotifyOff, outbox.NotifyCoalesced, outbox.NotifyTransactional}
	}
	const turns = 3
	committed := map[outbox.NotifyMode]float64{}
	for range turns {
		for _, mode := range modes {
			n, err := r.commits(ctx, mode, clients, duration/turns)
			if err != nil {
				return nil, err
			}
			committed[mode] += n / turns
		}
	}
	var figures []Figure
	for _, mode := range modes {
		figures = append(figures, Figure{fmt.Sprintf("tx_per_s_%s", mode), committed[mode]})
	}
	if len(modes) == 1 {
		figures[0].Name = "tx_per_s"
	} else {
		figures = append(figures, Figure{"coalesced_of_off", committed[outbox.NotifyCoalesced] / committed[outbox.NotifyOff]})
	}
	return figures, nil
}

func (r *rig) commits(ctx context.Context, mode outbox.NotifyMode, clients int, duration time.Duration) (float64, error) {
	producer := outbox.NewProducer(r.pool, mode)
	var committed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	started := time.Now()
	for range clients {
		group.Go(func() error {
			for time.Since(started) < duration {
				err := producer.InTx(ctx, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO public.orders (customer) VALUES ($1)`, "somebody"); err != nil {
						return err
					}
					_, err := outbox.Enqueue(ctx, tx, Noop{1}, outbox.Options{})
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
