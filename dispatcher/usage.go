package dispatcher

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Each process looks at a queue that is paused or at its limit at this interval, and up to twice as often. So an
// operator's change whose notification was lost takes effect within a second, and room that other processes have made,
// alive or dead, is noticed as soon. Nobody is notified of room: most of it is used up again at once by the process
// that made it, and a NOTIFY for every job that ends would cost all commits of the database more than these looks do.
const limitPoll = 800 * time.Millisecond

// usage holds the limits of a queue and how much of them is used.
type usage struct {
	sqlgen.MeasureQueueRow
	log startLog
}

func newUsage(m sqlgen.MeasureQueueRow) *usage {
	u := &usage{MeasureQueueRow: m}
	if m.Rate != nil {
		u.log = newStartLog(time.Duration(m.RateSeconds*float64(time.Second)), m.Now.Time, m.StartTimes, m.StartCounts)
	}
	return u
}

// room returns how many of the jobs that are asked for may start.
func (u *usage) room(asked int) int {
	if u.Paused {
		return 0
	}
	if u.MaxRunning != nil {
		asked = min(asked, int(*u.MaxRunning)-len(u.Running))
	}
	if u.Rate != nil {
		asked = min(asked, int(*u.Rate)-u.log.started())
	}
	return max(asked, 0)
}

// add counts claimed jobs as started.
func (u *usage) add(claimed []*attempt) {
	for _, a := range claimed {
		if u.MaxRunning != nil {
			u.Running = append(u.Running, pgvalue.UUID(a.job.ID))
		}
		if u.Rate != nil {
			u.log.add(a.job.StartedAt)
		}
	}
}

// reason names the limit that stopped a claim.
func (u *usage) reason() string {
	switch {
	case u.Paused:
		return "paused"
	case u.Rate != nil && u.log.started() >= int(*u.Rate):
		return "rate"
	}
	return "max_running"
}

// rest returns when there may be room again, as far as the rate determines it.
func (u *usage) rest() time.Duration {
	if u.reason() == "rate" {
		return max(u.log.next(u.Now.Time), time.Millisecond)
	}
	return limitPoll
}

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
