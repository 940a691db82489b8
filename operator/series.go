package operator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	// MaxPoints is how many steps a series may have.
	MaxPoints = 1000
	// MinStep is the shortest step of a series: measured is once a minute.
	MinStep = time.Minute
)

// SeriesFilter says of what a series is. Since and Until are required.
type SeriesFilter struct {
	Queue  string    // "" is any
	Kind   string    // "" is any
	Tenant outbox.ID // zero is any

	Since, Until time.Time     // what was measured behind the one and up to the other
	Step         time.Duration // from Since on; 0 is a minute
}

func (f SeriesFilter) validate() error {
	switch step := f.step(); {
	case f.Since.IsZero() || f.Until.IsZero():
		return invalid.Field("SeriesFilter.Since", "and Until are not both set")
	case !f.Since.Before(f.Until):
		return invalid.Field("SeriesFilter.Until", "is %s, want an instant after Since", f.Until)
	case step < MinStep:
		return invalid.Field("SeriesFilter.Step", "is %s, want at least %s", f.Step, MinStep)
	case f.Until.Sub(f.Since) > MaxPoints*step:
		return invalid.Field("SeriesFilter.Step", "is %s, want at least %s for at most %d steps", step, f.Until.Sub(f.Since)/MaxPoints, MaxPoints)
	}
	return validTexts(map[string]string{"SeriesFilter.Queue": f.Queue, "SeriesFilter.Kind": f.Kind})
}

func (f SeriesFilter) step() time.Duration { return cmp.Or(f.Step, MinStep) }

// byHour reports whether each step begins and ends with an hour: hours are summed beforehand.
func (f SeriesFilter) byHour() bool {
	return f.step()%time.Hour == 0 && f.Since.Equal(f.Since.Truncate(time.Hour))
}

// Point is what was measured in one step.
type Point struct {
	At       time.Time     // where the step begins
	Measured time.Duration // of it, as a rule all: rates are counts over this. 0: nothing is known

	// What was open, each at most of the counts of the step; in steps of whole hours, at most of the means of hours. A
	// job that is held is none of these.
	Waiting     int64 // pending, retrying or blocked
	Running     int64
	DeadLetters int64 // failed or dead

	// What happened in the step.
	Enqueued     int64
	Succeeded    int64
	Unsuccessful int64 // closed as anything but succeeded
	Failed       int64 // attempts, of jobs that may be retried

	// How long those that closed had waited, from when they were due to when their last attempt began. They are known
	// to a power of two and evened out in between; 0 if none closed.
	WaitP50, WaitP99 time.Duration
}

// Closed is how many jobs closed in the step.
func (p Point) Closed() int64 { return p.Succeeded + p.Unsuccessful }

// Series returns how it went, step by step, as reapers have measured it once a minute for 14 days. A step in which
// nobody measured is there with nothing in it. What belongs to a part that was too small to be measured by itself, of
// more than a hundred, is in the series of all queues and kinds only.
func (o *Operator) Series(ctx context.Context, f SeriesFilter) ([]Point, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ReadSeries(ctx, sqlgen.ReadSeriesParams{
		Since: from(f.Since), Until: until(f.Until), Step: pgvalue.Interval(f.step()), Queue: f.Queue, Kind: f.Kind, TenantID: pgvalue.UUIDOrNull(f.Tenant),
		ByHour: f.byHour(),
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
			p.Measured = seconds(row.Seconds)
			p.Waiting, p.Running, p.DeadLetters = row.Waiting, row.Running, row.DeadLetters
			p.Enqueued, p.Succeeded, p.Unsuccessful, p.Failed = row.Enqueued, row.Succeeded, row.Unsuccessful, row.Failed
			p.WaitP50, p.WaitP99 = quantile(row.Waits, 0.5), quantile(row.Waits, 0.99)
		}
		points = append(points, p)
	}
	return points, nil
}

// quantile estimates one of what is counted by powers of two of a millisecond: the first count is of what is below
// 1 ms, the next of what is below 2 ms, and so on. Within a count it is as if all were spread evenly by their order
// of magnitude.
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
	return time.Duration(math.Exp2(float64(len(counts)-1)) * float64(time.Millisecond)) // rounding
}

// Spark is how many jobs were waiting or running at most, in each step.
type Spark struct {
	At   time.Time // where the step begins
	Open int64
}

// Sparks returns how many jobs were open in the steps from Since to Until, by queue or, if byKind, by kind. Queue and
// Kind of the filter say nothing here. Steps in which none were open are left out; measured are those of which anything
// is known.
func (o *Operator) Sparks(ctx context.Context, f SeriesFilter, byKind bool) (open map[string][]Spark, measured []time.Time, err error) {
	if err := f.validate(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ReadSparks(ctx, sqlgen.ReadSparksParams{
		Since: from(f.Since), Until: until(f.Until), Step: pgvalue.Interval(f.step()), ByKind: byKind, TenantID: pgvalue.UUIDOrNull(f.Tenant),
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
