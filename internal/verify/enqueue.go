package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Enqueue places orders for rows that choose their jobs one by one. It gives each task a key and an order, stores all
// of them in one transaction, and writes them to the ledger of "harness".
func (r *Run) Enqueue(ctx context.Context, tasks []probe.Task, o outbox.Options) (ids []outbox.ID, err error) {
	book, err := ledger.Open(r.ledgerOf("harness"), "harness")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	keys := make([]string, len(tasks))
	requests := make([]outbox.Request, len(tasks))
	entries := make([]ledger.Entry, len(tasks))
	for i, task := range tasks {
		task.Key = fmt.Sprintf("harness-%d", r.enqueued)
		r.enqueued++
		keys[i], requests[i] = task.Key, outbox.Request{Args: task, Options: o}
		entries[i] = ledger.Entry{Event: ledger.Attempted, N: task.N, Key: task.Key}
	}
	book.Write(entries...)
	err = pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT unnest($1::text[])`, keys); err != nil {
			return err
		}
		ids, err = outbox.EnqueueMany(ctx, tx, requests)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(tasks), err)
	}
	for i := range entries {
		entries[i].Event, entries[i].Job = ledger.Acked, ids[i]
	}
	book.Write(entries...)
	return ids, nil
}

// tasks returns n tasks, numbered from 0.
func tasks(n int, task func(i int) probe.Task) []probe.Task {
	list := make([]probe.Task, n)
	for i := range list {
		list[i] = task(i)
		list[i].N = i
	}
	return list
}
