package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// closeCalledOff deals with what a settling statement did not match: if the job
// was cancelled, or its deadline has come, it is closed as that, and counts as
// stored. It is a statement of its own, so that jobs that are not called off pay
// nothing for it. Between the two others may act, and the fence decides: a reaper
// that closes the job first leaves us a lost lease; a process that dies here
// leaves the request, which the reaper heeds when the lease lapses.
//
//	settle (id, epoch)       refused: cancelled
//	                         reaper, deadline: closed as expired, epoch + 1
//	close (id, epoch)        no row: the lease is lost
func (d *Dispatcher) closeCalledOff(ctx context.Context, batch []*attempt, stored []pgtype.UUID) ([]pgtype.UUID, error) {
	if len(stored) == len(batch) {
		return stored, nil
	}
	settled := make(map[pgtype.UUID]bool, len(stored))
	for _, id := range stored {
		settled[id] = true
	}
	for _, a := range batch {
		id := pgID(a.job.ID)
		if a.stored && !settled[id] { // by an earlier try, whose second half failed
			settled[id] = true
			stored = append(stored, id)
		}
		a.stored = settled[id]
	}
	refused := map[pgtype.UUID]*attempt{}
	p := sqlgen.CloseAttemptsParams{Worker: d.worker}
	for _, a := range batch {
		id := pgID(a.job.ID)
		if a.stored || !a.mayBeCalledOff() {
			continue
		}
		refused[id] = a
		p.Ids = append(p.Ids, id)
		p.Epochs = append(p.Epochs, a.job.Epoch)
		p.ErrorCodes = append(p.ErrorCodes, a.outcome.code)
		p.ErrorMessages = append(p.ErrorMessages, a.outcome.message)
		p.Stacks = append(p.Stacks, a.outcome.stack)
	}
	if len(refused) == 0 {
		return stored, nil
	}
	closed, err := d.db.CloseAttempts(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("close %d jobs that were called off: %w", len(refused), err)
	}
	for _, row := range closed {
		refused[row.ID].outcome.status = outbox.Status(row.Outcome)
		stored = append(stored, row.ID)
	}
	return stored, nil
}

// mayBeCalledOff leaves out attempts that completed their job in a transaction of
// their own: the row is gone, as they said. If that transaction was rolled back
// after all and nobody told, the lease lapses.
func (a *attempt) mayBeCalledOff() bool {
	if a.err != nil || !a.job.Completed() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended != nil || !a.until.IsZero()
}
