package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

const (
	settlers    = 2 // one gathers while the other waits for the database
	settleDelay = 2 * time.Millisecond
)

// settler stores the outcomes of attempts, and notifies those whom they concern.
//
// Without its batches (row B1 of the benchmarks) a settlement costs the server several times as much; what they make
// worse is a lone job's way into the history, by settleDelay.
type settler struct {
	*process
	statements *store
	reporter   *reporter
	leases     *leases
	promoter   *promoter

	ended   chan *attempt // finished attempts
	refused chan *attempt // outcomes that the database refuses for now

	gathering sync.Mutex   // held by the settling goroutine that gathers
	storing   atomic.Int32 // batches under way
}

func newSettler(p *process, statements *store, reporter *reporter, leases *leases, promoter *promoter) *settler {
	return &settler{
		process: p, statements: statements, reporter: reporter, leases: leases, promoter: promoter,
		ended: make(chan *attempt, 2*maxBatch), refused: make(chan *attempt, maxBatch),
	}
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

// gather waits for outcomes and returns a batch that is full or has waited long
// enough; an empty one at the end. One settler gathers at a time: two that share
// the stream would send two small batches instead of a large one.
func (s *settler) gather(timer *time.Timer) []*attempt {
	s.gathering.Lock()
	defer s.gathering.Unlock()
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
			// While a batch is under way, the next one goes on growing: a large batch costs the server a
			// fifth less a job than a small one.
			if s.storing.Load() == 0 || time.Since(started) >= 4*settleDelay {
				return batch
			}
			timer.Reset(settleDelay / 2)
		}
	}
	return batch
}

// settle stores every outcome of the batch, however long the database is
// away: nothing is given up while the process lives. While the database is unreachable
// nobody extends the leases either; a job whose lease lapsed is refused by the fence.
//
// Every statement that waits for the rows of several jobs waits for them in the
// order of their ids (but for one that gives up: settleInPlace). Also one whose leases
// were lost locks what it looks at, because Postgres locks a row before it judges its
// newest version, so two settlements of the same two jobs could otherwise wait for each
// other:
//
//	ours     snapshot: q and r are ours
//	                      reaper, another's claim: q and r are another's
//	ours     q: locked, not ours
//	                      another's settlement: r settled; q: waits for us
//	ours     r: waits for the other                                 → deadlock
func (s *settler) settle(batch []*attempt) {
	slices.SortFunc(batch, byID)
	s.metrics.settleBatch.Observe(float64(len(batch)))
	var groups [len(outcomeStatements)][]*attempt
	for _, a := range batch {
		i := statementFor(a)
		groups[i] = append(groups[i], a)
	}
	for i, group := range groups {
		s.store(group, outcomeStatements[i], false)
	}
}

// store retries until the statement goes through or the process is to stop
// waiting. What the database refuses because of a row is taken apart, so that one
// job cannot hold up the others; what does not go through for another reason (no
// answer in time, a message too large) is tried in halves. retried says that there were
// tries before, which may have stored some of the batch without an answer.
func (s *settler) store(batch []*attempt, statement storeFunc, retried bool) {
	var retry backoff.Backoff
	for tries := 1; len(batch) > 0; tries++ {
		retried = retried || tries > 1
		ctx, cancel := bounded(context.Background())
		stored, err := statement(s.statements, ctx, batch)
		cancel()
		if err == nil {
			s.settled(batch, stored, retried)
			return
		}
		if pgsession.RefusesTheRow(err) { // the row's fault, not the database's
			s.log.LogAttrs(ctx, slog.LevelWarn, "settle failed", slog.Int("jobs", len(batch)), slog.Any("err", err))
		} else {
			s.health.Failed(err)
			s.health.Complain(ctx, "settle failed", err, slog.Int("jobs", len(batch)))
		}
		switch {
		case pgsession.IsNoPartition(err):
			s.statements.ensureDays()
		case pgsession.RefusesTheRow(err) && len(batch) == 1:
			s.storeRefused(batch[0], statement, err, retried)
			return
		case pgsession.IsLockedOut(err) && s.setLockedAside(&batch):
			continue // with the others
		case pgsession.RefusesTheRow(err):
			for i := range batch {
				s.store(batch[i:i+1], statement, retried)
			}
			return
		case tries > 1 && len(batch) > 1 && !pgsession.IsUnreachable(err):
			s.store(batch[:len(batch)/2], statement, retried)
			s.store(batch[len(batch)/2:], statement, retried)
			return
		}
		if s.phase.isCutOff() && tries >= 3 { // shutting down, the grace period is over: the leases lapse
			s.log.LogAttrs(ctx, slog.LevelError, "outcomes not stored: the jobs will run again", slog.Int("jobs", len(batch)))
			s.leases.remove(batch)
			return
		}
		s.health.rest(retry.Next(), err)
	}
}

