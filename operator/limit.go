package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Limits sets how much of a queue may run, in all processes together.
type Limits struct {
	MaxRunning *int  // jobs at once, up to 10000; nil leaves it unchanged, 0 lifts it
	Rate       *Rate // nil leaves it unchanged, the zero Rate lifts it
}

// Rate limits starts: in any span of Interval, wherever it begins, at most Starts jobs start. All of them may start at
// once; for a steady flow, use 1 in 100 ms rather than 10 in 1 s. Each attempt of a job is a start.
type Rate struct {
	Starts   int           // 1 to 1000000
	Interval time.Duration // 10 ms to 31 days
}

// Limit sets or lifts limits of a queue, in all processes, from the next claim on, and returns the current limits. The
// queue need not exist yet; its name is as for [Operator.Pause]. Running jobs go on, and count. A rate counts starts
// from when it was first set.
func (o *Operator) Limit(ctx context.Context, queue string, limits Limits) (maxRunning int, rate Rate, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := errors.Join(o.checkQueue(ctx, queue), limits.validate()); err != nil {
		return 0, Rate{}, err
	}
	params := sqlgen.LimitQueueParams{Queue: queue, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason}
	if limits.MaxRunning != nil {
		params.SetsMaxRunning, params.MaxRunning = true, int32(*limits.MaxRunning)
	}
	if r := limits.Rate; r != nil {
		params.SetsRate, params.Rate = true, int32(r.Starts)
		params.RateInterval = pgtype.Interval{Microseconds: r.Interval.Microseconds(), Valid: r.Starts > 0}
	}
	row, err := o.db.LimitQueue(ctx, params)
	if err != nil {
		return 0, Rate{}, fmt.Errorf("limit queue %s: %w", queue, err)
	}
	return int(row.MaxRunning), Rate{Starts: int(row.Rate), Interval: pgvalue.Seconds(row.RateSeconds)}, nil
}

// These bound the limits.
const (
	MaxRunningLimit = 10_000
	MaxRateStarts   = 1_000_000
	MinRateInterval = 10 * time.Millisecond
	MaxRateInterval = 31 * 24 * time.Hour
)

func (l Limits) validate() error {
	var errs []error
	invalid := func(field, format string, args ...any) {
		errs = append(errs, invalid.Field(field, format, args...))
	}
	if n := l.MaxRunning; n != nil && (*n < 0 || *n > MaxRunningLimit) {
		invalid("Limits.MaxRunning", "is %d, want 1 to %d, or 0 for no limit", *n, MaxRunningLimit)
	}
	if r := l.Rate; r != nil && *r != (Rate{}) {
		if r.Starts < 1 || r.Starts > MaxRateStarts {
			invalid("Limits.Rate.Starts", "is %d, want 1 to %d", r.Starts, MaxRateStarts)
		}
		if r.Interval < MinRateInterval || r.Interval > MaxRateInterval {
			invalid("Limits.Rate.Interval", "is %s, want %s to %s", r.Interval, MinRateInterval, MaxRateInterval)
		}
	}
	return errors.Join(errs...)
}
