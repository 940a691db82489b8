package verify

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// callers is how many callers use each idempotency key at the same time.
const callers = 100

// idempotencyKeys runs row F2.
func idempotencyKeys(ctx context.Context, r *Run) error {
	keys := r.Size(60, 1000)
	crew, err := r.Crew(1, "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	proxy, dsn, err := fault.NewProxy(r.processURL())
	if err != nil {
		return err
	}
	defer proxy.Close()
	db, err := producersPool(ctx, dsn, callers)
	if err != nil {
		return err
	}
	defer db.Close()
	book, err := ledger.Open(r.ledgerOf("callers"), "callers")
	if err != nil {
		return err
	}
	defer book.Close()

	c := &rush{
		run: r, orders: probe.NewOrders(book, outbox.NewProducer(db, outbox.NotifyCoalesced)),
		dice: fault.Random(r.Seed, "cut"),
	}
	proxy.AtCommit(c.atCommit)
	for n := range keys {
		r.Progress("keys", n, keys)
		c.round.Store(int64(n))
		c.commits.Store(0)
		if err := c.place(ctx, n); err != nil {
			return err
		}
	}
	proxy.AtCommit(nil)
	db.Close() // Drain waits until nothing can commit any more
	if err := r.Drain(ctx, keys, time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	r.None("callers that got another job id than the first caller", c.differ)
	jobs, err := r.Number(ctx, `SELECT (SELECT count(*) FROM outbox.jobs) + (SELECT count(*) FROM outbox.history)`)
	if err != nil {
		return err
	}
	r.Expect("jobs stored, compared with one per key", float64(jobs), "=", float64(keys))
	for _, kind := range cutNames {
		r.atLeast(keys/5, kind)
	}
	r.allAcked(keys)
	return nil
}

// producersPool opens a pool of conns connections, whose application name is a producer's.
func producersPool(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["application_name"] = "verify-producer"
	return pgxpool.NewWithConfig(ctx, config)
}

// rush runs many callers that place the same order at the same time.
type rush struct {
	run    *Run
	orders *probe.Orders

	round, commits atomic.Int64

	mu     sync.Mutex
	dice   interface{ IntN(int) int }
	differ []string
}

// atCommit decides where to cut the connection of a commit: for the first commit of a round, which stores the job, in
// each way in turn; for one in twenty of the others, in a random way.
func (c *rush) atCommit() fault.Cut {
	where := fault.Cut(c.round.Load() % int64(len(cutNames)+1)) // each fourth nowhere
	if c.commits.Add(1) > 1 {
		c.mu.Lock()
		where = fault.Cut(1 + c.dice.IntN(20*len(cutNames)))
		c.mu.Unlock()
	}
	name, cuts := cutNames[where]
	if !cuts {
		return fault.Nowhere
	}
	c.run.Faults.Begin(name, "")()
	return where
}

// place makes all callers repeat one order until each has got its id.
func (c *rush) place(ctx context.Context, n int) error {
	ids := make([]outbox.ID, callers)
	errs := make([]error, callers)
	var placing sync.WaitGroup
	for i := range callers {
		placing.Go(func() { ids[i], errs[i] = c.orders.Insist(ctx, n, time.Minute) })
	}
	placing.Wait()
	for i := range callers {
		if errs[i] != nil {
			return errs[i]
		}
		if ids[i] != ids[0] {
			c.differ = append(c.differ, fmt.Sprintf("order %d: %s, and %s", n, ids[0], ids[i]))
		}
	}
	return nil
}
