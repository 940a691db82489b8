package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
)

// check reads the database and checks every promise.
func (m *KeyedMachine) check(ctx context.Context) error {
	closed := m.closed
	if err := m.look(ctx); err != nil {
		return err
	}
	var errs []error
	for _, id := range m.known {
		if open, status := m.open[id] != nil, m.closed[id]; open == (status != "") {
			errs = append(errs, fmt.Errorf("job %s is open: %t, and closed: %q", id, open, status))
		}
		if closed[id] != "" && m.closed[id] != closed[id] {
			errs = append(errs, fmt.Errorf("job %s was %s and is %s", id, closed[id], m.closed[id]))
		}
	}
	if n := len(m.open) + len(m.closed); n != len(m.known) {
		errs = append(errs, fmt.Errorf("jobs are stored = %d, want the %d that were accepted", n, len(m.known)))
	}
	for _, shape := range keyShapes {
		jobs := m.of(shape.key)
		if n := count(jobs, running); n > shape.limit {
			errs = append(errs, fmt.Errorf("key %s runs %d jobs, want at most %d", shape.key, n, shape.limit))
		}
		if n := count(jobs, func(j *keyedJob) bool { return j.ordered && running(j) }); n > 1 {
			errs = append(errs, fmt.Errorf("key %s runs %d ordered jobs at once", shape.key, n))
		}
		errs = append(errs, m.checkMoves(shape.key, jobs))
	}
	return errors.Join(errs...)
}

// checkMoves checks that no job waits that could run, unless a process died that was about to promote it.
func (m *KeyedMachine) checkMoves(key string, jobs []*keyedJob) error {
	if m.dirty[key] {
		return nil
	}
	first := head(jobs)
	if first != nil && first.dead() && first.onDeath == string(outbox.ParkKey) && !first.parkAfter && !m.parked[key] {
		return fmt.Errorf("key %s is not parked, though its head %s is %s", key, first.id, first.status)
	}
	if j := m.couldRun(key, jobs); j != nil {
		return fmt.Errorf("key %s is stuck: job %s is blocked and could run", key, j.id)
	}
	return nil
}

// couldRun returns a blocked job for which there is a slot that no other job is about to take, or nil.
func (m *KeyedMachine) couldRun(key string, jobs []*keyedJob) *keyedJob {
	if m.parked[key] {
		return nil
	}
	active := count(jobs, running)
	if first := head(jobs); first != nil && first.status == outbox.Blocked && active == 0 {
		return first
	}
	// A job that is due will be claimed, and its end promotes the next one.
	taken := active + count(jobs, func(j *keyedJob) bool {
		return !j.ordered && j.queued() && j.status != outbox.Blocked && j.due
	})
	var next *keyedJob
	for _, j := range jobs {
		if !j.ordered && j.status == outbox.Blocked && (next == nil || moreUrgent(j, next) < 0) {
			next = j
		}
	}
	if next != nil && taken < next.limit {
		return next
	}
	return nil
}

func moreUrgent(a, b *keyedJob) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.runAt, b.runAt),
		cmp.Compare(a.id.String(), b.id.String()))
}

// checkClaim compares what a claim took with what there was: no job of a parked key, of ordered jobs only the first,
// and no more than each job's own limit. looked says that the claim looked at all jobs and had room left.
func (m *KeyedMachine) checkClaim(ctx context.Context, claimed []outbox.ID, looked bool) error {
	then, parked := m.open, m.parked
	if err := m.look(ctx); err != nil {
		return err
	}
	for _, id := range claimed {
		was, is := then[id], m.open[id]
		switch {
		case was == nil || is == nil || !running(is):
			return fmt.Errorf("job %s was claimed and does not run", id)
		case was.status != outbox.Pending && was.status != outbox.Retrying, was.late:
			return fmt.Errorf("job %s was claimed, which was %s (late: %t)", id, was.status, was.late)
		case parked[is.key]:
			return fmt.Errorf("job %s of key %s was claimed, which is parked", id, is.key)
		}
		jobs := m.of(is.key)
		if first := head(jobs); is.ordered && first != is {
			return fmt.Errorf("job %s of key %s was claimed at position %d before job %s at position %d", id, is.key,
				is.position, first.id, first.position)
		}
		// Of the jobs of one claim, those with a lower limit may have started first: a job with a higher limit may run
		// beside them.
		n := 1 + count(jobs, func(j *keyedJob) bool {
			return running(j) && (running(then[j.id]) || j != is && (j.ordered || j.limit < is.limit ||
				j.limit == is.limit && before(j, is)))
		})
		if n > is.limit && !is.ordered {
			return fmt.Errorf("job %s of key %s was claimed as one of %d, want at most %d", id, is.key, n, is.limit)
		}
		if n := count(jobs, func(j *keyedJob) bool { return running(then[j.id]) }); is.ordered && n > 0 {
			return fmt.Errorf("job %s of key %s was claimed beside %d that ran, want it alone", id, is.key, n)
		}
	}
	for id, was := range then {
		if is := m.open[id]; looked && was.due && !was.late &&
			(was.status == outbox.Pending || was.status == outbox.Retrying) && is.status == was.status {
			return fmt.Errorf("job %s of key %s is due and %s, though the claim had room for it or to block it", id,
				is.key, is.status)
		}
	}
	return nil
}