// setLockedAside leaves those of the batch whose rows somebody else has locked to settleRefused, and keeps the others.
// It reports whether there were any. To find them out one by one would take a lock timeout each, for which everybody's
// outcomes waited.
func (s *settler) setLockedAside(batch *[]*attempt) bool {
	if len(*batch) == 1 {
		return false // storeRefused
	}
	ctx, cancel := bounded(context.Background())
	defer cancel()
	ids := make([]pgtype.UUID, len(*batch))
	for i, a := range *batch {
		ids[i] = pgvalue.UUID(a.job.ID)
	}
	locked, err := s.statements.db.FindLocked(ctx, ids)
	if err != nil || len(locked) == 0 {
		return false
	}
	var others []*attempt
	for i, a := range *batch {
		if slices.Contains(locked, ids[i]) {
			s.refused <- a
		} else {
			others = append(others, a)
		}
	}
	*batch = others
	return true
}

// storeRefused deals with one outcome that the database refuses. A row that is
// locked will be free some day, and what a trigger refuses it may take tomorrow. A
// success that can never be stored as it is becomes failed, without its result and
// its follow-ups: the job waits for a person, with the reason, and when it is run
// again its handler asks for both again. Of other outcomes only the error can be at
// fault: a database whose encoding is not UTF-8 takes it in ASCII. Nothing is lost in
// silence.
func (s *settler) storeRefused(a *attempt, statement storeFunc, err error, retried bool) {
	switch {
	case !pgsession.IsUnacceptable(err):
		s.refused <- a // still held: its lease goes on
	case a.outcome.Status == outbox.Succeeded:
		code := codes.ResultNotStored
		if a.follows { // one of these, or the result: the message says
			code = codes.FollowUpsNotStored
		}
		a.err = Discard(outcome.WithCode(code, err))
		a.job.Result = nil
		a.outcome = outcome.Discard(a.job, a.err)
		s.store([]*attempt{a}, (*store).storeUnfinished, retried)
	case a.outcome.SpellInASCII():
		s.store([]*attempt{a}, statement, retried)
	default:
		s.refused <- a
	}
}

// settled notifies those concerned of outcomes that a statement has stored, or found to be stored or lost already.
func (s *settler) settled(batch []*attempt, stored []pgtype.UUID, retried bool) {
	s.health.OK()
	s.reporter.report(batch, stored, retried)
	s.leases.remove(batch)
	s.promoter.left(batch)
	for _, a := range batch {
		a.waker.jobEnded()
	}
}

// settleRefused stores, one by one, the outcomes that the database refuses: most
// of them because somebody keeps the row locked. They hold up nobody but each other.
// When all jobs are over nothing else is left to do: then what is refused for another
// reason gets three more tries, and a lock is waited for until the grace period is over.
func (s *settler) settleRefused(afterJobs context.Context) {
	var waiting []*attempt
	var retry backoff.Backoff
	for in, last := s.refused, 0; in != nil || len(waiting) > 0; {
		if len(waiting) == 0 {
			if a, open := <-in; open {
				waiting = append(waiting, a)
			} else {
				in = nil
			}
			continue
		}
		waiting, in = takeAll(waiting, in)
		kept, mayPass := waiting[:0], false
		for _, a := range waiting {
			if err := s.storeRefusedAgain(a); err != nil {
				kept = append(kept, a)
				mayPass = mayPass || pgsession.IsLockedOut(err) || !pgsession.RefusesTheRow(err)
			}
		}
		waiting = kept
		if len(waiting) == 0 {
			retry.Reset()
			continue
		}
		if s.phase.isCutOff() || in == nil && !mayPass {
			if last++; last >= 3 {
				s.log.LogAttrs(s.handlerContext, slog.LevelError, "outcomes not stored: the jobs will run again", slog.Int("jobs", len(waiting)))
				s.leases.remove(waiting)
				waiting = nil
				continue
			}
		}
		if retry.Wait(afterJobs) != nil {
			retry, afterJobs = backoff.Backoff{}, context.Background()
		}
	}
}

// takeAll adds what the channel holds; nil instead of one that is closed.
func takeAll(waiting []*attempt, in chan *attempt) ([]*attempt, chan *attempt) {
	for in != nil {
		select {
		case a, open := <-in:
			if !open {
				return waiting, nil
			}
			waiting = append(waiting, a)
		default:
			return waiting, in
		}
	}
	return waiting, in
}

// storeRefusedAgain returns why the outcome is not stored, nil if it is.
func (s *settler) storeRefusedAgain(a *attempt) error {
	ctx, cancel := bounded(context.Background())
	defer cancel()
	stored, err := outcomeStatements[statementFor(a)](s.statements, ctx, []*attempt{a})
	if err != nil {
		if !pgsession.RefusesTheRow(err) {
			s.health.Failed(err)
		}
		return err
	}
	s.settled([]*attempt{a}, stored, true)
	return nil
}
