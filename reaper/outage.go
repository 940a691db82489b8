package reaper

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/clock"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// outageTracker is what the passes over the leases know of outages of the database. A worker extends a lease after
// every third of its length. While the database is unavailable, crashes and recovers, hangs, or has the table of the
// jobs locked, no worker can, so a lease that lapses then says nothing about its worker. A reaper cannot make its
// passes either, and thus knows of the outage:
//
//	reaper     pass        pass fails   …fails    pass
//	database        |------- away -------|
//	leases               lapse  lapse             lapse, whose workers had no time yet
//	judged          |------ in the outage -------|-- patience for workers --|
//
// All times are the database's. From the reaper's own clock only the time that it slept is used: a process that was
// stopped, or whose machine was suspended, has not waited for the database, and that is no outage to others. (A wall
// clock that is set ahead counts as sleep, and hides an outage that ends with that very pass.) But a database whose
// clock jumps ahead counts as having been away, as far as leases are concerned.
//
// A reaper that starts knows of no outage unless its first pass fails; then every lapsed lease that it finds on its
// first success counts as part of it. So a job that kills its process, reaper included, is still bounded.
type outageTracker struct {
	seen   time.Time // the database's time of the latest answer; zero if there is none yet
	sent   time.Time // by our clock: when the statement that it answered was sent
	asked  time.Time // by our clock: when the first statement after that was sent; zero if none was
	failed bool      // a statement has failed since

	// These describe the latest outage: leases that lapse from from until until belong to it, if their jobs were
	// claimed before end.
	from, until, end time.Time
	always           bool // from is the beginning of time
}

const (
	// minOutage is the shortest absence of the database that counts as an outage: a lease of 6 s that is extended
	// every third does not lapse in a shorter time, and one failed pass is no outage.
	minOutage = 3 * time.Second
	// recoverPatience is the least time that workers have to find that the database is back and to extend their leases.
	// A worker gives a lease up a tenth before it lapses, which is less than half of any outage in which it could
	// lapse.
	recoverPatience = 10 * time.Second
)

// ask records that a statement is sent, and sets its parameters by what is known of outages.
func (s *outageTracker) ask(now time.Time, params *sqlgen.ExpireLeasesParams) {
	if s.asked.IsZero() {
		s.asked = now
	}
	params.Patience = pgvalue.Interval(minOutage)
	params.Seen, params.AwaySince = pgtype.Timestamptz{}, pgtype.Timestamptz{}
	params.OutageFrom, params.OutageUntil, params.OutageEnd = pgtype.Timestamptz{}, pgtype.Timestamptz{},
		pgtype.Timestamptz{}
	switch {
	case !s.seen.IsZero():
		params.Seen, params.AwaySince = instant(s.seen), instant(s.awaySince())
	case now.Sub(s.asked) > minOutage:
		params.OutageFrom, params.OutageUntil, params.OutageEnd = always, never, never
	}
	if !s.end.IsZero() {
		params.OutageFrom, params.OutageUntil, params.OutageEnd = instant(s.from), instant(s.until), instant(s.end)
		if s.always {
			params.OutageFrom = always
		}
	}
}

// awaySince returns the time, by the database's clock, since when it may have been away.
func (s *outageTracker) awaySince() time.Time {
	if s.failed {
		return s.seen
	}
	return s.seen.Add(clock.Elapsed(s.sent, s.asked)) // until then the reaper slept, or the machine was suspended
}

// fail records that a statement has failed. A refusal is an answer without the database's time: as far as is known, the
// reaper slept until it came. An error that may be one proves nothing yet.
func (s *outageTracker) fail(err error) {
	switch {
	case !pgsession.MayBeRefusal(err):
		s.failed = true
	case !pgsession.IsRefusal(err):
	case !s.failed:
		s.asked = time.Time{}
	}
}

// answer records when a statement was sent and what the database's time was. It returns how long the outage that ended
// with it lasted, or 0 for none.
func (s *outageTracker) answer(sent, dbNow time.Time) (away time.Duration) {
	first := s.seen.IsZero()
	if first {
		away = sent.Sub(s.asked)
	} else {
		away = dbNow.Sub(s.awaySince())
	}
	if away <= minOutage {
		away = 0
	} else {
		s.from, s.end, s.until, s.always = s.seen, dbNow, dbNow.Add(max(recoverPatience, away/2)), first
	}
	s.seen, s.sent, s.asked, s.failed = dbNow, sent, time.Time{}, false
	return away
}
