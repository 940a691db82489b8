package dispatcher

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// surveyed answers each survey with the given rows.
type surveyed struct {
	queueStatements
	rows []sqlgen.SurveyQueueRow
}

func (s *surveyed) SurveyQueue(context.Context, sqlgen.SurveyQueueParams) ([]sqlgen.SurveyQueueRow, error) {
	return s.rows, nil
}

// idleQueue returns a queue that does not run, with a database of the test's own.
func idleQueue(t *testing.T, db queueStatements) *loop {
	t.Helper()
	mux := new(Mux)
	Handle(mux, func(context.Context, *outbox.Job[tiny]) error { return nil })
	d, err := New(nil, mux, Config{})
	if err != nil {
		t.Fatal(err)
	}
	d.compose(t.Context(), nil, nil)
	d.common.health.Leave = func(error) {}
	q := d.queues[engine.DefaultQueue]
	q.db = db
	return q
}

// An operator pauses or limits a queue that has a backlog:
//
//	operator    pauses
//	claim 1              nothing, from the front: it has looked at no job    the cursors move past the backlog
//	survey                                                                  the queue is limited
//	claim 2                                                                 from the front
//
// If claim 2 began at the cursors, the backlog would wait for a claim from the front, which may be rationed.
func TestAQueueThatTurnsOutToBeLimitedIsClaimedFromTheFront(t *testing.T) {
	db := new(surveyed)
	q := idleQueue(t, db)
	at := pgtype.Timestamptz{Time: time.Now(), Valid: true}
	due := func(in float64) (rows []sqlgen.SurveyQueueRow) {
		for n := range 2 {
			for _, keyed := range []bool{false, true} {
				rows = append(rows, sqlgen.SurveyQueueRow{
					Keyed: keyed, TenantID: pgtype.UUID{Bytes: numbered(n), Valid: true}, DueInSeconds: in, SurveyedAt: at,
				})
			}
		}
		return rows
	}
	survey := func() {
		t.Helper()
		if found, err := q.survey(t.Context()); !found || err != nil {
			t.Fatalf("the survey has found something: %t, %v", found, err)
		}
	}
	cursors := func(keyed bool) (all []*scheduler.Cursor) {
		p := q.sched.Plan(time.Now(), scheduler.Places{Room: 100, Capacity: 100}, nil)
		for _, share := range p.Shares(keyed) {
			all = append(all, share.Cursors...)
		}
		return all
	}
	claimNothing := func() {
		for _, keyed := range []bool{false, true} {
			p := q.sched.Plan(time.Now(), scheduler.Places{Room: 100, Capacity: 100}, nil)
			q.sched.Claimed(keyed, p.Shares(keyed), nil, scheduler.Extent{Front: true}, time.Now())
		}
	}
	db.rows = due(math.Inf(-1))
	survey()
	claimNothing()
	db.rows = due(-1)
	survey() // other jobs of theirs have become due; the first ones are not there
	for _, keyed := range []bool{false, true} {
		for _, c := range cursors(keyed) {
			if c.At.RunAt.IsZero() {
				t.Fatalf("keyed: %t: a cursor has not moved: the test proves nothing", keyed)
			}
		}
	}
	claimNothing() // the next survey is to find out whether they are locked, and finds that the queue is paused
	db.rows = []sqlgen.SurveyQueueRow{{DueInSeconds: math.NaN(), SurveyedAt: at}}
	survey()
	for _, keyed := range []bool{false, true} {
		all := cursors(keyed)
		for _, c := range all {
			if !c.At.RunAt.IsZero() {
				t.Errorf("keyed: %t: the next claim of %v begins at %s, not at the front", keyed, c.Flow, c.At.RunAt)
			}
		}
		if len(all) != 2 {
			t.Errorf("keyed: %t: %d cursors, want 2", keyed, len(all))
		}
	}
}

// unansweredClaim is a claim of jobs with a key that has blocked a job, and whose end is not known.
type unansweredClaim struct{ halted []promote.Key }

func (u unansweredClaim) claim(context.Context, querier, claimRequest) *claimBatch {
	return &claimBatch{tally: tally{halted: u.halted}, err: errors.New("cut")}
}

// keyLooks records at which keys a promoter has looked. No job waits for them.
type keyLooks struct{ at []promote.Key }

func (l *keyLooks) FindMovableKeys(_ context.Context, p sqlgen.FindMovableKeysParams) ([]int32, error) {
	for i, key := range p.Keys {
		l.at = append(l.at, promote.Key{Tenant: p.TenantIds[i].Bytes, Queue: p.Queues[i], Name: key})
	}
	return nil, nil
}

func (*keyLooks) PromoteKeys(context.Context, sqlgen.PromoteKeysParams) ([]sqlgen.PromoteKeysRow, error) {
	return nil, nil
}

// The answer of a claim is lost after it has named the keys in which it has blocked jobs:
//
//	settle   A ends, commit                      look: nothing is blocked
//	claim              B blocked, answer lost           commit              look
//
// Somebody must look at these keys again.
func TestAClaimWithoutAnAnswerRemembersTheKeysThatItBlocked(t *testing.T) {
	halted := []promote.Key{{Tenant: outbox.RootTenant, Queue: engine.DefaultQueue, Name: "k"}, {Tenant: numbered(1), Queue: engine.DefaultQueue, Name: "k"}}
	for name, within := range map[string]*limit.Usage{
		"an ordinary queue": nil,
		"a limited queue":   {Conn: new(pgxpool.Conn)},
	} {
		q := idleQueue(t, nil)
		q.claims = unansweredClaim{halted}
		tenant := &scheduler.Tenant{ID: outbox.RootTenant}
		p := scheduler.Plan{Keyed: []scheduler.Share{{Tenant: tenant, Cursors: []*scheduler.Cursor{{}}, Quota: 1}}, Kinds: q.kinds}
		if _, err := q.claim(t.Context(), p, within); err == nil {
			t.Fatalf("%s: the claim has not failed", name)
		}
		var looks keyLooks
		q.promoter.DB = &looks
		if err := q.promoter.Once(); err != nil {
			t.Fatal(err)
		}
		for _, key := range halted {
			if !slices.Contains(looks.at, key) {
				t.Errorf("%s: nobody looks at the key of tenant %s", name, key.Tenant)
			}
		}
		if !q.reserved.mayHaveOrphans(time.Now()) {
			t.Errorf("%s: nobody looks for jobs that the claim may have leased", name)
		}
	}
}

