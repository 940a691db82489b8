package dispatcher

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

const (
	settlers    = 2 // one gathers while the other waits for the database
	settleBatch = 2000
	settleBytes = 16 << 20 // of payloads and results, so that the statement fits into its time
	settleDelay = 2 * time.Millisecond
	// While a batch is under way, the next one goes on growing for this long: a
	// large batch costs the server a fifth less a job than a small one.
	settlePatience = 8 * time.Millisecond
)

// settler stores the outcomes of attempts, and has everybody told of them whom they concern.
//
// Without its batches (row B1 of the benchmarks) a settlement costs the server several times as much; what they make
// worse is a lone job's way into the history, by settleDelay.
type settler struct {
	*process
	db       settleStatements
	followed func(context.Context, []*outbox.Claimed) ([]outbox.ID, error) // stores successes together with their follow-ups
	leases   *leases
	promoter *promoter
	waiters  *notifier // of those who wait for jobs: one has ended
	peers    *notifier // of the other processes: there may be jobs for them
	pokeAll  func()    // has every queue of this process look for jobs

	ended    chan *attempt // finished attempts
	refused  chan *attempt // outcomes that the database refuses for now
	failures outage.Flood  // of log lines

	gathering sync.Mutex   // held by the settling goroutine that gathers
	storing   atomic.Int32 // batches under way
}

// settleStatements are those of a settler, without outbox.SettleSucceeded.
type settleStatements interface {
	SettleInPlace(context.Context, sqlgen.SettleInPlaceParams) ([]pgtype.UUID, error)
	SettleResultsInPlace(context.Context, sqlgen.SettleResultsInPlaceParams) ([]pgtype.UUID, error)
	SettleSucceeded(context.Context, sqlgen.SettleSucceededParams) ([]pgtype.UUID, error)
	SettleUnfinished(context.Context, sqlgen.SettleUnfinishedParams) ([]pgtype.UUID, error)
	SettleUnavailable(context.Context, sqlgen.SettleUnavailableParams) ([]sqlgen.SettleUnavailableRow, error)
	CloseAttempts(context.Context, sqlgen.CloseAttemptsParams) ([]sqlgen.CloseAttemptsRow, error)
	FindSucceeded(ctx context.Context, ids []pgtype.UUID, epochs []int64) ([]pgtype.UUID, error)
	EnsureHistory(ctx context.Context, days int32) (int32, error)
}

func newSettler(p *process, db settleStatements, leases *leases, promoter *promoter) *settler {
	s := &settler{
		process: p, db: db, leases: leases, promoter: promoter,
		ended: make(chan *attempt, 2*settleBatch), refused: make(chan *attempt, settleBatch),
	}
	s.failures.Summary = s.sumUpFailures
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
	batch := append(make([]*attempt, 0, settleBatch), first)
	started, size := time.Now(), first.size()
	timer.Reset(settleDelay)
	for len(batch) < settleBatch && size < settleBytes {
		select {
		case a, open := <-s.ended:
			if !open {
				return batch
			}
			batch = append(batch, a)
			size += a.size()
		case <-timer.C:
			if s.storing.Load() == 0 || time.Since(started) >= settlePatience {
				return batch
			}
			timer.Reset(settleDelay / 2)
		}
	}
	return batch
}

// settle stores every outcome of the batch, however long the database is
// away: nothing is given up while the process lives. The leases are extended
// meanwhile by nobody who could not reach the database either; what lapses is
// refused by the fence.
//
// Every statement that waits for the rows of several jobs waits for them in the
// order of their ids (but for one that gives up: settleInPlace). Also one whose leases were lost locks what it looks at, because
// Postgres locks a row before it judges its newest version, so two settlements of the
// same two jobs could otherwise wait for each other:
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
		s.store(group, outcomeStatements[i])
	}
}

