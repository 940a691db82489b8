package dispatcher

import (
	"bytes"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// scan remembers where a queue's claims have to look.
//
// What was claimed leaves dead entries at the front of the index. As long as
// vacuum can remove them, or a claim may mark them, scanning from the front is
// free, and every claim does. While some snapshot is held (a forgotten
// transaction, a long report, pg_dump) they stay, and a queue that scans from the
// front slows down with every job that it has done. So each claim takes the widest
// of three scans that it can afford:
//
//	full     from the front: finds everything
//	overlap  from a few seconds before the last job claimed: finds what
//	         transactions that commit late have left behind
//	near     from the last job claimed
//
// A scan that costs more than the near one is paid for by not repeating it for
// thirty-nine times the excess. Where both wide depths are dear they take turns, and each
// pays for the other, too: what either finds is mostly the same. At twice that they were
// about one in a hundred claims of a quick machine, and so in its p99.
// Of two in a row the cheaper one tells what they cost: one that is dear by itself was
// held up by what else the machine does, and to wait thirty-nine times as long for the
// next would be the worse delay. What is due before the near scan's start waits for that
// next one: a job that was committed late, or given back, or whose lease has lapsed.
type scan struct {
	levels   []level // the priorities known to be in use, highest first
	paid     [near]time.Time
	excess   [near]time.Duration // of the last scan of a depth, beyond a near one
	gapsTook time.Duration       // the last survey of what is between the levels
	nearCost time.Duration       // of a near claim, for each job; moving average
	answer   time.Duration       // what a near claim of a few jobs takes, most of it to be answered; moving average
	last     depth               // of the last claim
	failed   bool                // something was charged for looks that failed
	surveyed time.Time
	since    pgtype.Timestamptz // the database's time of that survey; NULL before the first
}

// level is a priority and the position of the last job claimed from it.
type level struct {
	priority int16
	runAt    time.Time // zero: nothing claimed yet
	id       [16]byte
	used     time.Time
}

type depth int

const (
	full depth = iota
	overlap
	near
)

const (
	maxLevels   = 64
	overlapTime = 5 * time.Second
	// A scan that takes less than this beyond a near one counts as free: it is
	// within the noise of a round trip.
	freeExcess = 3 * time.Millisecond
	wideBudget = 39 // a wide scan's excess is followed by this many times as long without one of its depth
	budget     = 19 // what other dear looks are followed by
)

// depth is the widest scan that is affordable now.
func (s *scan) depth(now time.Time) depth {
	for d := full; d < near; d++ {
		if !now.Before(s.paid[d]) {
			return d
		}
	}
	return near
}

// from returns the start of each level's scan.
func (s *scan) from(d depth) (priorities []int16, runAts []pgtype.Timestamptz, ids []pgtype.UUID) {
	if len(s.levels) == 0 {
		s.levels = []level{{priority: 0}}
	}
	for _, l := range s.levels {
		runAt := pgtype.Timestamptz{Time: l.runAt, Valid: true}
		id := pgtype.UUID{Valid: true}
		switch {
		case d == full || l.runAt.IsZero():
			runAt = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		case d == overlap:
			runAt.Time = l.runAt.Add(-overlapTime)
		case d == near:
			id.Bytes = l.id
		}
		priorities, runAts, ids = append(priorities, l.priority), append(runAts, runAt), append(ids, id)
	}
	return priorities, runAts, ids
}

// charge records a claim that failed: had it been too wide for its deadline, the next
// ones look less far. One may have failed for another reason, and is soon repeated.
func (s *scan) charge(d depth, started, now time.Time) {
	if took := now.Sub(started); d < near {
		s.paid[d] = now.Add(took)
		s.failed = s.failed || took > freeExcess
		s.spend(d, now, took)
	}
}

// forgive takes back what was charged: the database was away, and no look was too wide.
func (s *scan) forgive() bool {
	failed := s.failed
	if failed {
		s.paid, s.excess, s.gapsTook, s.failed = [near]time.Time{}, [near]time.Duration{}, 0, false
	}
	return failed
}

// spend has a scan of a depth paid for, if it and the one before were dear.
func (s *scan) spend(d depth, now time.Time, excess time.Duration) {
	s.pay(d, now, min(excess, s.excess[d]))
	s.excess[d] = excess
}

func (s *scan) pay(d depth, now time.Time, cost time.Duration) {
	if d == near || cost <= freeExcess {
		return
	}
	rest := wideBudget * cost
	if other := full + overlap - d; s.excess[other] > freeExcess { // one after the other, not both at once
		share := wideBudget * min(cost, s.excess[other])
		s.wait(other, now.Add(share))
		rest += share
	}
	s.wait(d, now.Add(rest))
}

// wait leaves a depth out until then.
func (s *scan) wait(d depth, until time.Time) {
	if until.After(s.paid[d]) {
		s.paid[d] = until
	}
}

// noteSurvey records what a survey cost that looked between the levels, as a full scan
// does. One that failed is not repeated at once, as in charge.
func (s *scan) noteSurvey(started, now time.Time, failed bool) {
	took := now.Sub(started)
	if failed {
		s.paid[full] = now.Add(took)
		s.failed = s.failed || took > freeExcess
	}
	s.pay(full, now, min(took, s.gapsTook)-s.answer)
	s.gapsTook = took
}

// note records what a claim of the given depth cost and how far it came.
// Candidates must be in claim order: highest priority first, then by position.
func (s *scan) note(d depth, started, now time.Time, claimed []*attempt) {
	s.noteCost(d, started, now, len(claimed))
	s.advance(now, claimed)
}

// noteCost records what it cost to look at n jobs.
func (s *scan) noteCost(d depth, started, now time.Time, n int) {
	took := now.Sub(started)
	s.last = d
	switch {
	case d < near:
		s.spend(d, now, took-max(s.nearCost*time.Duration(n), s.answer))
		// Only near claims tell what an answer takes. Without any it is believed less and
		// less, until there is one: it may have been slow by chance, and wide scans be dear.
		s.answer -= s.answer / 512
		if took < s.answer {
			learn(&s.answer, took)
		}
	case n >= 100: // fewer tell what an answer takes, not a job
		learn(&s.nearCost, took/time.Duration(n))
	default: // where that is long, it makes no scan dear
		learn(&s.answer, took)
	}
}

// learn moves an average.
func learn(mean *time.Duration, value time.Duration) {
	if *mean == 0 {
		*mean = value
	}
	*mean += (value - *mean) / 8
}

// advance moves each level's position to the last of the jobs claimed.
func (s *scan) advance(now time.Time, claimed []*attempt) {
	for _, a := range claimed {
		if a.unused { // goes back: it must be found again
			continue
		}
		l := s.level(int16(a.job.Priority))
		l.used = now
		if before(l.runAt, l.id, a.job.RunAt, a.job.ID) {
			l.runAt, l.id = a.job.RunAt, a.job.ID
		}
	}
}

func before(at time.Time, id [16]byte, otherAt time.Time, otherID [16]byte) bool {
	if c := at.Compare(otherAt); c != 0 {
		return c < 0
	}
	return bytes.Compare(id[:], otherID[:]) < 0
}

// wideAfter is how long until a full scan is affordable; ok is false if the last
// one was full.
func (s *scan) wideAfter(now time.Time) (wait time.Duration, ok bool) {
	return max(s.paid[full].Sub(now), 0), s.last != full
}

// level returns the level of a priority, made if it is new. When there are too
// many, the one that was idle longest is forgotten: a survey finds it again.
func (s *scan) level(priority int16) *level {
	at, found := slices.BinarySearchFunc(s.levels, priority, func(l level, p int16) int { return int(p) - int(l.priority) })
	if found {
		return &s.levels[at]
	}
	if len(s.levels) >= maxLevels {
		idle := 0
		for i := range s.levels {
			if s.levels[i].used.Before(s.levels[idle].used) {
				idle = i
			}
		}
		s.levels = slices.Delete(s.levels, idle, idle+1)
		if idle < at {
			at--
		}
	}
	s.levels = slices.Insert(s.levels, at, level{priority: priority, used: time.Now()})
	return &s.levels[at]
}

// gaps are the open ranges between the known priorities.
func (s *scan) gaps() (known []int16, above, below []int32) {
	const lowest, highest = -32769, 32768
	top := int32(highest)
	for _, l := range s.levels {
		p := int32(l.priority)
		known = append(known, l.priority)
		if top-p > 1 {
			above, below = append(above, p), append(below, top)
		}
		top = p
	}
	if top > lowest+1 {
		above, below = append(above, lowest), append(below, top)
	}
	return known, above, below
}

func (s *scan) surveyDue() bool { return time.Since(s.surveyed) >= surveyInterval }
