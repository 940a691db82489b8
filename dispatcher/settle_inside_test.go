package dispatcher

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// unanswered stores successes the first time, without an answer, and refuses the second try because of a lock. The lock
// is gone before anybody looks for it, and from then on nothing is left to settle.
type unanswered struct {
	settleStatements
	tries  int
	stored []pgtype.UUID
}

func (u *unanswered) SettleSucceeded(_ context.Context, p sqlgen.SettleSucceededParams) ([]pgtype.UUID, error) {
	switch u.tries++; u.tries {
	case 1:
		u.stored = p.Ids
		return nil, context.DeadlineExceeded
	case 2:
		return nil, &pgconn.PgError{Code: pgsession.LockNotAvailable}
	}
	return nil, nil
}

func (u *unanswered) FindLocked(context.Context, []pgtype.UUID) ([]pgtype.UUID, error) {
	return nil, nil
}

func (u *unanswered) CloseAttempts(context.Context, sqlgen.CloseAttemptsParams) ([]sqlgen.CloseAttemptsRow, error) {
	return nil, nil
}

func (u *unanswered) FindEnds(context.Context, []pgtype.UUID, []int64) (ends []sqlgen.FindEndsRow, err error) {
	for _, id := range u.stored {
		ends = append(ends, sqlgen.FindEndsRow{ID: id, Status: string(outbox.Succeeded)})
	}
	return ends, nil
}

func (u *unanswered) StreamRefused(context.Context, sqlgen.StreamRefusedParams) error { return nil }

// idleDispatcher returns a dispatcher of the kind tiny that has no database, and is not run.
func idleDispatcher(t *testing.T) *Dispatcher {
	t.Helper()
	mux := new(Mux)
	mux.HandleRaw(tiny{}.Kind(), ignore)
	d, err := New(nil, mux, Config{})
	if err != nil {
		t.Fatal(err)
	}
	d.compose(t.Context(), nil, nil)
	d.common.health.Leave = func(error) {}
	return d
}

// dividing refuses every batch because of a row, until ctx ends. From then on it does not answer.
type dividing struct {
	settleStatements
	ctx context.Context
}

func (r dividing) SettleSucceeded(ctx context.Context, p sqlgen.SettleSucceededParams) ([]pgtype.UUID, error) {
	if r.ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		return nil, &pgconn.PgError{Code: pgsession.LockNotAvailable}
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (dividing) FindLocked(context.Context, []pgtype.UUID) ([]pgtype.UUID, error) { return nil, nil }

// The time for tries ends, and the database no longer answers, while a large batch is being divided. None of its parts
// waits for an answer of its own: Run would end long after it should.
func TestABatchThatIsBeingDividedIsGivenUpAsAWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := idleDispatcher(t)
		tries, end := context.WithTimeout(context.Background(), time.Second)
		defer end()
		d.common.settling = tries
		d.settler.statements.db = dividing{ctx: tries}
		batch := make([]*attempt, 2000)
		for n := range batch {
			job := newJob(tiny{}.Kind(), numbered(n&1), 0, []string{"", "k"}[n>>1&1])
			batch[n] = &attempt{job: job, route: d.common.routes[tiny{}.Kind()], capacity: &capacity{Waker: wake.New()}, outcome: outcome.Outcome{Status: outbox.Succeeded}}
		}
		began := time.Now()
		if d.settler.store(batch, settlementOf(batch[0]), false) {
			t.Error("reports that the batch is stored")
		}
		if took, most := time.Since(began), time.Second+2*hintTimeout; took > most {
			t.Errorf("took %s, want %s at most", took, most)
		}
		d.settler.reporter.failures.End()
	})
}

// An outcome that a try without an answer has stored is a success, even if a later try was split up.
func TestASettlementThatIsTakenApartKnowsOfTheTryBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := idleDispatcher(t)
		u := new(unanswered)
		d.settler.statements.db, d.settler.reporter.db = u, u
		route := d.common.routes[tiny{}.Kind()]
		var batch []*attempt
		for n := range 8 {
			job := newJob(tiny{}.Kind(), numbered(n&1), 0, []string{"", "k"}[n>>1&1])
			batch = append(batch, &attempt{job: job, route: route, capacity: &capacity{Waker: wake.New()}, outcome: outcome.Outcome{Status: outbox.Succeeded}})
		}
		d.settler.settle(batch)
		if lost, succeeded := counted(t, d.common.metrics.leasesLost), counted(t, route.counts.completed[outbox.Succeeded]); lost != 0 || succeeded != 8 {
			t.Errorf("%v leases are lost, and %v jobs have succeeded; want 0, and 8", lost, succeeded)
		}
	})
}

