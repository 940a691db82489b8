package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// OpenKind describes the open jobs of a kind in a queue.
type OpenKind struct {
	Queue, Kind      string
	Waiting          int64 // pending, retrying or blocked
	Due              int64 // those of them that are pending or retrying and due
	Running          int64
	Lapsed           int64     // running, with a lease that lapsed more than 15 s ago
	OldestDue        time.Time // zero if none is due
	OldestLease      time.Time // when the first lease of the running ones ends; zero if none runs
	UnavailableSince time.Time // since when jobs have found the kind's dependency unavailable; zero if they have not
}

// lapsedFor is how long after a lease has lapsed a reaper has had its turn.
const lapsedFor = 15 * time.Second

// Now returns the time by the database's clock, to compare its instants with.
func (o *Operator) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	now, err := o.db.ReadClock(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return now.Time, nil
}

// Survey describes the open jobs of a tenant or, if it is zero, of all, by queue and kind, the first 10 000 of these.
// With a million open jobs it takes about half a second.
func (o *Operator) Survey(ctx context.Context, tenant outbox.ID) ([]OpenKind, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.SurveyKinds(ctx, pgvalue.Interval(lapsedFor), pgvalue.UUIDOrNull(tenant))
	if err != nil {
		return nil, fmt.Errorf("survey the open jobs: %w", err)
	}
	kinds := make([]OpenKind, len(rows))
	for i, row := range rows {
		kinds[i] = OpenKind{
			Queue: row.Queue, Kind: row.Kind, Waiting: row.Waiting, Due: row.Due, Running: row.Running,
			Lapsed:    row.Lapsed,
			OldestDue: row.OldestDue.Time, OldestLease: row.OldestLease.Time,
			UnavailableSince: row.UnavailableSince.Time,
		}
	}
	return kinds, nil
}
