package bench

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// bulk stores jobs with several clients at once, in transactions of 10 000 jobs each; no worker runs.
func bulk(ctx context.Context, r *rig) ([]Figure, error) {
	const transaction = 10_000
	n, clients := cmp.Or(r.Jobs, 400_000), cmp.Or(r.Clients, 2)
	share := max(n/clients/transaction, 1) * transaction
	if err := r.atOnce(clients, func(client int) error {
		return r.system.EnqueueMany(ctx, client*transaction, transaction)
	}); err != nil {
		return nil, err // of the warm-up: each client connects, and the server reads its catalogs
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	err := r.atOnce(clients, func(client int) error {
		for done := 0; done < share; done += transaction {
			if err := r.system.EnqueueMany(ctx, client*share+done, transaction); err != nil {
				return err
			}
		}
		return nil
	})
	return []Figure{{"bulk_enqueue_per_s", perSecond(int64(share*clients), started)}}, err
}

func (r *rig) atOnce(clients int, do func(client int) error) error {
	var group errgroup.Group
	for client := range clients {
		group.Go(func() error { return do(client) })
	}
	return group.Wait()
}
