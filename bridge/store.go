package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeUntilDone stores the jobs of a batch. While the database is unavailable, nothing else is fetched and the batch
// is kept, so that nothing overtakes it; meanwhile the lease is extended with the reason, until it lapses. A batch that
// does not fit into its time is stored in parts. If the process ends in between, the stored parts come again with the
// rest, and find their jobs. Once ctx has ended, it makes no further attempt.
func (b *bridge) storeUntilDone(ctx context.Context, epoch int64, batch []Message) error {
	retry := backoff.Backoff{Max: leaseTTL / 4}
	grows := true // but not again in a batch that had a part that was too large
	for len(batch) > 0 {
		part := batch[:min(b.most, len(batch))]
		err := b.store(ctx, epoch, part)
		if pgsession.IsUnacceptable(err) {
			err = b.storeEach(ctx, epoch, part)
		}
		switch {
		case err == nil:
			batch = batch[len(part):]
			if grows {
				b.most = min(2*b.most, maxBatch)
			}
			retry.Reset()
			continue
		case errors.Is(err, errNotOurs):
			return err
		case errors.Is(err, context.DeadlineExceeded) || pgsession.State(err) == pgsession.QueryCanceled:
			b.most, grows = max(1, len(part)/2), false
		}
		b.complain(ctx, "jobs not stored, messages wait", err)
		pgsession.LeaveReadOnly(err, b.pool, b.user)
		if kept := b.keepAlone(ctx, epoch, b.away); errors.Is(kept, errNotOurs) {
			return kept
		}
		if !b.isOurs() {
			return fmt.Errorf("%w: %w", errLapsed, err)
		}
		if retry.Wait(ctx) != nil {
			return err
		}
	}
	return nil
}

// store stores the jobs of a batch in one transaction, which continues after ctx has ended.
func (b *bridge) store(ctx context.Context, epoch int64, batch []Message) error {
	requests := make([]outbox.Request, 0, len(batch))
	var letters []sqlgen.StoreUndecodableParams
	for i := range batch {
		request, reason := b.job(&batch[i])
		if reason == nil {
			requests = append(requests, request)
			continue
		}
		letter, err := b.letter(&batch[i], reason)
		if err != nil {
			return err
		}
		letters = append(letters, letter)
	}
	err := b.commit(ctx, epoch, requests, letters)
	if err == nil {
		b.metrics.stored.Add(float64(len(batch)))
		b.metrics.undecodable.Add(float64(len(letters)))
	}
	return err
}

func (b *bridge) commit(ctx context.Context, epoch int64, requests []outbox.Request,
	letters []sqlgen.StoreUndecodableParams,
) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout) // shorter than the lease
	defer cancel()
	return b.inTx(ctx, epoch, len(requests)+len(letters), func(tx pgx.Tx) error {
		if _, err := outbox.EnqueueMany(ctx, tx, requests); err != nil {
			return err
		}
		for _, l := range letters {
			if _, err := sqlgen.New(tx).StoreUndecodable(ctx, l); err != nil {
				return fmt.Errorf("store a dead letter: %w", err)
			}
		}
		return nil
	})
}

// storeEach stores messages one by one after the database has refused one of them. That one becomes a dead letter.
func (b *bridge) storeEach(ctx context.Context, epoch int64, batch []Message) error {
	for i := range batch {
		err := b.store(ctx, epoch, batch[i:i+1])
		if pgsession.IsUnacceptable(err) {
			var letter sqlgen.StoreUndecodableParams
			if letter, err = b.letter(&batch[i], err); err == nil {
				err = b.commit(ctx, epoch, nil, []sqlgen.StoreUndecodableParams{letter})
			}
			if err == nil {
				b.metrics.stored.Inc()
				b.metrics.undecodable.Inc()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
