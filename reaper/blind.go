package reaper

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/clock"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// sight is what the passes over the leases know of outages. A worker extends a lease
// every third of it; while the database is away, crashes and recovers, stands still, or
// has the table of the jobs locked, nobody can, and what lapses then says nothing
// about workers. A reaper cannot make its passes either, and so knows:
//
//	reaper     pass        pass fails   …fails    pass
//	database        |------- away -------|
//	leases               lapse  lapse             lapse, whose workers had no time yet
//	judged          |------ in the outage -------|-- patience for workers --|
//
// All times are the database's. Of our own clock we only use how long we slept: a
// process that was stopped, or whose machine was suspended, has not waited for the database, and is no outage to others.
// (A wall clock that is set ahead passes for a sleep, and hides an outage that ends with that very pass.)
// But a database whose clock jumps ahead was away, as far as leases are concerned.
//
// A reaper that starts knows of no outage, but that it cannot make its first pass: then
// whatever it finds lapsed when it can is of that outage. So a job that kills its process, reaper
// and all, is still bounded.
type sight struct {
	seen   time.Time // the database's time of the latest answer; zero: none yet
	sent   time.Time // by our clock: when what it answered was sent
	asked  time.Time // by our clock: when the first statement after that was sent; zero: none was
	failed bool      // and one has failed

	// Of the latest outage: leases that lapse from, until, of jobs that were claimed before its end.
	from, until, end time.Time
	always           bool // from is the beginning of time
}

const (
	// blindPatience is how long the database is away at least: a lease of 6 s that is
	// extended every third does not lapse in a shorter time, and one failed pass is
	// no outage.
	blindPatience = 3 * time.Second
	// recoverPatience is what workers have at least to find that the database is back and
	// to extend their leases. A worker gives a lease up a tenth before it lapses, which is
	// less than half of any outage in which it could.
	recoverPatience = 10 * time.Second
)

// ask notes that a statement is sent, and has it judge by what is known.
func (s *sight) ask(now time.Time, params *sqlgen.ExpireLeasesParams) {
	if s.asked.IsZero() {
		s.asked = now
	}
	params.Patience = pgvalue.Interval(blindPatience)
	params.Seen, params.BlindSince = pgtype.Timestamptz{}, pgtype.Timestamptz{}
	params.OutageFrom, params.OutageUntil, params.OutageEnd = pgtype.Timestamptz{}, pgtype.Timestamptz{}, pgtype.Timestamptz{}
	switch {
	case !s.seen.IsZero():
		params.Seen, params.BlindSince = instant(s.seen), instant(s.blindSince())
	case now.Sub(s.asked) > blindPatience:
		params.OutageFrom, params.OutageUntil, params.OutageEnd = always, never, never
	}
	if !s.end.IsZero() {
		params.OutageFrom, params.OutageUntil, params.OutageEnd = instant(s.from), instant(s.until), instant(s.end)
		if s.always {
			params.OutageFrom = always
		}
	}
}

// blindSince is since when, by the database's clock, it has perhaps been away.
func (s *sight) blindSince() time.Time {
	if s.failed {
		return s.seen
	}
	return s.seen.Add(clock.Elapsed(s.sent, s.asked)) // until then we slept, or the machine was suspended
}

// fail notes that a statement has failed. A refusal is an answer, though it does not say what the time is: as far as is
// known we slept until it came.
func (s *sight) fail(err error) {
	switch {
	case !pgsession.IsRefusal(err):
		s.failed = true
	case !s.failed:
		s.asked = time.Time{}
	}
}

// answer notes when a statement was sent and what the database's time was, and returns
// how long an outage was that has ended with it; 0 for none.
func (s *sight) answer(sent, dbNow time.Time) (away time.Duration) {
	first := s.seen.IsZero()
	if first {
		away = sent.Sub(s.asked)
	} else {
		away = dbNow.Sub(s.blindSince())
	}
	if away <= blindPatience {
		away = 0
	} else {
		s.from, s.end, s.until, s.always = s.seen, dbNow, dbNow.Add(max(recoverPatience, away/2)), first
	}
	s.seen, s.sent, s.asked, s.failed = dbNow, sent, time.Time{}, false
	return away
}
