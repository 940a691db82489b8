package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	// MaxPoints is the maximum number of steps in a series.
	MaxPoints = 1000
	// MinStep is the shortest step of a series: measurements are made once a minute.
	MinStep = time.Minute
)

// SeriesFilter selects a series. Since and Until are required.
type SeriesFilter struct {
	Queue  string    // "" means any
	Kind   string    // "" means any
	Tenant outbox.ID // zero means any

	Since, Until time.Time     // measured after Since and up to Until
	Step         time.Duration // from Since on; 0 means a minute
}

func (f SeriesFilter) validate() error {
	var err error
	switch step := f.step(); {
	case f.Since.IsZero():
		err = invalid.Field("SeriesFilter.Since", "is missing")
	case f.Until.IsZero():
		err = invalid.Field("SeriesFilter.Until", "is missing")
	case !f.Since.Before(f.Until):
		err = invalid.Field("SeriesFilter.Until", "is not after since")
	case step < MinStep:
		err = invalid.Field("SeriesFilter.Step", "is %s, want at least %s", f.Step, MinStep)
	case f.Until.Sub(f.Since) > MaxPoints*step:
		err = invalid.Field("SeriesFilter.Step", "is %s, want at least %s for at most %d steps", step,
			f.Until.Sub(f.Since)/MaxPoints, MaxPoints)
	}
	return errors.Join(err, validTexts(map[string]string{"SeriesFilter.Queue": f.Queue, "SeriesFilter.Kind": f.Kind}))
}

func (f SeriesFilter) step() time.Duration { return cmp.Or(f.Step, MinStep) }

// byHour reports whether each step begins and ends on the hour: hours are summed in advance.
func (f SeriesFilter) byHour() bool {
	return f.step()%time.Hour == 0 && f.Since.Equal(f.Since.Truncate(time.Hour))
}

// Point contains the measurements of one step.
type Point struct {
	At       time.Time     // beginning of the step
	Measured time.Duration // the measured part of it, usually all: rates are counts over this. 0 if nothing is known

	// These count open jobs, each as the maximum of the counts in the step; in steps of whole hours, the maximum of the
	// hours' means. They leave out held jobs.
	Waiting     int64 // pending, retrying or blocked
	Running     int64
	DeadLetters int64 // failed or dead

	// These count what happened in the step.
	Enqueued     int64
	Succeeded    int64
	Unsuccessful int64 // closed as anything but succeeded
	Failed       int64 // attempts, of jobs that may be retried

	// WaitP50 and WaitP99 are how long the jobs that closed had waited, from when they were due until their last
	// attempt began. They are measured in powers of two and interpolated; 0 if none closed.
	WaitP50, WaitP99 time.Duration
}

// Closed returns how many jobs closed in the step.
func (p Point) Closed() int64 { return p.Succeeded + p.Unsuccessful }

// Series returns the history step by step, as reapers have measured it once a minute for 14 days. A step without
// measurements is included, empty. Parts too small to be measured individually, when there are more than a hundred,
// count only in the series of all queues and kinds.
func (o *Operator) Series(ctx context.Context, f SeriesFilter) ([]Point, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ReadSeries(ctx, sqlgen.ReadSeriesParams{
		Since: from(f.Since), Until: until(f.Until), Step: pgvalue.Interval(f.step()), Queue: f.Queue, Kind: f.Kind,
		TenantID: pgvalue.UUIDOrNull(f.Tenant),
		ByHour:   f.byHour(),
	})
	if err != nil {
		return nil, fmt.Errorf("read a series: %w", err)
	}
	points := make([]Point, 0, f.Until.Sub(f.Since)/f.step()+1)
	for at := f.Since; at.Before(f.Until); at = at.Add(f.step()) {
		p := Point{At: at.UTC()}
		if len(rows) > 0 && !rows[0].At.Time.After(at) {
			row := rows[0]
			rows = rows[1:]
			p.Measured = pgvalue.Seconds(row.Seconds)
			p.Waiting, p.Running, p.DeadLetters = row.Waiting, row.Running, row.DeadLetters
			p.Enqueued, p.Succeeded, p.Unsuccessful, p.Failed = row.Enqueued, row.Succeeded, row.Unsuccessful,
				row.Failed
			p.WaitP50, p.WaitP99 = quantile(row.Waits, 0.5), quantile(row.Waits, 0.99)
		}
		points = append(points, p)
	}
	return points, nil
}

// quantile estimates a quantile from counts by powers of two of a millisecond: the first count is of values below 1 ms,
// the next of values below 2 ms, and so on. It treats the values in a count as evenly spread by order of magnitude.
func quantile(counts []int64, q float64) time.Duration {
	var total int64
	for _, n := range counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := q * float64(total)
	for i, n := range counts {
		if rank > float64(n) {
			rank -= float64(n)
			continue
		}
		part := rank / float64(n)
		if i == 0 {
			return time.Duration(part * float64(time.Millisecond))
		}
		return time.Duration(math.Exp2(float64(i-1)+part) * float64(time.Millisecond))
	}
	return time.Duration(math.Exp2(float64(len(counts)-1)) * float64(time.Millisecond)) // only after rounding errors
}

// Spark is the maximum number of jobs that were waiting or running in a step.
type Spark struct {
	At   time.Time // beginning of the step
	Open int64
}

// Sparks returns how many jobs were open in the steps from Since to Until, by queue or, if byKind, by kind. It ignores
// Queue and Kind of the filter. It leaves out steps in which none were open; measured lists the steps with any
// measurement.
func (o *Operator) Sparks(ctx context.Context, f SeriesFilter,
	byKind bool,
) (open map[string][]Spark, measured []time.Time, err error) {
	if err := f.validate(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ReadSparks(ctx, sqlgen.ReadSparksParams{
		Since: from(f.Since), Until: until(f.Until), Step: pgvalue.Interval(f.step()), ByKind: byKind,
		TenantID: pgvalue.UUIDOrNull(f.Tenant),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read what was open: %w", err)
	}
	open = map[string][]Spark{}
	for _, row := range rows {
		if row.Name == "" {
			measured = append(measured, row.At.Time.UTC())
			continue
		}
		open[row.Name] = append(open[row.Name], Spark{At: row.At.Time.UTC(), Open: row.Open})
	}
	return open, measured, nil
}
