package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// place commits orders of the harness, each with a job, in one transaction, and writes them to the ledger. It sets the
// tasks' keys.
func (r *Run) place(ctx context.Context, tasks ...probe.Task) error {
	r.mu.Lock()
	first := r.placed
	r.placed += len(tasks)
	r.mu.Unlock()
	book, err := ledger.Open(r.ledgerOf("harness"), "harness")
	if err != nil {
		return err
	}
	defer book.Close()
	orders := make([]string, len(tasks))
	attempted := make([]ledger.Entry, len(tasks))
	requests := make([]outbox.Request, len(tasks))
	for i, task := range tasks {
		task.N, task.Key = first+i, fmt.Sprintf("harness-%d", first+i)
		orders[i] = task.Key
		attempted[i] = ledger.Entry{Event: ledger.Attempted, Key: task.Key}
		requests[i] = outbox.Request{Args: task, Options: outbox.Options{MaxAttempts: maxAttempts}}
	}
	book.Write(attempted...)
	err = pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT unnest($1::text[])`, orders); err != nil {
			return err
		}
		_, err := outbox.EnqueueMany(ctx, tx, requests)
		return err
	})
	if err != nil {
		return fmt.Errorf("place %d orders: %w", len(tasks), err)
	}
	for i := range attempted {
		attempted[i].Event = ledger.Acked
	}
	book.Write(attempted...)
	return nil
}

// maxAttempts is more than any fault uses up.
const maxAttempts = 1000

// repeated returns n copies of a task.
func repeated(n int, task probe.Task) []probe.Task {
	tasks := make([]probe.Task, n)
	for i := range tasks {
		tasks[i] = task
	}
	return tasks
}
