package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

const (
	settlers    = 2 // one gathers while the other waits for the database
	settleDelay = 2 * time.Millisecond
)

// settler stores the outcomes of attempts, and notifies the parts that they concern.
//
// Without batches (row B1 of the benchmarks) a settlement costs the server several times as much. Batches delay a lone
// job's way into the history by settleDelay.
type settler struct {
	*common
	statements *store
	reporter   *reporter
	leases     *lease.Keeper
	promoter   *promote.Promoter

	ended     chan *attempt  // finished attempts
	gathering chan struct{}  // one slot, taken by the settler that gathers
	storing   atomic.Int32   // batches under way
	setAside  func(*attempt) // takes an outcome that the database refuses for now: storeLater, except in an Inline

	// For storeLater.
	afterJobs context.Context // ends when all jobs are over
	later     sync.WaitGroup  // outcomes that wait
	turn      chan struct{}   // one slot, taken by the one whose statement is under way
	givenUp   []*attempt      // guarded by turn
}

func newSettler(p *common, statements *store, reporter *reporter, leases *lease.Keeper, promoter *promote.Promoter) *settler {
	s := &settler{
		common: p, statements: statements, reporter: reporter, leases: leases, promoter: promoter,
		ended: make(chan *attempt, 2*maxBatch), gathering: make(chan struct{}, 1),
		afterJobs: context.Background(), turn: make(chan struct{}, 1),
	}
	s.setAside = s.storeLater
	return s
}

// run stores outcomes in batches until the channel is closed and empty.
func (s *settler) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch := s.gather(timer)
		if len(batch) == 0 {
			return
		}
		s.storing.Add(1)
		s.settle(batch)
		s.storing.Add(-1)
	}
}

// gather waits for outcomes and returns a batch that is full or has waited long enough; at the end it returns an empty
// one. Only one settler gathers at a time: two that share the stream would send two small batches instead of a large
// one.
func (s *settler) gather(timer *time.Timer) []*attempt {
	s.gathering <- struct{}{}
	defer func() { <-s.gathering }()
	first, open := <-s.ended
	if !open {
		return nil
	}
	batch := append(make([]*attempt, 0, maxBatch), first)
	started, size := time.Now(), first.size()
	timer.Reset(settleDelay)
	for len(batch) < maxBatch && size < statementBytes {
		select {
		case a, open := <-s.ended:
			if !open {
				return batch
			}
			batch = append(batch, a)
			size += a.size()
		case <-timer.C:
			// While a batch is under way, the next one keeps growing: a large batch costs the server a fifth less for
			// each job than a small one.
			if s.storing.Load() == 0 || time.Since(started) >= 4*settleDelay {
				return batch
			}
			timer.Reset(settleDelay / 2)
		}
	}
	return batch
}

// settle stores every outcome of the batch, however long the database is unavailable. It drops outcomes only when the
// process stops and its grace period is over (common.settling). While the database is unreachable, leases are not
// extended either; the fence refuses the outcome of a job whose lease lapsed.
//
// The statements return ids, so a batch must not contain two attempts at one job. An attempt that is stuck may lose its
// lease, and this process may run the next attempt while the first one is still under way; they are settled one after
// the other, in any order, because the fence refuses the first.
//
// Every statement that waits for the rows of several jobs locks them in the order of their ids (except one that gives
// up: storeInPlace): "Two settlements of the same jobs" (docs/races.md).
func (s *settler) settle(batch []*attempt) {
	slices.SortFunc(batch, byID)
	s.metrics.settleBatch.Observe(float64(len(batch)))
	var groups [settlements][]*attempt
	var again []*attempt // further attempts at the same jobs
	for i, a := range batch {
		if i > 0 && a.job.ID == batch[i-1].job.ID {
			again = append(again, a)
			continue
		}
		how := settlementOf(a)
		groups[how] = append(groups[how], a)
	}
	for how, group := range groups {
		s.store(group, settlement(how), false)
	}
	if len(again) > 0 {
		s.settle(again)
	}
}

