package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// clerk places single orders from within the harness, at moments that the row chooses, and keeps a ledger as producers
// do.
type clerk struct {
	run    *Run
	book   *ledger.Writer
	placed int
}

func (r *Run) newClerk() (*clerk, error) {
	book, err := ledger.Open(r.ledgerOf("clerk"), "clerk")
	return &clerk{run: r, book: book}, err
}

// order is an order that the clerk has begun and not yet committed.
type order struct {
	clerk *clerk
	tx    pgx.Tx
	key   string
	job   outbox.ID
}

// beginner begins transactions: a pool or an outbox.Producer.
type beginner interface {
	Begin(context.Context) (pgx.Tx, error)
}

// begin stores an order and its job in a transaction, which it leaves open.
func (c *clerk) begin(ctx context.Context, db beginner, task probe.Task, options outbox.Options) (*order, error) {
	o := &order{clerk: c, key: fmt.Sprintf("clerk-%d", c.placed)}
	c.placed++
	c.book.Write(ledger.Entry{Event: ledger.Attempted, Key: o.key})
	var err error
	if o.tx, err = db.Begin(ctx); err != nil {
		return nil, fmt.Errorf("place order %s: %w", o.key, err)
	}
	task.N, task.Key = c.placed, o.key
	if _, err = o.tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, o.key); err == nil {
		o.job, err = outbox.Enqueue(ctx, o.tx, task, options)
	}
	if err != nil {
		o.rollBack(ctx)
		return nil, fmt.Errorf("place order %s: %w", o.key, err)
	}
	return o, nil
}

// commit commits the order and returns the time. It does not retry: a commit that fails, or whose outcome is unknown,
// fails the run.
func (o *order) commit(ctx context.Context) (committed time.Time, err error) {
	if err := o.tx.Commit(ctx); err != nil {
		o.rollBack(ctx)
		return committed, fmt.Errorf("place order %s: %w", o.key, err)
	}
	o.clerk.book.Write(ledger.Entry{Event: ledger.Acked, Key: o.key, Job: o.job})
	return time.Now(), nil
}

// rollBack returns no error: the server rolls back when a connection breaks.
func (o *order) rollBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = o.tx.Rollback(ctx)
}

// placeWith begins an order and commits it.
func (c *clerk) placeWith(ctx context.Context, db beginner, task probe.Task,
	options outbox.Options,
) (id outbox.ID, committed time.Time, err error) {
	o, err := c.begin(ctx, db, task, options)
	if err != nil {
		return id, committed, err
	}
	committed, err = o.commit(ctx)
	return o.job, committed, err
}

// place places an order with default options.
func (c *clerk) place(ctx context.Context) (id outbox.ID, committed time.Time, err error) {
	return c.placeWith(ctx, c.run.DB, probe.Task{Do: "effect"}, outbox.Options{})
}

func (c *clerk) close() error { return c.book.Close() }
