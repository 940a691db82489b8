package reaper

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	measuredParts = 100              // of tenants' kinds in queues; only the largest are measured individually
	measureLag    = 10 * time.Second // after the end of a minute, when most transactions begun in it have committed
)

// measurer counts for charts.
type measurer struct{ chores chores }

// measure counts, once a minute and for charts, the open jobs and the events since the last count. All reapers try it,
// and one does it: the others find the lock held, or the minute counted.
//
// Suppose that two try at the same moment. B may ask for the lock while A holds it: B gives up and tries the next
// minute. Or B gets it after A has committed. A statement sees what had committed when it began, and B asks what is due
// in a later statement than the one that took the lock, so it sees A's count, and nothing is due. If B asked in the
// statement that takes the lock, that statement could have begun before A committed, and would count again what A has
// counted.
//
// A count that takes long is made less often: then it covers several minutes at once, and everything that happened in
// them.
func (m measurer) measure(ctx context.Context) (time.Duration, error) {
	var took time.Duration
	err := m.chores.inTx(ctx, depthTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		took, err = measure(ctx, tx, measureLag)
		return err
	})
	wait := max(untilNextMeasure(time.Now()), depthShare*took)
	if err != nil {
		if isTimeout(err) { // as the sampler does
			_ = backoff.Sleep(ctx, wait)
		}
		return 0, fmt.Errorf("measure: %w", err)
	}
	return wait, nil
}

// untilNextMeasure returns the time until the next minute can be counted. It uses the reaper's clock: the database's
// decides what is due, and a query that comes too early is repeated a minute later.
func untilNextMeasure(now time.Time) time.Duration {
	next := now.Add(-measureLag).Truncate(time.Minute).Add(time.Minute + measureLag)
	return next.Sub(now) + backoff.Jitter(2*time.Second)
}

// measure counts what is due in a transaction and returns how long that took, or 0 if nothing is due.
func measure(ctx context.Context, tx pgx.Tx, lag time.Duration) (took time.Duration, err error) {
	q := sqlgen.New(tx)
	if locked, err := q.TryMeasureLock(ctx); err != nil || !locked {
		return 0, err
	}
	if err := q.ForgetLater(ctx); err != nil {
		return 0, err
	}
	next, err := q.NextMeasure(ctx, pgvalue.Interval(lag))
	if err != nil || !next.Due {
		return 0, err
	}
	sent := time.Now()
	_, err = q.Measure(ctx, sqlgen.MeasureParams{Since: next.Since, Until: next.UntilAt, MaxRows: measuredParts})
	if err == nil && next.HourOver {
		_, err = q.SumHour(ctx, next.UntilAt)
	}
	return time.Since(sent), err
}
