package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// System is what the workloads measure: this project, or a peer (the module in bench/ has those). The same code
// measures all of them. The jobs of a System are numbers.
type System interface {
	// Migrate prepares an empty database.
	Migrate(ctx context.Context) error
	// EnqueueMany stores n jobs that are due at once, numbered from first, in the system's fastest way.
	EnqueueMany(ctx context.Context, first, n int) error
	// Commit stores one job in the transaction in which also made its changes.
	Commit(ctx context.Context, job int, also func(pgx.Tx) error) error
	// Work starts a worker that calls handle, concurrently, for each job. The function stop stops the worker and
	// releases everything that it uses.
	Work(ctx context.Context, handle func(ctx context.Context, job int)) (stop func() error, err error)
	// Open returns the table of open jobs, and a condition that holds for some of them until all handled jobs are
	// settled. It is evaluated repeatedly, so it must be cheap.
	Open() (table, condition string)
}

// Noop is the job of all workloads.
type Noop struct {
	N int `json:"n"`
}

// Kind returns "bench.noop".
func (Noop) Kind() string { return "bench.noop" }

// ours is this project, with all defaults: what one process does in production.
type ours struct {
	url      string
	pool     *pgxpool.Pool
	producer *outbox.Producer
	options  *outbox.Options // of the jobs of EnqueueMany; may be nil
	key      func(job int) string
	requests sync.Pool // of *[]outbox.Request: the memory of a large batch is kept for the next
}

func (r *rig) ours(pool *pgxpool.Pool, mode outbox.NotifyMode) *ours {
	o := &ours{url: r.url, pool: pool, producer: outbox.NewProducer(pool, mode)}
	if r.Streamed {
		o.options = &outbox.Options{Streamed: true}
	}
	return o
}

func (o *ours) Migrate(ctx context.Context) error { return migrate.Up(ctx, o.pool) }

func (o *ours) Open() (table, condition string) {
	return "outbox.jobs", `status = 'running'` // uses an index: a million other jobs may be open
}

func (o *ours) EnqueueMany(ctx context.Context, first, n int) error {
	kept, _ := o.requests.Get().(*[]outbox.Request)
	if kept == nil || cap(*kept) < n {
		kept = new(make([]outbox.Request, n))
	}
	defer o.requests.Put(kept)
	requests := (*kept)[:n]
	for i := range requests {
		requests[i].Args = Noop{first + i}
		if o.options != nil {
			requests[i].Options = *o.options
		}
		if o.key != nil {
			requests[i].Options.Key.Name = o.key(first + i)
		}
	}
	_, err := outbox.EnqueueMany(ctx, o.pool, requests)
	return err
}

func (o *ours) Commit(ctx context.Context, job int, also func(pgx.Tx) error) error {
	return o.producer.InTx(ctx, func(tx pgx.Tx) error {
		if err := also(tx); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, tx, Noop{job}, outbox.Options{})
		return err
	})
}

// Work runs a listener, a dispatcher and a reaper.
func (o *ours) Work(ctx context.Context, handle func(context.Context, int)) (func() error, error) {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[Noop]) error {
		handle(ctx, job.Args.N)
		return nil
	})
	wake := listener.NewSignal()
	l, err := listener.New(o.url, dispatcher.Channel, wake, listener.Config{Canary: o.pool})
	if err != nil {
		return nil, err
	}
	d, err := dispatcher.New(o.pool, &mux, dispatcher.Config{Wake: wake, Listening: l.Listening})
	if err != nil {
		return nil, err
	}
	reap, err := reaper.New(o.pool, reaper.Config{Listening: l.Listening})
	if err != nil {
		return nil, err
	}
	detach := d.Attach(o.producer)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i, run := range []func(context.Context) error{l.Run, d.Run, reap.Run} {
		wg.Go(func() { errs[i] = run(ctx) })
	}
	return func() error {
		detach()
		cancel()
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("stop the worker: %w", err)
		}
		return nil
	}, nil
}