// outcomeStatements are those by which outcomes are stored, in the order in which those of a batch are.
var outcomeStatements = [...]storeFunc{(*settler).storeSucceeded, (*settler).storeFollowed, (*settler).storeUnfinished, (*settler).storeUnavailable}

type storeFunc func(*settler, context.Context, []*attempt) ([]pgtype.UUID, error)

// statementFor is which of the statements stores the outcome.
func statementFor(a *attempt) int {
	switch {
	case a.outcome.outageLimit > 0:
		return 3
	case a.outcome.status != outbox.Succeeded:
		return 2
	case a.follows:
		return 1
	}
	return 0
}

func byID(a, b *attempt) int { return bytes.Compare(a.job.ID[:], b.job.ID[:]) }

// store retries until the statement goes through or the process is told to stop
// waiting. What the database refuses because of a row is taken apart, so that one
// job cannot hold up the others; what does not go through for another reason (no
// answer in time, a message too large) is tried in halves.
func (s *settler) store(batch []*attempt, statement storeFunc) {
	var retry backoff.Backoff
	for tries := 1; len(batch) > 0; tries++ {
		ctx, cancel := bounded(context.Background())
		stored, err := statement(s, ctx, batch)
		cancel()
		if err == nil {
			s.settled(batch, stored, tries > 1)
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
			s.ensureHistory()
		case pgsession.RefusesTheRow(err) && len(batch) == 1:
			s.storeRefused(batch[0], statement, err)
			return
		case pgsession.RefusesTheRow(err):
			for i := range batch {
				s.store(batch[i:i+1], statement)
			}
			return
		case tries > 1 && len(batch) > 1 && !pgsession.IsUnreachable(err):
			s.store(batch[:len(batch)/2], statement)
			s.store(batch[len(batch)/2:], statement)
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

// storeRefused deals with one outcome that the database refuses. A row that is
// locked will be free some day, and what a trigger refuses it may take tomorrow. A
// success that can never be stored as it is becomes failed, without its result and
// its follow-ups: the job waits for a person, with the reason, and when it is run
// again its handler asks for both again. Of other outcomes only the error can be at
// fault: a database whose encoding is not UTF-8 takes it in ASCII. Nothing is lost in
// silence.
func (s *settler) storeRefused(a *attempt, statement storeFunc, err error) {
	switch {
	case !pgsession.IsUnacceptable(err):
		s.refused <- a // still held: its lease goes on
	case a.outcome.status == outbox.Succeeded:
		code := codes.ResultNotStored
		if a.follows { // one of these, or the result: the message tells
			code = codes.FollowUpsNotStored
		}
		a.err = Discard(&codedError{code, err})
		a.job.Result = nil
		a.outcome = decide(a.job, a.route.config.Retry, a.err, nil)
		s.store([]*attempt{a}, (*settler).storeUnfinished)
	case a.outcome.spellInASCII():
		s.store([]*attempt{a}, statement)
	default:
		s.refused <- a
	}
}

// ensureHistory makes the partition of today: no reaper did in time.
func (s *settler) ensureHistory() {
	ctx, cancel := bounded(context.Background())
	defer cancel()
	if _, err := s.db.EnsureHistory(ctx, 1); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "history partition not created", slog.Any("err", err))
	}
}

// settled tells everybody of outcomes that a statement has stored, or found to be stored or lost already.
func (s *settler) settled(batch []*attempt, stored []pgtype.UUID, retried bool) {
	s.health.OK()
	s.report(batch, stored, retried)
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
				s.log.LogAttrs(s.jobs, slog.LevelError, "outcomes not stored: the jobs will run again", slog.Int("jobs", len(waiting)))
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
	stored, err := outcomeStatements[statementFor(a)](s, ctx, []*attempt{a})
	if err != nil {
		if !pgsession.RefusesTheRow(err) {
			s.health.Failed(err)
		}
		return err
	}
	s.settled([]*attempt{a}, stored, true)
	return nil
}
