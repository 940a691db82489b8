package scheduler

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// LastSurveyAt returns the database's time of the last survey; NULL before the first.
func (s *Scheduler) LastSurveyAt() pgtype.Timestamptz { return s.since }

// Known returns the flows with a cursor.
func (s *Scheduler) Known(keyed bool) (flows []Flow) {
	for _, c := range s.cursors(keyed).sorted {
		flows = append(flows, c.Flow)
	}
	return flows
}

// Asked returns the flows of jobs without a key of which the next survey asks whether due jobs are left, and where it
// begins to look for them; a zero time means at the first entry.
func (s *Scheduler) Asked() (flows []Flow, from []time.Time) {
	for _, c := range s.plain.sorted {
		if c.asks != nil {
			flows, from = append(flows, c.Flow), append(from, c.asks.from)
		}
	}
	return flows, from
}

// Gaps returns the ranges without a cursor.
func (s *Scheduler) Gaps(keyed bool) Gaps { return s.cursors(keyed).gaps(s.served) }

// SurveyDue reports whether it is time for a survey.
func (s *Scheduler) SurveyDue(now time.Time) bool {
	switch since := now.Sub(s.surveyed); {
	case s.state >= incomplete:
		return true
	case s.MayHaveDue():
		return since >= surveyInterval || s.state >= wokenSince && since >= soon
	}
	return s.state > upToDate || !s.gapsCovered && s.gapBudget.allows(now)
}

// CoversGaps reports whether a survey that begins now should look for flows without a cursor. After a survey that found
// as many as it may, further surveys look whatever they cost: a claim must not begin with the second most urgent job.
func (s *Scheduler) CoversGaps(now time.Time) bool {
	return s.state == incomplete || s.gapBudget.allows(now)
}

// SurveyRow is what a survey has found about a flow.
type SurveyRow struct {
	Keyed bool
	Flow
	Unknown bool          // it has no cursor, or it was asked about and has due jobs left
	Due     time.Duration // until its next job is due, unless Unknown
}

// NoteSurvey learns from a survey, and reports whether the survey has found something to claim.
func (s *Scheduler) NoteSurvey(rows []SurveyRow, at pgtype.Timestamptz, coversGaps bool,
	started, now time.Time,
) (found bool) {
	took := now.Sub(started)
	if coversGaps {
		s.gapBudget.spend(now, took-s.surveys.of(0))
		s.surveys.lower(took, 0)
	} else {
		s.surveys.learn(took, 0)
	}
	before := s.since
	s.since, s.surveyed, s.gapsCovered, s.state = at, now, coversGaps, upToDate
	for c := range s.all() {
		c.next = c.again
	}
	unknown := 0
	for _, row := range rows {
		cs := &s.plain
		if row.Keyed {
			cs = &s.keyed
		}
		c := cs.get(row.Flow)
		if row.Unknown && c != nil && c.asks != nil { // a transaction has locked them
			c.lookAgain(now)
			c.dueAt(c.again)
			continue
		}
		if row.Unknown {
			cs.add(row.Flow, now, s.served).state = due
			unknown++
			found = true
			if unknown >= MaxNewFlows && len(cs.sorted) < maxCursors {
				s.state = incomplete
			}
			continue
		}
		switch {
		case c == nil: // its cursor was dropped just now
		case row.Due <= 0:
			c.state, found = due, true
		default:
			c.dueAt(now.Add(row.Due))
		}
	}
	for _, c := range s.plain.sorted {
		if c.asks != nil { // another process has taken them
			c.nothingLeft(c.asks.front, before)
		}
	}
	return found
}

// SurveyFailed notes a failed survey, as Failed notes a failed claim. The next one does not ask again what may have
// been too much for it: the poll finds jobs that were locked.
func (s *Scheduler) SurveyFailed(coversGaps bool, took time.Duration) {
	for _, c := range s.plain.sorted {
		c.asks = nil
	}
	if coversGaps {
		s.failure = func(why Failure) { s.gapBudget.fail(time.Now(), took, why != TooMuch); s.gapsCovered = false }
	}
}
