package reaper

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// scan remembers where passes over the lapsed leases have to look.
//
// The index of the leases keeps a dead entry for every job that was claimed since vacuum could last remove them.
// Usually that is not long ago, so a pass over the whole index costs nothing, and every pass covers it. While some
// snapshot is held, the dead entries stay, and every process would read a growing heap of them every two seconds. Then
// there are two kinds of passes:
//
//	recent   from where the last complete pass ended, less an overlap, to now
//	full     everything before that; it takes a tenth of the time at most, and is
//	         made in slices, from the youngest to the oldest, when it is long
//
// No lease is missed. A recent pass finds a lease when it lapses, whatever its length, because lapsing means that its
// time comes to lie between the end of the last pass and the database's now. Both are readings of the database's clock,
// and if that was set back, the pass begins at the clock rather than at the position. If a recent pass had to leave a
// lease (the row was locked, the lease was extended concurrently, or the claim committed only after its lease had
// lapsed), later passes find it within the overlap, and after that a full pass does.
type scan struct {
	passed    time.Time     // the database's time of the last complete pass; zero if none
	fullAfter time.Time     // by our clock: no full pass before this time
	slice     time.Duration // length of a full pass's slice; 0 makes it all at once, together with the recent pass
	left      time.Time     // how far down the full pass's slices have come; zero begins a new full pass
	spent     time.Duration // the cost of this full pass's slices so far
}

// span is a range of lapse times.
type span struct {
	from, before pgtype.Timestamptz
	recent, full bool // which kinds of pass it counts as; both: all at once
}

const (
	overlap = 5 * time.Second
	// slowFull is the cost from which a full pass is made in slices: well below a statement's deadline, so that a
	// growing pass never reaches it.
	slowFull   = time.Second
	quickSlice = 100 * time.Millisecond
	firstSlice = time.Hour
	horizon    = 400 * 24 * time.Hour // leases that lapsed earlier form one slice
)

var (
	always = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	never  = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
)

// spans returns the spans to examine now.
func (s *scan) spans(now time.Time) []span {
	affordable := !now.Before(s.fullAfter)
	if affordable && s.slice == 0 {
		return []span{{from: always, before: never, recent: true, full: true}}
	}
	// The statement begins an overlap before the database's now at the latest.
	recent := span{from: never, before: never, recent: true}
	if !s.passed.IsZero() {
		recent.from = instant(s.passed.Add(-overlap))
	}
	if !affordable || s.passed.IsZero() {
		return []span{recent}
	}
	if s.left.IsZero() {
		s.left = s.passed
	}
	full := span{from: always, before: instant(s.left), full: true}
	if from := s.left.Add(-s.slice); s.passed.Sub(from) < horizon {
		full.from = instant(from)
	}
	return []span{recent, full}
}

// note records what a span cost and the database's time of its last look, or the error that ended it half-way.
func (s *scan) note(done span, cost time.Duration, dbNow, now time.Time, err error) {
	if done.full {
		s.fullAfter = now.Add(budget * cost)
	}
	if err != nil {
		if done.full && isTimeout(err) {
			s.split(done)
		}
		return
	}
	if done.recent {
		s.passed = dbNow
	}
	switch {
	case done.recent && done.full:
		if cost > slowFull {
			s.slice = firstSlice
		}
	case done.full:
		s.spent += cost
		s.left = done.from.Time
		switch {
		case done.from.InfinityModifier != pgtype.Finite: // the full pass is complete
			if s.spent < slowFull {
				s.slice = 0
			}
			s.left, s.spent = time.Time{}, 0
		case cost < quickSlice:
			s.slice *= 2
		case cost > slowFull:
			s.slice /= 2
		}
	}
}

// split makes the next slice shorter than one that took too long.
func (s *scan) split(done span) {
	if done.recent {
		s.slice = firstSlice
	} else {
		s.slice = max(s.slice/4, time.Second)
	}
}

func instant(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: true} }
