package integration

import (
	"fmt"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// entry is a line that a worker wrote.
type entry = ledger.Entry

// book reads what workers append.
type book struct {
	*ledger.Tail
	broken error
}

// all returns every entry so far, in the order in which they were written.
func (l *book) all() []entry {
	var entries []entry
	entries, l.broken = l.Entries()
	return entries
}

// of returns the entries that have an event and satisfy all of wanted.
func (l *book) of(event string, wanted ...func(entry) bool) (found []entry) {
	for _, e := range l.all() {
		if e.Event == event && !slices.ContainsFunc(wanted, func(w func(entry) bool) bool { return !w(e) }) {
			found = append(found, e)
		}
	}
	return found
}

func byWorker(name string) func(entry) bool { return func(e entry) bool { return e.Worker == name } }
func ofJob(id outbox.ID) func(entry) bool   { return func(e entry) bool { return e.Job == id } }

// awaitEntries waits until the ledger has n such entries, and returns them.
func (s *story) awaitEntries(n int, event string, wanted ...func(entry) bool) []entry {
	s.Helper()
	var found []entry
	s.await(fmt.Sprintf("%d entries %q in the ledger", n, event), func() bool {
		found = s.ledger.of(event, wanted...)
		return len(found) >= n
	})
	return found
}

// checkLedger compares the ledger with the database:
//
//   - no lease is used twice: (job, epoch) is unique among all starts;
//   - no job makes its effect twice, or starts again after it;
//   - every effect that a worker saw commit is in the database.
//
// It returns how many attempts were started.
func (s *story) checkLedger() int {
	s.Helper()
	type lease struct {
		job   outbox.ID
		epoch int64
	}
	starts, newest, effects := map[lease]entry{}, map[outbox.ID]int64{}, map[outbox.ID]entry{}
	for _, e := range s.ledger.all() {
		switch e.Event {
		case "start":
			if other, twice := starts[lease{e.Job, e.Epoch}]; twice {
				s.Errorf("two executions under one lease: job %s, epoch %d, by %s and %s", e.Job, e.Epoch, other.Worker, e.Worker)
			}
			starts[lease{e.Job, e.Epoch}] = e
			newest[e.Job] = max(newest[e.Job], e.Epoch)
		case "effect":
			if other, twice := effects[e.Job]; twice {
				s.Errorf("job %s made its effect twice: %s at epoch %d, %s at epoch %d", e.Job, other.Worker, other.Epoch, e.Worker, e.Epoch)
			}
			effects[e.Job] = e
		}
	}
	if s.ledger.broken != nil {
		s.Error(s.ledger.broken)
	}
	stored := map[string]bool{}
	for _, e := range s.texts(`SELECT job_id || ' ' || epoch FROM effects UNION ALL SELECT changed_by || ' item' FROM items WHERE changed_by IS NOT NULL`) {
		stored[e] = true
	}
	for id, e := range effects {
		if e.Do != "enrich" && e.Do != "receive" && newest[id] > e.Epoch {
			s.Errorf("job %s was done at epoch %d and started again at epoch %d", id, e.Epoch, newest[id])
		}
		if !stored[fmt.Sprintf("%s %d", id, e.Epoch)] && !stored[id.String()+" item"] {
			s.Errorf("the effect of job %s at epoch %d was seen to commit by %s and is not in the database", id, e.Epoch, e.Worker)
		}
	}
	return len(starts)
}

// checkClosed checks that each job is in the history, once, succeeded, and not among the open ones.
func (s *story) checkClosed(ids []outbox.ID) {
	s.Helper()
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	for claim, sql := range map[string]string{
		"lost: neither open nor closed":            `SELECT id FROM unnest($1::uuid[]) AS id WHERE NOT EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = id.id) AND NOT EXISTS (SELECT FROM outbox.history WHERE history.id = id.id)`,
		"still open":                               `SELECT id FROM outbox.jobs WHERE id = ANY ($1::uuid[])`,
		"closed more than once":                    `SELECT id FROM outbox.history WHERE id = ANY ($1::uuid[]) GROUP BY id HAVING count(*) > 1`,
		"closed and not succeeded":                 `SELECT id FROM outbox.history WHERE id = ANY ($1::uuid[]) AND status <> 'succeeded'`,
		"finished by an effect at another epoch":   `SELECT history.id FROM outbox.history JOIN effects ON effects.job_id = history.id WHERE history.id = ANY ($1::uuid[]) AND effects.epoch <> history.epoch`,
		"counted as more attempts than there were": `SELECT id FROM outbox.history WHERE id = ANY ($1::uuid[]) AND (attempt > epoch OR attempt < 1)`,
	} {
		if found := s.texts(`SELECT id::text FROM (`+sql+`) AS broken`, texts); len(found) > 0 {
			s.Errorf("%d jobs are %s, for example %v", len(found), claim, found[:min(len(found), 3)])
		}
	}
}

// checkEffects checks that each job has made exactly one effect, and that there are no other effects.
func (s *story) checkEffects(ids []outbox.ID) {
	s.Helper()
	effects := map[string]int{}
	for _, id := range s.texts(`SELECT job_id::text FROM effects`) {
		effects[id]++
	}
	missing, double := 0, 0
	for _, id := range ids {
		switch n := effects[id.String()]; {
		case n == 0:
			missing++
		case n > 1:
			double++
		}
		delete(effects, id.String())
	}
	if missing+double+len(effects) > 0 {
		s.Errorf("of %d effects %d are missing, %d were made more than once, and %d are nobody's", len(ids), missing, double, len(effects))
	}
}
