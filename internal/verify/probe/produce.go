package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// maxAttempts is more than any fault uses up: a job that ends dead is an error.
const maxAttempts = 1000

// otherTenant owns some of the streamed jobs without a key.
var otherTenant = outbox.ID{15: 9}

// plan says what the producer does.
type plan struct {
	jobs    int               // VERIFY_JOBS: the number of orders; 0 means no end
	first   int               // VERIFY_FIRST: the number of the first order
	clients int               // VERIFY_CLIENTS: at the same time; 0 is 8
	batch   int               // VERIFY_BATCH: orders in a transaction; 0 is 1
	pace    time.Duration     // VERIFY_PACE: wait of each client after a transaction
	insist  bool              // VERIFY_INSIST=on: use idempotency keys, and retry what was not acknowledged
	mix     []string          // VERIFY_MIX: what the jobs do, in turn; "" is effect
	ms      int               // VERIFY_MS: order n takes 7919 n modulo this, so that long and short ones are mixed
	fails   int               // VERIFY_FAILS: one in so many orders fails on its first attempt; 0 means none
	notify  outbox.NotifyMode // VERIFY_NOTIFY: how dispatchers are notified; "" is coalesced
	lines   lines             // VERIFY_KEYS and others: keys of the jobs; see lines.go
	beside  string            // VERIFY_DISPATCH: the database of a dispatcher in the same process; "" has none
}

func readPlan() (p plan, err error) {
	var errs []error
	for name, to := range map[string]*int{
		"VERIFY_JOBS": &p.jobs, "VERIFY_FIRST": &p.first,
		"VERIFY_CLIENTS": &p.clients, "VERIFY_BATCH": &p.batch, "VERIFY_MS": &p.ms, "VERIFY_FAILS": &p.fails,
	} {
		*to, err = number(name)
		errs = append(errs, err)
	}
	p.clients, p.batch = cmp.Or(p.clients, 8), cmp.Or(p.batch, 1)
	p.pace = duration("VERIFY_PACE", &errs)
	p.notify = outbox.NotifyMode(os.Getenv("VERIFY_NOTIFY"))
	p.insist = os.Getenv("VERIFY_INSIST") == "on"
	p.beside = os.Getenv("VERIFY_DISPATCH")
	p.mix = strings.Split(cmp.Or(os.Getenv("VERIFY_MIX"), "effect"), ",")
	p.lines = readLines(&errs)
	return p, errors.Join(errs...)
}

// producer places orders, each with a job in the same transaction.
type producer struct {
	plan
	outbox *outbox.Producer
	book   *ledger.Writer
	placed atomic.Int64 // the number of the next order to place
}

// Produce runs the producer. Every fourth of its jobs is streamed. It returns when all orders are placed or, after a
// SIGTERM, when the current transactions have ended. Without VERIFY_INSIST it records a failed transaction and does not
// retry it.
func Produce(ctx context.Context) (err error) {
	book, pool, err := begin("producer")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	p := &producer{book: book}
	if p.plan, err = readPlan(); err != nil {
		return err
	}
	p.outbox = outbox.NewProducer(pool, p.notify)
	p.placed.Store(int64(p.first))
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	end, err := p.dispatch(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	var clients sync.WaitGroup
	for range p.clients {
		clients.Go(func() { p.work(ctx) })
	}
	clients.Wait()
	return errors.Join(p.outbox.Flush(context.WithoutCancel(ctx)), end())
}

// dispatch runs a dispatcher beside the clients, as in a service that executes its own jobs, until end is called.
func (p *producer) dispatch(ctx context.Context) (end func() error, err error) {
	if p.beside == "" {
		return func() error { return nil }, nil
	}
	config, err := workerConfig()
	if err != nil {
		return nil, err
	}
	pool, err := openPool(p.beside, "worker", p.book)
	if err != nil {
		return nil, err
	}
	config.Pool, config.DatabaseURL, config.Producer = pool, p.beside, p.outbox
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, newHandlers(ctx, pool, p.book).handle)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, &mux, config) }()
	return func() error {
		cancel()
		defer pool.Close()
		return <-ended
	}, nil
}