// lost has lost the lease of every attempt.
type lost struct{ unanswered }

func (*lost) SettleSucceeded(context.Context, sqlgen.SettleSucceededParams) ([]pgtype.UUID, error) {
	return nil, nil
}

// The settlement of a lost attempt locks the job's row until it ends, and refuses the outcome. A claim that comes
// meanwhile passes by the job, which waits again:
//
//	reaper    J is retrying, NOTIFY
//	zombie                            settle: lock J, no match   commit, NOTIFY
//	others                              claim: pass by J                          claim J
//
// So everybody looks again, this process as well.
func TestALostLeaseWakesEverybody(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		for _, key := range []string{"", "k"} {
			mux := new(Mux)
			mux.HandleRaw(tiny{}.Kind(), ignore)
			d, err := New(nil, mux, Config{})
			if err != nil {
				t.Fatal(err)
			}
			d.compose(t.Context(), nil, nil)
			u := new(lost)
			d.settler.statements.db, d.settler.reporter.db = u, u
			a := &attempt{job: newJob(tiny{}.Kind(), tenant, 0, key), route: d.common.routes[tiny{}.Kind()], capacity: &capacity{Waker: wake.New()}, outcome: outcome.Outcome{Status: outbox.Succeeded}}
			d.settler.settle([]*attempt{a})
			if n := counted(t, d.common.metrics.leasesLost); n != 1 {
				t.Fatalf("%v leases are lost, want 1", n)
			}
			if len(d.peers.due) != 1 || a.capacity.Woken() == wake.Nobody {
				t.Errorf("the others are notified: %t, this process looks: %t; want both", len(d.peers.due) == 1, a.capacity.Woken() != wake.Nobody)
			}
		}
	}
}

// counted returns the value of a counter.
func counted(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	m := new(dto.Metric)
	if err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// locked refuses every outcome after a lock timeout, until it is free.
type locked struct {
	settleStatements
	free atomic.Bool
}

func (l *locked) SettleSucceeded(_ context.Context, p sqlgen.SettleSucceededParams) ([]pgtype.UUID, error) {
	if l.free.Load() {
		return p.Ids, nil
	}
	time.Sleep(2 * time.Second)
	return nil, &pgconn.PgError{Code: pgsession.LockNotAvailable}
}

// Refused outcomes wait for each other, and each takes a lock timeout. Many more arrive meanwhile: settlers must not
// wait for them, because all queues wait for the settlers.
func TestSettlersDoNotWaitForAPassOverRefusedOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := idleDispatcher(t)
		db := new(locked)
		d.settler.statements.db = db
		c := &capacity{Waker: wake.New()}
		set := func(n int) {
			for range n {
				job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
				d.settler.setAside(&attempt{job: job, route: d.common.routes[tiny{}.Kind()], capacity: c, outcome: outcome.Outcome{Status: outbox.Succeeded}})
			}
		}
		set(20)
		time.Sleep(time.Second)
		began := time.Now()
		set(maxBatch + 100)
		if waited := time.Since(began); waited > 2*time.Second {
			t.Errorf("a settler waited for %s, want at most a lock timeout", waited)
		}
		db.free.Store(true)
		d.settler.awaitRefused()
		if n := c.refused.Load(); n != 0 {
			t.Errorf("%d outcomes count as refused, want none", n)
		}
	})
}

// A queue claims less when the database refuses outcomes, and nothing when their jobs are as many as a claim may bring.
// Whatever is claimed then would only be refused, too.
func TestRefusedOutcomesTakeRoom(t *testing.T) {
	for name, size := range map[string]int64{"small": 1, "large": maxClaimBytes / 10} {
		c := &capacity{Waker: wake.New(), concurrency: 5000, claimBytes: maxClaimBytes}
		c.meanSize.Store(size)
		most := c.room()
		if want := int(min(maxClaimBytes/size, maxBatch)); most != want {
			t.Errorf("%s jobs: there is room for %d, want %d", name, most, want)
		}
		c.refused.Store(int64(most) - 3)
		if p := c.places(0); p.Room != 3 {
			t.Errorf("%s jobs: all but three are refused, and there is room for %+v", name, p)
		}
		c.refused.Store(int64(most) + 3)
		if p := c.places(0); p.Room != 0 || p.Express > 0 {
			t.Errorf("%s jobs: as many are refused as may be, and there is room for %+v", name, p)
		}
	}
}
