package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
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
		case a.unmoved(now, d.leaseTTL):
			near = append(near, a)
		default:
			left = append(left, a)
		}
	}
	if len(near) == 0 {
		return nil, left, nil
	}
	stored, err = d.settleInPlace(ctx, near)
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

// settleInPlace takes those without results as a list, which is quicker, and gives up if
// somebody keeps one of them locked:
//
//	ours, as a list    r, which lies before q: settled
//	                           an operator, by their ids: q: locked; r: waits for us
//	ours, as a list    q: would wait for the operator             → deadlock
//
// The operator's statement is somebody's wish, and ours can be made again in the order of
// the ids: so it is ours that ends, long before Postgres looks for deadlocks.
func (d *Dispatcher) settleInPlace(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	p := sqlgen.SettleResultsInPlaceParams{
		Places:  make([]pgtype.TID, len(batch)),
		Ids:     make([]pgtype.UUID, len(batch)),
		Epochs:  make([]int64, len(batch)),
		Results: make([][]byte, len(batch)),
	}
	results := false
	for i, a := range batch {
		p.Places[i], p.Ids[i], p.Epochs[i], p.Results[i] = a.place, pgID(a.job.ID), a.job.Epoch, a.job.Result
		results = results || a.job.Result != nil
	}
	if results {
		return d.db.SettleResultsInPlace(ctx, p)
	}
	stored, err := d.db.SettleInPlace(ctx, sqlgen.SettleInPlaceParams{Places: p.Places, Ids: p.Ids, Epochs: p.Epochs})
	if pgsession.State(err) == pgsession.LockNotAvailable {
		return nil, nil // whoever has one of the rows may be waiting for another: all are left
	}
	return stored, err
}

// unmoved says whether the job should still be where its claim has left it. An
// extension of the lease moves it, and is due after a third of the lease's time.
func (a *attempt) unmoved(now time.Time, leaseTTL time.Duration) bool {
	return a.place.Valid && now.Sub(a.claimed) < leaseTTL/4
}