func (p *producer) work(ctx context.Context) {
	for ctx.Err() == nil {
		first := int(p.placed.Add(int64(p.batch))) - p.batch
		n := p.batch
		if p.jobs > 0 {
			n = min(n, p.jobs-first)
		}
		if n <= 0 {
			return
		}
		orders := make([]string, n)
		for i := range orders {
			orders[i] = fmt.Sprintf("%s-%d", p.book.Name(), first+i)
		}
		// A server that recovers starts a process for each connection only to refuse it: connect less and less often.
		for wait := minRetryWait; p.place(ctx, first, orders) == nil && p.insist &&
			ctx.Err() == nil; wait = min(2*wait, maxRetryWait) {
			_ = backoff.Sleep(ctx, wait)
		}
		_ = backoff.Sleep(ctx, p.pace)
	}
}

// A transaction that was not acknowledged is retried after a wait, which doubles each time.
const (
	minRetryWait = 20 * time.Millisecond
	maxRetryWait = 320 * time.Millisecond
)

// placeTimeout bounds one transaction.
const placeTimeout = 5 * time.Second

// place runs one transaction and records how it ended. It returns the jobs if the transaction was acknowledged. The end
// of ctx does not interrupt it.
func (p *producer) place(ctx context.Context, first int, orders []string) (acked []outbox.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placeTimeout)
	defer cancel()
	p.note(ledger.Attempted, first, orders, nil, nil)
	var ids []outbox.ID
	insert := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`, orders)
		return err
	}
	err := inTx(ctx, p.outbox, func(tx pgx.Tx) (err error) {
		if p.beside != "" { // what is enqueued last is sent together with COMMIT
			if err := insert(tx); err != nil {
				return err
			}
			ids, err = p.enqueue(ctx, tx, first, orders)
			return err
		}
		// The job comes first: callers with the same order must meet at its
		// idempotency key, not at the row of the order.
		if ids, err = p.enqueue(ctx, tx, first, orders); err != nil {
			return err
		}
		return insert(tx)
	})
	switch {
	case err == nil:
		p.note(ledger.Acked, first, orders, ids, nil)
		return ids
	case outcomeUnknown(err):
		p.note(ledger.Unknown, first, orders, nil, err)
	default:
		p.note(ledger.Failed, first, orders, nil, err)
	}
	return nil
}

func (p *producer) enqueue(ctx context.Context, tx pgx.Tx, first int, orders []string) ([]outbox.ID, error) {
	requests := make([]outbox.Request, len(orders))
	for i, key := range orders {
		n := first + i
		task := Task{N: n, Do: p.mix[n%len(p.mix)], Key: key}
		if p.ms > 0 {
			task.Ms = n * 7919 % p.ms
		}
		if p.fails > 0 && n%p.fails == 0 {
			task.Fails = 1
		}
		options := outbox.Options{MaxAttempts: maxAttempts, Streamed: n%4 == 0}
		if n%8 == 0 && p.lines.keys == 0 && p.lines.burst == 0 {
			options.Tenant = otherTenant
		}
		if err := p.lines.join(ctx, tx, &task, &options); err != nil {
			return nil, err
		}
		requests[i] = outbox.Request{Args: task, Options: options}
		if p.insist {
			requests[i].Options.IdempotencyKey = key
		}
	}
	if len(requests) == 1 { // as most producers do
		id, err := outbox.Enqueue(ctx, tx, requests[0].Args, requests[0].Options)
		return []outbox.ID{id}, err
	}
	return outbox.EnqueueMany(ctx, tx, requests)
}

func (p *producer) note(event string, first int, orders []string, ids []outbox.ID, err error) {
	entries := make([]ledger.Entry, len(orders))
	for i, key := range orders {
		entries[i] = ledger.Entry{Event: event, N: first + i, Key: key, Error: class(err), Detail: text(err)}
		if ids != nil {
			entries[i].Job = ids[i]
		}
	}
	p.book.Write(entries...)
}
