package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// storeFollowed settles jobs as succeeded together with their follow-ups, and wakes
// the dispatchers for those.
func (d *Dispatcher) storeFollowed(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	jobs := make([]*outbox.Claimed, len(batch))
	for i, a := range batch {
		jobs[i] = a.job
	}
	settled, err := outbox.SettleSucceeded(ctx, d.pool, jobs)
	if err != nil {
		return nil, fmt.Errorf("settle %d succeeded jobs with follow-ups: %w", len(batch), err)
	}
	stored := make([]pgtype.UUID, len(settled))
	for i, id := range settled {
		stored[i] = pgID(id)
	}
	// Also when nothing matched: an earlier try may have committed before its
	// connection broke, and nobody was woken for that.
	for _, q := range d.queues {
		q.poke()
	}
	_ = d.db.WakeDispatchers(ctx, outbox.Channel) // a hint: the poll covers a lost one
	return d.closeCalledOff(ctx, batch, stored)
}
