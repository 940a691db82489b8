package scheduler

import "time"

// budget keeps an expensive statement from being repeated too soon: at once while it costs next to nothing, otherwise
// not before RestFactor times its cost.
//
// The cost is the lower of the last two, so that one statement that something else has delayed does not count as
// expensive: waiting forty times as long for the next would be the worse delay. The zero value allows everything.
type budget struct {
	next time.Time     // the next one may not begin before
	last time.Duration // cost of the last one, beyond what is free
}

const (
	// RestFactor limits the share of the time that may be spent to a fortieth. With a twentieth, claims from the front
	// showed in the p99 of claims (row D1 of the scorecard).
	RestFactor = 40
	// freeCost is within the noise of a round trip.
	freeCost = 3 * time.Millisecond
)

// allows reports whether the statement may run again now.
func (b *budget) allows(now time.Time) bool { return !now.Before(b.next) }

// after returns how long to wait before the statement may run again, or 0.
func (b *budget) after(now time.Time) time.Duration { return max(b.next.Sub(now), 0) }

// spend records the cost of a run that ended now.
func (b *budget) spend(now time.Time, cost time.Duration) {
	if spent := min(cost, b.last); spent > freeCost {
		b.next = now.Add(RestFactor * spent)
	}
	b.last = cost
}

// fail records a run that did not finish. The next run waits as long as this one took; after two such failures in a row
// it waits as long as after any run of that cost. If the failure says nothing about the cost, because the database
// refused a row or was unreachable, fail forgets the cost instead.
func (b *budget) fail(now time.Time, took time.Duration, unrelated bool) {
	if unrelated {
		*b = budget{}
	} else {
		b.spend(now, took)
	}
	if next := now.Add(took); next.After(b.next) {
		b.next = next
	}
}

// expected estimates how long a statement takes that reads only live entries: the time of an answer or, if that is
// longer, a time for each job. It learns from statements that begin at their cursors.
type expected struct {
	answer, perJob time.Duration // moving averages
}

// firstCost is the initial estimate of a job's cost, so that a claim of thousands of jobs is not mistaken for one that
// reads dead entries (row B9 of the scorecard).
const firstCost = 20 * time.Microsecond

// manyJobs is how many jobs show the cost of a job; a claim of fewer shows the time of an answer.
const manyJobs = 100

func (e *expected) of(jobs int) time.Duration { return max(e.perJob*time.Duration(jobs), e.answer) }

func (e *expected) learn(took time.Duration, jobs int) {
	if jobs >= manyJobs {
		average(&e.perJob, took/time.Duration(jobs))
	} else {
		average(&e.answer, took)
	}
}

// lower learns from a statement that may have read more than live entries: that can only have made it slower. So an
// estimate that was too high by chance comes down.
func (e *expected) lower(took time.Duration, jobs int) {
	if jobs < manyJobs && took < e.answer {
		average(&e.answer, took)
	}
}

// average moves the mean by an eighth of the difference.
func average(mean *time.Duration, value time.Duration) {
	if *mean == 0 {
		*mean = value
	}
	*mean += (value - *mean) / 8
}
