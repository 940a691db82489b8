package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// announceWindow is how long after a NOTIFY to those who wait the next one waits.
const announceWindow = 5 * time.Millisecond

// announceEnds has those who wait for jobs told, if one of the batch is theirs and
// may have ended. One whose handler called Complete counts, whatever its outcome
// says: that settlement was the handler's own. It never blocks.
func (d *Dispatcher) announceEnds(batch []*attempt) {
	if slices.ContainsFunc(batch, (*attempt).endsForWaiters) {
		select {
		case d.ends <- struct{}{}:
		default:
		}
	}
}

func (a *attempt) endsForWaiters() bool {
	open := a.outcome.status == outbox.Pending || a.outcome.status == outbox.Retrying
	return a.job.Watched && (!open || a.job.Completed())
}

// announce sends the wake-ups for waiters, one for many jobs, until the channel is
// closed. The slot is emptied before the NOTIFY is sent, so what ends meanwhile
// gets another. A lost one costs a waiter its poll interval.
func (d *Dispatcher) announce() {
	for range d.ends {
		ctx, cancel := bounded(context.Background())
		_ = d.db.WakeWaiters(ctx)
		cancel()
		time.Sleep(announceWindow)
	}
}
