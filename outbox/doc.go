// Package outbox stores jobs in the caller's own transaction and defines the vocabulary that every other package
// shares: job, kind, queue, lease, epoch, status.
//
// The promise: a job exists exactly when the transaction that enqueued it committed. Pass the transaction that makes
// your business change:
//
//	tx, err := pool.Begin(ctx)
//	…
//	_, err = tx.Exec(ctx, `INSERT INTO orders …`)
//	_, err = outbox.Enqueue(ctx, tx, SendReceipt{OrderID: 7}, outbox.Options{})
//	err = tx.Commit(ctx)
//
// or let a [Producer] commit: it then wakes the dispatchers once for many commits instead of once for each.
//
// Importing outbox compiles pgx and nothing else; a test checks this.
package outbox
