package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// storeInPlace stores the successes of the batch whose jobs are where their claims
// have left them, and returns the others. Each that it stores is noted as stored: what
// comes next may fail, and the whole batch be tried again.
//
// The batch is in the order of its ids (see settleBatch), and so is what is left.
func (d *Dispatcher) storeInPlace(ctx context.Context, batch []*attempt) (stored []pgtype.UUID, left []*attempt, err error) {
	near := make([]*attempt, 0, len(batch))
	now := time.Now()
	for _, a := range batch {
		switch {
		case a.stored:
		case a.unmoved(now, d.config.LeaseTTL):
			near = append(near, a)
		default:
			left = append(left, a)
		}
	}
	if len(near) == 0 {
		return nil, left, nil
	}
	p := sqlgen.SettleInPlaceParams{
		Places:  make([]pgtype.TID, len(near)),
		Ids:     make([]pgtype.UUID, len(near)),
		Epochs:  make([]int64, len(near)),
		Results: make([][]byte, len(near)),
	}
	for i, a := range near {
		p.Places[i], p.Ids[i], p.Epochs[i], p.Results[i] = a.place, pgID(a.job.ID), a.job.Epoch, a.job.Result
	}
	stored, err = d.db.SettleInPlace(ctx, p)
	if err != nil || len(stored) == len(near) && len(left) == 0 {
		return stored, left, err
	}
	settled := make(map[pgtype.UUID]bool, len(stored))
	for _, id := range stored {
		settled[id] = true
	}
	for _, a := range near {
		if a.stored = settled[pgID(a.job.ID)]; !a.stored {
			left = append(left, a)
		}
	}
	slices.SortFunc(left, byID)
	return stored, left, nil
}

// unmoved says whether the job should still be where its claim has left it. An
// extension of the lease moves it, and is due after a third of the lease's time.
func (a *attempt) unmoved(now time.Time, leaseTTL time.Duration) bool {
	return a.place.Valid && now.Sub(a.claimed) < leaseTTL/4
}
