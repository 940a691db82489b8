package scheduler

import "time"

// budget keeps what has become expensive from being repeated too soon: at once while it
// costs next to nothing, otherwise not before restFactor times what it cost.
//
// The cost is the lower of the last two, so that one statement that was held up by
// something else is not taken for an expensive one: to wait forty times as long for the
// next would be the worse delay. The zero value allows everything.
type budget struct {
	next time.Time     // not before
	last time.Duration // what the last one cost, beyond what is free
}

const (
	// RestFactor bounds the share of the time that may be spent: a fortieth. With a
	// twentieth, claims from the front were in the p99 of claims (row D1 of the scorecard).
	RestFactor = 40
	// freeCost is within the noise of a round trip.
	freeCost = 3 * time.Millisecond
)

// allows reports whether another one may begin now.
func (b *budget) allows(now time.Time) bool { return !now.Before(b.next) }

// after is how long until another one may begin; 0: now.
func (b *budget) after(now time.Time) time.Duration { return max(b.next.Sub(now), 0) }

// spend notes what one has cost that ended now.
func (b *budget) spend(now time.Time, cost time.Duration) {
	if spent := min(cost, b.last); spent > freeCost {
		b.next = now.Add(RestFactor * spent)
	}
	b.last = cost
}

// fail notes one that did not end. It may have been too much for its deadline, or the
// database was away: the next one waits as long as this one took, and after two in a row
// as long as after any of that cost, unless the database was away.
func (b *budget) fail(now time.Time, took time.Duration, away bool) {
	if away {
		*b = budget{}
	} else {
		b.spend(now, took)
	}
	if next := now.Add(took); next.After(b.next) {
		b.next = next
	}
}

// expected is what a statement takes that reads only what is live: an answer's time, and so
// much for each job. It is learned from those that begin at their cursors.
type expected struct {
	answer, perJob time.Duration // moving averages
}

// firstCost is a first idea of what a job costs: a claim that gets thousands is not to be
// mistaken for one that reads dead entries (row B9 of the scorecard).
const firstCost = 20 * time.Microsecond

// manyJobs show what a job costs; fewer show what an answer takes.
const manyJobs = 100

func (e *expected) of(jobs int) time.Duration { return max(e.perJob*time.Duration(jobs), e.answer) }

func (e *expected) learn(took time.Duration, jobs int) {
	if jobs >= manyJobs {
		average(&e.perJob, took/time.Duration(jobs))
	} else {
		average(&e.answer, took)
	}
}

// lower learns from a statement that may have read more than what is live: it can only
// have taken longer for that. An answer that was slow by chance is forgotten so.
func (e *expected) lower(took time.Duration, jobs int) {
	if jobs < manyJobs && took < e.answer {
		average(&e.answer, took)
	}
}

// average moves an average by an eighth of the difference.
func average(mean *time.Duration, value time.Duration) {
	if *mean == 0 {
		*mean = value
	}
	*mean += (value - *mean) / 8
}
