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

// clerk places single orders from within the harness at moments of its choice, and
// keeps a ledger as producers do.
type clerk struct {
	run    *Run
	book   *ledger.Writer
	placed int
}

func (r *Run) newClerk() (*clerk, error) {
	book, err := ledger.Open(r.ledgerOf("clerk"), "clerk")
	return &clerk{run: r, book: book}, err
}

// place returns when the order was committed. It is not repeated: a commit that
// fails, or of which nobody knows, fails the run.
func (c *clerk) place(ctx context.Context) (id outbox.ID, committed time.Time, err error) {
	key := fmt.Sprintf("clerk-%d", c.placed)
	c.placed++
	c.book.Write(ledger.Entry{Event: ledger.Attempted, Key: key})
	err = pgx.BeginFunc(ctx, c.run.DB, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, key); err != nil {
			return err
		}
		id, err = outbox.Enqueue(ctx, tx, probe.Task{N: c.placed, Do: "effect", Key: key}, outbox.Options{})
		return err
	})
	if err != nil {
		return id, committed, fmt.Errorf("place order %s: %w", key, err)
	}
	c.book.Write(ledger.Entry{Event: ledger.Acked, Key: key, Job: id})
	return id, time.Now(), nil
}

func (c *clerk) close() error { return c.book.Close() }
