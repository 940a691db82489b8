package main

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// produce places orders, each with a job in the same transaction, from eight
// goroutines until the process is killed.
func produce(pool *pgxpool.Pool, book *ledger) error {
	producer := outbox.NewProducer(pool, outbox.NotifyCoalesced)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil {
				errs[i] = order(context.Background(), producer, book)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func order(ctx context.Context, producer *outbox.Producer, book *ledger) error {
	id := outbox.NewID().String()
	var job outbox.ID
	err := producer.InTx(ctx, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
			return err
		}
		job, err = outbox.Enqueue(ctx, tx, task{Do: "effect", Key: id}, outbox.Options{})
		return err
	})
	if err == nil {
		book.write(line{Event: "acked", Job: job, Key: id})
	}
	return err
}
