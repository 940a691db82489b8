package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// DeclareIn stores schedules in a transaction, as a [Scheduler] does when it starts, by a clock that is ahead of the
// database's by the given duration. Its error names every mistake. It exists for package outboxtest.
func DeclareIn(ctx context.Context, tx pgx.Tx, ahead time.Duration, schedules ...Schedule) error {
	declared, errs := accept(schedules)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	clock, err := sqlgen.New(tx).ReadClock(ctx)
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	_, err = (&declarer{declared: declared}).store(ctx, tx, clock.Time.Add(ahead))
	return err
}

// FireIn fires the due schedules in a transaction, as a [Scheduler] does, by a clock that is ahead of the database's by
// the given duration. Ticks and next ticks follow that clock; the deadlines of jobs follow the database's, which
// enforces them. FireIn returns how many jobs it enqueued. It exists for package outboxtest.
func FireIn(ctx context.Context, tx pgx.Tx, ahead time.Duration) (jobs int, err error) {
	rows, err := tx.Query(ctx, `SELECT tenant_id, name FROM outbox.schedules
		WHERE paused_at IS NULL AND next_at <= statement_timestamp() + $1::interval`, pgtype.Interval{Microseconds: ahead.Microseconds(), Valid: true})
	if err != nil {
		return 0, fmt.Errorf("look for due schedules: %w", err)
	}
	var tenants []pgtype.UUID
	var names []string
	var tenant pgtype.UUID
	var name string
	if _, err = pgx.ForEachRow(rows, []any{&tenant, &name}, func() error {
		tenants, names = append(tenants, tenant), append(names, name)
		return nil
	}); err != nil || len(names) == 0 {
		return 0, err
	}
	locked, err := sqlgen.New(tx).LockSchedules(ctx, tenants, names)
	if err != nil {
		return 0, fmt.Errorf("lock %d schedules: %w", len(names), err)
	}
	firings := make([]firing, 0, len(locked))
	for _, l := range locked {
		r := row(l)
		f, err := plan(r, r.Now.Time.Add(ahead))
		if err != nil {
			return 0, fmt.Errorf("schedule %q: %w", r.Name, err)
		}
		f.ahead = ahead
		firings, jobs = append(firings, f), jobs+len(f.ticks)
	}
	return jobs, store(ctx, tx, firings)
}