// store retries until the batch is stored or the process must stop waiting. It tries the batch in halves if the
// database refuses it because of a row, so that one job does not block the others, or if the statement fails for
// another reason (no answer in time, a message too large), except after the time for tries: a database that does not
// answer would delay the stop by a statement's time for each part. retried reports that earlier tries may have stored
// some of the batch without an answer. store returns false if it has given up.
func (s *settler) store(batch []*attempt, how settlement, retried bool) bool {
	var retry backoff.Backoff
	for tries := 1; len(batch) > 0; tries++ {
		retried = retried || tries > 1
		ctx, cancel := s.boundSettling()
		err := s.statements.store(ctx, how, batch)
		cancel()
		if err == nil {
			s.settled(batch, retried)
			return true
		}
		retried = retried || !pgsession.ChangedNothing(err)
		refused := s.refuses(how, err)
		if !refused {
			s.health.Failed(err)
			s.health.Complain(ctx, "settle failed", err, slog.Int("jobs", len(batch)))
		} else if len(batch) == 1 { // the row's fault, not the database's
			s.log.LogAttrs(ctx, slog.LevelWarn, "settle failed", slog.Int("jobs", 1),
				slog.String("job_id", batch[0].job.ID.String()), slog.Any("err", err))
		}
		switch {
		case pgsession.IsNoPartition(err) && s.settling.Err() == nil:
			s.statements.ensureDays()
		case refused && len(batch) == 1:
			return s.storeRefused(batch[0], err, retried)
		case pgsession.IsLockedOut(err) && s.setLockedAside(&batch):
			continue // with the others
		case s.settling.Err() != nil && !refused:
			s.drop(batch)
			return false
		case len(batch) > 1 && (refused || tries > 1 && !pgsession.IsUnreachable(err)):
			half := len(batch) / 2
			if !s.store(batch[:half], how, retried) { // each of the others would take as long
				s.drop(batch[half:])
				return false
			}
			return s.store(batch[half:], how, retried)
		}
		s.health.Rest(s.settling, retry.Next(), err)
	}
	return true
}

// refuses reports whether the database refuses some outcomes of a batch, and not every statement that stores such
// outcomes.
func (s *settler) refuses(how settlement, err error) bool {
	return pgsession.RefusesTheRow(err) || pgsession.IsRefusalOf(err, func() error {
		ctx, cancel := s.boundSettling()
		defer cancel()
		return s.statements.store(ctx, how, nil)
	})
}

// drop gives up outcomes at the end of the process: the leases lapse.
func (s *settler) drop(batch []*attempt) {
	if len(batch) == 0 {
		return
	}
	s.log.LogAttrs(s.handlerContext, slog.LevelError, "outcomes not stored: the jobs will run again",
		slog.Int("jobs", len(batch)))
	s.leases.Remove(leasesOf(batch))
}

// setLockedAside sets the jobs of the batch aside whose rows another transaction has locked, and keeps the others. It
// reports whether there were any. Finding them one by one would take a lock timeout each, and all outcomes
// would wait meanwhile.
func (s *settler) setLockedAside(batch *[]*attempt) bool {
	if len(*batch) == 1 {
		return false // storeRefused handles it
	}
	ctx, cancel := s.boundSettling()
	defer cancel()
	ids, _, _ := fencesOf(*batch)
	locked, err := s.statements.db.FindLocked(ctx, ids)
	if err != nil || len(locked) == 0 {
		return false
	}
	var others []*attempt
	for i, a := range *batch {
		if slices.Contains(locked, ids[i]) {
			s.setAside(a)
		} else {
			others = append(others, a)
		}
	}
	*batch = others
	return true
}

// storeRefused handles one outcome that the database refuses. A locked row will become free, and a trigger may accept
// tomorrow what it refuses today: both are tried again later. It returns false if it has given up.
func (s *settler) storeRefused(a *attempt, err error, retried bool) bool {
	if amend(a, err) {
		return s.store([]*attempt{a}, settlementOf(a), retried)
	}
	s.setAside(a)
	return true
}

