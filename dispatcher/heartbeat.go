package dispatcher

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	heartbeatInterval = time.Minute // between two heartbeats
	hearingInterval   = time.Second // how soon the row shows a change of hearing
)

type heartbeatStatements interface {
	ShowWorker(context.Context, sqlgen.ShowWorkerParams) error
	RemoveWorker(context.Context, string) error
}

// heartbeat keeps the dispatcher's row in outbox.workers until ctx ends, and then removes it. It logs no failure:
// failed claims are logged, and only the list that operators see depends on the row.
func heartbeat(ctx context.Context, db heartbeatStatements, row sqlgen.ShowWorkerParams, hearing func() bool) {
	row.Version = engine.Version()
	var said time.Time
	show := func(now time.Time) {
		if hears := hearing(); hears != row.Hearing || now.Sub(said) >= heartbeatInterval {
			row.Hearing, said = hears, now
			bound, cancel := bounded(ctx)
			defer cancel()
			_ = db.ShowWorker(bound, row)
		}
	}
	show(time.Now())
	every(ctx, hearingInterval, show)
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintTimeout)
	defer cancel()
	_ = db.RemoveWorker(bound, row.Worker)
}