// A claim that got nothing does not open the seats of batches, and does not close them.
func TestAnEmptyClaimIsNoClaimForBatches(t *testing.T) {
	r := &route{many: &many{BatchConfig: BatchConfig{Max: 10}}}
	g := &batches{open: map[*route]*batch{r: {attempts: make([]*attempt, 4)}}}
	for _, c := range []struct{ claimed, forBatches, want int }{{0, 0, 0}, {3, 2, 0}, {0, 0, 0}, {3, 3, 6}, {0, 0, 6}, {1, 0, 0}} {
		g.noteClaim(c.claimed, c.forBatches)
		if n := g.seats(); n != c.want {
			t.Errorf("after a claim of %d, %d for batches: %d seats, want %d", c.claimed, c.forBatches, n, c.want)
		}
	}
}

// A claim has no answer, and commits later. The queue has work for a long time, and still looks for jobs of that claim
// each second:
//
//	claim 1     no answer …        commits
//	drain                claim 2        claim 3   claim 4 …
//	orphans          look                   look        look
func TestABusyQueueLooksForJobsOfALostClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tenant outbox.ID
		key    string
	}{"root": {outbox.RootTenant, ""}, "root, keyed": {outbox.RootTenant, "k"}, "tenant": {numbered(1), ""}, "tenant, keyed": {numbered(1), "k"}} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, 64, func(context.Context, *outbox.Job[tiny]) error { return nil }, Config{}, func(r rig) {
				failed := false
				r.set(func() {
					r.take = func(claimRequest) time.Duration { return time.Second }
					r.refuse = func(claimRequest) error {
						if !failed {
							failed = true
							return context.DeadlineExceeded
						}
						return nil
					}
				})
				r.addKeyed(c.tenant, 14_000, 0, c.key)
				r.capacity.Poke()
				r.sleep(10 * time.Second)
				if r.waiting() == 0 {
					t.Fatal("the drain is over: the test proves nothing")
				}
				looks := 0
				r.set(func() { looks = r.orphans })
				if looks < 7 {
					t.Errorf("it has looked %d times in 10 s", looks)
				}
				r.sleep(time.Minute)
			})
		})
	}
}

// Only handlers that were called show how long jobs take: with a mean of nothing, the queue would claim as far ahead as
// it may.
func TestTheMeanIsOfHandlersThatWereCalled(t *testing.T) {
	q := idleQueue(t, nil)
	for _, together := range []bool{false, true} {
		a := &attempt{job: newJob(tiny{}.Kind(), outbox.RootTenant, 0, ""), route: q.routes[tiny{}.Kind()]}
		a.lease.End(ErrCancelled)
		if together {
			a.batch = &batch{attempts: []*attempt{a}}
		}
		carryOut(q.common, a, func(took time.Duration, _ bool) {
			q.capacity.inHand.Add(1)
			q.capacity.finished(took)
		})
		if mean := q.capacity.meanWork.Load(); mean != 0 || q.capacity.inHand.Load() != 0 {
			t.Errorf("a handler that was not called counts as %s, and %d jobs are in hand", time.Duration(mean), q.capacity.inHand.Load())
		}
	}
	inMemory(t, 1, func(context.Context, *outbox.Job[tiny]) error {
		time.Sleep(time.Minute)
		runtime.Goexit()
		return nil
	}, Config{}, func(r rig) {
		r.add(outbox.RootTenant, 1, 0)
		r.capacity.Poke()
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if mean := time.Duration(r.capacity.meanWork.Load()); mean != time.Minute {
			t.Errorf("a handler that ended its goroutine after a minute counts as %s", mean)
		}
	})
}

// overclaim is a claim that leases more jobs than it was asked for.
type overclaim struct{ claimed []*attempt }

func (o overclaim) claim(context.Context, querier, claimRequest) *claimBatch {
	return &claimBatch{claimed: o.claimed}
}

// A claim leases more jobs than there is room for. None of them starts: they are looked for and given back, and the
// next claims begin where this one did.
func TestAClaimOfTooManyJobsIsGivenBack(t *testing.T) {
	q := idleQueue(t, nil)
	job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
	q.claims = overclaim{[]*attempt{{job: job}, {job: newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")}}}
	p := q.sched.Plan(time.Now(), scheduler.Places{Room: 1, Capacity: 1}, nil)
	if n, err := q.claim(t.Context(), p, nil); n != 0 || err == nil {
		t.Errorf("%d jobs of too many are taken, %v", n, err)
	}
	if !q.reserved.mayHaveOrphans(time.Now()) || q.capacity.inHand.Load() != 0 || q.leases.Count() != 0 {
		t.Error("nobody gives the jobs back")
	}
	if at := p.Plain[0].Cursors[0].At; at != (scheduler.Position{}) {
		t.Errorf("the next claim begins at %v", at)
	}
}