// amend changes an outcome that can never be stored as it is, so that it can be stored, and reports whether it has
// changed. A success becomes failed, without its result and its follow-ups: the job waits for an operator, with the
// reason, and when it is run again its handler produces both again. In other outcomes only the error can be at fault: a
// database whose encoding is not UTF-8 accepts it in ASCII. Nothing is lost silently.
func amend(a *attempt, err error) (changed bool) {
	switch {
	case !pgsession.IsUnacceptable(err):
		return false
	case a.outcome.Status != outbox.Succeeded:
		return a.outcome.SpellInASCII()
	}
	code := codes.ResultNotStored
	if a.follows { // a follow-up or the result is at fault: the message says which
		code = codes.FollowUpsNotStored
	}
	a.err = Discard(outcome.WithCode(code, err))
	a.job.Result = nil
	a.outcome = outcome.Discard(a.job, a.err)
	return true
}

// settled ends attempts: each outcome is stored, or was found to be stored or lost already.
func (s *settler) settled(batch []*attempt, retried bool) {
	s.health.OK()
	s.reporter.report(batch, retried)
	s.leases.Remove(leasesOf(batch))
	s.leave(batch)
	for _, a := range batch {
		a.capacity.jobEnded()
	}
}

// leave notes the keys of jobs whose attempts have ended, however they were settled: the handler's own transaction may
// have settled the job, or the lease was lost. A job that goes back as it was is itself the next one of its key.
func (s *settler) leave(batch []*attempt) {
	for _, a := range batch {
		if a.job.Key != "" && (a.outcome.Status != outbox.Pending || !a.outcome.KeepDue) {
			s.promoter.Free(promote.Key{Tenant: a.job.Tenant, Queue: a.job.Queue, Name: a.job.Key}, 1)
		}
	}
}

// storeLater stores an outcome that the database refuses for now, most likely because another transaction keeps the row
// locked, in a goroutine of its own. The job is still held, and its lease is extended. Only such outcomes wait for each
// other: a statement may take seconds, so they use one connection. When all jobs are over, an outcome that is refused
// for another reason gets three more tries; a lock is waited for until the grace period is over. capacity.most bounds
// how many outcomes wait.
func (s *settler) storeLater(a *attempt) {
	a.capacity.refused.Add(1)
	s.later.Go(func() {
		var retry backoff.Backoff
		wait := s.afterJobs
		for last := 0; last < 3 && s.settling.Err() == nil; {
			s.turn <- struct{}{}
			err := s.storeRefusedAgain(a)
			if s.afterJobs.Err() != nil && s.refuses(settlementOf(a), err) && !pgsession.IsLockedOut(err) {
				last++
			}
			<-s.turn
			if err == nil {
				a.capacity.refused.Add(-1)
				a.capacity.RoomMade()
				return
			}
			if last < 3 && retry.Wait(wait) != nil {
				retry, wait = backoff.Backoff{}, s.settling
			}
		}
		s.turn <- struct{}{}
		s.givenUp = append(s.givenUp, a)
		<-s.turn
	})
}

// awaitRefused waits until the outcomes that were set aside are stored or given up. Nothing may be set aside after it.
func (s *settler) awaitRefused() {
	s.later.Wait()
	s.drop(s.givenUp)
}

// storeRefusedAgain returns why the outcome is not stored, or nil if it is. What the database says may change: an
// outcome that waited for a lock may turn out to be unacceptable.
func (s *settler) storeRefusedAgain(a *attempt) error {
	for s.settling.Err() == nil {
		ctx, cancel := s.boundSettling()
		err := s.statements.store(ctx, settlementOf(a), []*attempt{a})
		cancel()
		switch {
		case err == nil:
			s.settled([]*attempt{a}, true)
			return nil
		case amend(a, err):
			continue
		case pgsession.IsNoPartition(err):
			s.statements.ensureDays()
		case !s.refuses(settlementOf(a), err):
			s.health.Failed(err)
		}
		s.health.Complain(ctx, "outcome not stored yet", err, slog.String("job_id", a.job.ID.String()))
		return err
	}
	return s.settling.Err()
}
