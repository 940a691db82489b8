package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// marksRead limits how many acts, and how many builds, are read for the marks of a series.
const marksRead = 1000

// Mark is an event caused by people that may explain a change in a series.
type Mark struct {
	At    time.Time
	Build string // build that workers run from then on; "" for an act
	Act   *Acts  // nil for a build
}

// Acts are the equal acts of one request.
type Acts struct {
	Actor, Act, Reason string
	Queue, Target      string // of the first of them
	RequestID          string
	Number             int // how many acts there are
}

// Marks returns the builds that workers began to run during a series, and the acts of operators, oldest first. The
// queue and the tenant of the filter select the objects of acts; builds concern all queues, and are shown to logins
// that see all tenants. If there were more than a thousand acts, in the tenant if there is one, it considers the
// newest, and of the queue, if there is one, also the newest thousand on itself and its keys: those of a tenant that
// are among the newest 5000 of all.
func (o *Operator) Marks(ctx context.Context, f SeriesFilter) ([]Mark, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if f.Tenant.IsZero() {
		f.Tenant = tenantIn(ctx) // its acts have an index, which row security alone does not use
	}
	var rows []sqlgen.ListMarksRow
	err := o.byIndex(ctx, func(db *sqlgen.Queries) error {
		after, err := queueActsReach(ctx, db, f.Queue, f.Tenant)
		if err != nil {
			return err
		}
		rows, err = db.ListMarks(ctx, sqlgen.ListMarksParams{
			Since: from(f.Since), Until: until(f.Until), Queue: f.Queue, TenantID: pgvalue.UUIDOrNull(f.Tenant),
			MaxRows: marksRead, AfterID: after,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list marks: %w", err)
	}
	var marks []Mark
	same := map[Acts]*Acts{} // the acts of one request, without their number and objects
	for _, row := range rows {
		if row.Build != "" {
			marks = append(marks, Mark{At: row.At.Time.UTC(), Build: row.Build})
			continue
		}
		act := Acts{Actor: row.Actor, Act: row.Act, Reason: row.Reason, RequestID: row.RequestID}
		if earlier := same[act]; earlier != nil && act.RequestID != "" {
			earlier.Number++
			continue
		}
		shown := act
		shown.Queue, shown.Target, shown.Number = row.Queue, row.Target, 1
		same[act] = &shown
		marks = append(marks, Mark{At: row.At.Time.UTC(), Act: &shown})
	}
	return marks, nil
}

// queueActsRead is how many acts on a queue and its keys are read to find those of one tenant.
const queueActsRead = 5000

// queueActsReach returns the id above which acts on a queue are read; 0 to read as many as are wanted. Tied to a
// tenant, it counts the acts of the others too, because a list has to pass over them.
func queueActsReach(ctx context.Context, db *sqlgen.Queries, queue string, tenant outbox.ID) (reach int64, err error) {
	if tenant.IsZero() && tenantIn(ctx).IsZero() || queue == "" {
		return 0, nil
	}
	return ofAll(ctx, db, func() (int64, error) { return db.FindQueueActsReach(ctx, queue, queueActsRead) })
}
