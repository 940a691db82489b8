package dispatcher

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// A queue that is paused or at its limit is looked at this often, and up to
// twice as often, by each process: an operator's change whose notification was
// lost takes effect within a second, and so does room that others have made, be
// they alive or dead. Nobody is notified of it: most room is taken up again at
// once by the process that made it, and a NOTIFY for every job that ends would
// cost all commits of the database more than the looks do.
const limitPoll = 800 * time.Millisecond

// usage is what is set for a queue and how much of it is used.
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

// room is how many of the jobs that are asked for may be started.
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

// add notes jobs that were claimed.
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

// reason names what stopped a claim.
func (u *usage) reason() string {
	switch {
	case u.Paused:
		return "paused"
	case u.Rate != nil && u.log.started() >= int(*u.Rate):
		return "rate"
	}
	return "max_running"
}

// rest is when there may be room again, as far as the rate says.
func (u *usage) rest() time.Duration {
	if u.reason() == "rate" {
		return max(u.log.next(u.Now.Time), time.Millisecond)
	}
	return limitPoll
}

// rateParts is how exactly starts are remembered: in parts of the interval.
const rateParts = 100

// startLog is the starts of the last interval: the latest of each hundredth of it,
// and how many those were. So it has a bounded length, and forgets a start up to a
// hundredth of the interval too late and never too early: no span of the interval
// has more starts than the rate. The times are the database's.
type startLog struct {
	interval time.Duration
	times    []pgtype.Timestamptz
	counts   []int32
}

// newStartLog makes a log of what was stored. What is far in the future was stored
// before the database's clock was set back, or under a longer interval.
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

// next is how long it takes until a start is forgotten.
func (l *startLog) next(now time.Time) time.Duration {
	next := l.interval
	for _, at := range l.times {
		next = min(next, at.Time.Add(l.interval).Sub(now))
	}
	return next
}
