package limit

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// rateParts is the number of parts of the interval by which starts are counted.
const rateParts = 100

// startLog records the starts of the last interval: for each hundredth of it, the latest start and the number of
// starts. So its length is bounded, and it forgets a start up to a hundredth of the interval too late and never too
// early: no span as long as the interval has more starts than the rate. The times are the database's.
type startLog struct {
	interval time.Duration
	times    []pgtype.Timestamptz
	counts   []int32
}

// newStartLog makes a log from its stored form. It drops times far in the future: they were stored before the
// database's clock was set back, or under a longer interval.
func newStartLog(interval time.Duration, now time.Time, times []pgtype.Timestamptz, counts []int32) startLog {
	l := startLog{interval: interval}
	for i, at := range times {
		if age := now.Sub(at.Time); i < len(counts) && age < interval && age >= -interval {
			l.times, l.counts = append(l.times, at), append(l.counts, counts[i])
		}
	}
	return l
}

func (l *startLog) started() (n int) {
	for _, count := range l.counts {
		n += int(count)
	}
	return n
}

func (l *startLog) add(at time.Time) {
	part, last := l.interval/rateParts, len(l.times)-1
	if last >= 0 && l.times[last].Time.Truncate(part).Equal(at.Truncate(part)) {
		if at.After(l.times[last].Time) {
			l.times[last].Time = at
		}
		l.counts[last]++
		return
	}
	l.times = append(l.times, pgtype.Timestamptz{Time: at, Valid: true})
	l.counts = append(l.counts, 1)
}

// next returns how long it takes until a start is forgotten.
func (l *startLog) next(now time.Time) time.Duration {
	next := l.interval
	for _, at := range l.times {
		next = min(next, at.Time.Add(l.interval).Sub(now))
	}
	return next
}
