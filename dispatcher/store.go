package dispatcher

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// store stores outcomes, each kind with a statement of its own. If a statement does not match an attempt, its job was
// cancelled, has reached its deadline, or has lost its lease.
type store struct {
	*process
	db       settleStatements
	followed func(context.Context, []engine.Success) ([]pgtype.UUID, error) // stores successes with their follow-ups
	pokeAll  func()                                                         // makes all queues of this process look
	peers    *notifier
}

// settleStatements lists the statements of a store, except outbox.SettleSucceeded.
type settleStatements interface {
	SettleInPlace(context.Context, sqlgen.SettleInPlaceParams) ([]pgtype.UUID, error)
	SettleResultsInPlace(context.Context, sqlgen.SettleResultsInPlaceParams) ([]pgtype.UUID, error)
	SettleStreamedInPlace(context.Context, sqlgen.SettleStreamedInPlaceParams) ([]pgtype.UUID, error)
	SettleSucceeded(context.Context, sqlgen.SettleSucceededParams) ([]pgtype.UUID, error)
	SettleUnfinished(context.Context, sqlgen.SettleUnfinishedParams) ([]pgtype.UUID, error)
	SettleUnavailable(context.Context, sqlgen.SettleUnavailableParams) ([]sqlgen.SettleUnavailableRow, error)
	CloseAttempts(context.Context, sqlgen.CloseAttemptsParams) ([]sqlgen.CloseAttemptsRow, error)
	FindLocked(ctx context.Context, ids []pgtype.UUID) ([]pgtype.UUID, error)
	EnsureDays(ctx context.Context, days int32) (int32, error)
}

// outcomeStatements lists the statements that store outcomes, in the order in which they store those of a batch.
var outcomeStatements = [...]storeFunc{(*store).storeSucceeded, (*store).storeFollowed, (*store).storeUnfinished, (*store).storeUnavailable}

type storeFunc func(*store, context.Context, []*attempt) ([]pgtype.UUID, error)

// statementFor returns the index in outcomeStatements of the statement that stores the outcome.
func statementFor(a *attempt) int {
	switch {
	case a.outcome.OutageLimit > 0:
		return 3
	case a.outcome.Status != outbox.Succeeded:
		return 2
	case a.follows:
		return 1
	}
	return 0
}

func byID(a, b *attempt) int { return bytes.Compare(a.job.ID[:], b.job.ID[:]) }

// storeSucceeded first stores the successes whose rows are where their claims left them, which costs the server less
// than finding the rows by id, and then the others.
func (s *store) storeSucceeded(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	stored, left, err := s.storeInPlace(ctx, batch)
	if err != nil {
		return nil, fmt.Errorf("settle %d succeeded jobs: %w", len(batch), err)
	}
	if len(left) > 0 {
		p := successes(left)
		others, err := s.db.SettleSucceeded(ctx, sqlgen.SettleSucceededParams{Ids: p.Ids, Epochs: p.Epochs, Results: p.Results})
		if err != nil {
			return nil, fmt.Errorf("settle %d succeeded jobs: %w", len(left), err)
		}
		stored = append(stored, others...)
	}
	return s.closeCalledOff(ctx, batch, stored)
}

// successes returns the batch as parameters of the statements for successes.
func successes(batch []*attempt) sqlgen.SettleResultsInPlaceParams {
	p := sqlgen.SettleResultsInPlaceParams{
		Places:  make([]pgtype.TID, len(batch)),
		Ids:     make([]pgtype.UUID, len(batch)),
		Epochs:  make([]int64, len(batch)),
		Results: make([][]byte, len(batch)),
	}
	for i, a := range batch {
		p.Places[i], p.Ids[i], p.Epochs[i], p.Results[i] = a.place, pgvalue.UUID(a.job.ID), a.job.Epoch, a.job.Result
	}
	return p
}

func (s *store) storeUnfinished(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	stored, err := s.db.SettleUnfinished(ctx, unfinishedParams(s.worker, batch))
	if err != nil {
		return nil, fmt.Errorf("settle %d unfinished jobs: %w", len(batch), err)
	}
	return s.closeCalledOff(ctx, batch, stored)
}

func unfinishedParams(worker string, batch []*attempt) sqlgen.SettleUnfinishedParams {
	p := sqlgen.SettleUnfinishedParams{Worker: worker, Traces: spansOf(batch)}
	for _, a := range batch {
		o := a.outcome
		p.Ids = append(p.Ids, pgvalue.UUID(a.job.ID))
		p.Epochs = append(p.Epochs, a.job.Epoch)
		p.Statuses = append(p.Statuses, string(o.Status))
		p.Delays = append(p.Delays, pgtype.Interval{Microseconds: o.Delay.Microseconds(), Valid: !o.KeepDue})
		p.ErrorCodes = append(p.ErrorCodes, o.Code)
		p.ErrorMessages = append(p.ErrorMessages, o.Message)
		p.Stacks = append(p.Stacks, o.Stack)
		p.Fingerprints = append(p.Fingerprints, fingerprintOf(a))
	}
	return p
}

// storeInPlace stores the successes of the batch whose rows are where their claims left them, and returns the others.
// It marks each attempt that it stores as stored: a later step may fail, and the whole batch be tried again.
//
// The batch is sorted by id (see settle), and so are the attempts left. Streamed jobs have a statement of their own, so
// that other jobs do not pay for events.
func (s *store) storeInPlace(ctx context.Context, batch []*attempt) (stored []pgtype.UUID, left []*attempt, err error) {
	plain, streamed := make([]*attempt, 0, len(batch)), []*attempt(nil)
	now := time.Now()
	for _, a := range batch {
		switch {
		case a.stored:
		case !unmoved(a, now, s.leaseTTL):
			left = append(left, a)
		case a.streamed && len(a.job.Result) <= maxStreamedResult:
			streamed = append(streamed, a)
		default:
			plain = append(plain, a)
		}
	}
	if len(plain) > 0 {
		stored, err = s.settleInPlace(ctx, plain)
		left = append(left, noteStored(plain, stored)...)
	}
	if len(streamed) > 0 && err == nil {
		var others []pgtype.UUID
		others, err = s.db.SettleStreamedInPlace(ctx, sqlgen.SettleStreamedInPlaceParams(successes(streamed)))
		left = append(left, noteStored(streamed, others)...)
		stored = append(stored, others...)
	}
	slices.SortFunc(left, byID)
	return stored, left, err
}

// noteStored marks the attempts of the batch that are stored, and returns the others.
func noteStored(batch []*attempt, stored []pgtype.UUID) (left []*attempt) {
	if len(stored) == len(batch) {
		for _, a := range batch {
			a.stored = true
		}
		return nil
	}
	settled := idSet(stored)
	for _, a := range batch {
		if a.stored = settled[a.job.ID]; !a.stored {
			left = append(left, a)
		}
	}
	return left
}

// maxStreamedResult is how many bytes of a result fit into an event in any encoding. A job with a larger result is left
// to stream_job, which measures the event.
const maxStreamedResult = 1 << 20

// settleInPlace passes a batch without results as a list, which is faster, and gives up if another transaction keeps
// one of the rows locked:
//
//	ours, as a list    r, which lies before q: settled
//	                           an operator, by their ids: q: locked; r: waits for us
//	ours, as a list    q: would wait for the operator             → deadlock
//
// The operator's statement is an explicit request, and ours can be repeated in the order of the ids. So ours gives up,
// long before Postgres looks for deadlocks.
func (s *store) settleInPlace(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	p := successes(batch)
	if slices.ContainsFunc(p.Results, func(result []byte) bool { return result != nil }) {
		return s.db.SettleResultsInPlace(ctx, p)
	}
	stored, err := s.db.SettleInPlace(ctx, sqlgen.SettleInPlaceParams{Places: p.Places, Ids: p.Ids, Epochs: p.Epochs})
	if pgsession.State(err) == pgsession.LockNotAvailable {
		return nil, nil // the transaction that has one row may wait for another: leave all
	}
	return stored, err
}

// unmoved reports whether the job's row should still be where its claim left it. An extension of the lease moves the
// row, and is due after a third of the lease's time.
func unmoved(a *attempt, now time.Time, leaseTTL time.Duration) bool {
	return a.place.Valid && now.Sub(a.claimed) < leaseTTL/4
}

// storeFollowed settles jobs as succeeded together with their follow-ups, and wakes the dispatchers for the follow-ups.
func (s *store) storeFollowed(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	jobs := make([]engine.Success, len(batch))
	for i, a := range batch {
		jobs[i] = engine.Success{ID: pgvalue.UUID(a.job.ID), Epoch: a.job.Epoch, Result: a.job.Result, FollowUps: engine.Of(a.job).FollowUps.Rows()}
	}
	stored, err := s.followed(ctx, jobs)
	if err != nil {
		return nil, fmt.Errorf("settle %d succeeded jobs with follow-ups: %w", len(batch), err)
	}
	// Wake them also when nothing matched: an earlier try may have committed before its connection broke, and nobody
	// was woken for that.
	s.pokeAll()
	s.peers.notify()
	return s.closeCalledOff(ctx, batch, stored)
}

// storeUnavailable stores outages. The database knows how long each outage has lasted, and returns the new status of
// each job.
func (s *store) storeUnavailable(ctx context.Context, batch []*attempt) ([]pgtype.UUID, error) {
	u := unfinishedParams(s.worker, batch)
	p := sqlgen.SettleUnavailableParams{
		Worker: u.Worker, Ids: u.Ids, Epochs: u.Epochs, Statuses: u.Statuses, Delays: u.Delays,
		ErrorCodes: u.ErrorCodes, ErrorMessages: u.ErrorMessages, Stacks: u.Stacks, Fingerprints: u.Fingerprints, Traces: u.Traces,
	}
	for _, a := range batch {
		p.OutageLimits = append(p.OutageLimits, pgvalue.Interval(a.outcome.OutageLimit))
		p.Waits = append(p.Waits, pgtype.Interval{Microseconds: a.outcome.Wait.Microseconds(), Valid: a.outcome.Wait > 0})
	}
	rows, err := s.db.SettleUnavailable(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("settle %d jobs of an outage: %w", len(batch), err)
	}
	became := make(map[[16]byte]outbox.Status, len(rows))
	stored := make([]pgtype.UUID, len(rows))
	for i, row := range rows {
		stored[i], became[row.ID.Bytes] = row.ID, outbox.Status(row.Status)
	}
	for _, a := range batch {
		if status, ok := became[a.job.ID]; ok {
			a.outcome.Status, a.outcome.KeepDue = status, status == outbox.Dead
		}
	}
	return s.closeCalledOff(ctx, batch, stored)
}

// fingerprintOf returns the fingerprint of a failure that waits for an operator, or "" for other outcomes.
func fingerprintOf(a *attempt) string {
	if a.outcome.Status != outbox.Failed && a.outcome.Status != outbox.Dead {
		return ""
	}
	return fingerprint.Of(a.job.Kind, a.outcome.Code, a.outcome.Message)
}

// closeCalledOff handles attempts that a settling statement did not match. If a job was cancelled or its deadline has
// come, closeCalledOff closes it as cancelled or expired and counts it as stored. It uses a statement of its own, so
// that other jobs pay nothing for it. Others may act between the two statements, and the fence decides: if a reaper
// closes the job first, this attempt has lost its lease; if this process dies here, the request stays, and the reaper
// carries it out when the lease lapses.
//
//	settle (id, epoch)       refused: cancelled
//	                         reaper, deadline: closed as expired, epoch + 1
//	close (id, epoch)        no row: the lease is lost
func (s *store) closeCalledOff(ctx context.Context, batch []*attempt, stored []pgtype.UUID) ([]pgtype.UUID, error) {
	if len(stored) == len(batch) {
		return stored, nil
	}
	settled := idSet(stored)
	for _, a := range batch {
		if a.stored && !settled[a.job.ID] { // by an earlier try, whose second half failed
			settled[a.job.ID] = true
			stored = append(stored, pgvalue.UUID(a.job.ID))
		}
		a.stored = settled[a.job.ID]
	}
	refused := map[pgtype.UUID]*attempt{}
	p := sqlgen.CloseAttemptsParams{Worker: s.worker}
	for _, a := range batch {
		id := pgvalue.UUID(a.job.ID)
		if a.stored || !a.mayBeCalledOff() {
			continue
		}
		refused[id] = a
		p.Ids = append(p.Ids, id)
		p.Epochs = append(p.Epochs, a.job.Epoch)
		p.ErrorCodes = append(p.ErrorCodes, a.outcome.Code)
		p.ErrorMessages = append(p.ErrorMessages, a.outcome.Message)
		p.Stacks = append(p.Stacks, a.outcome.Stack)
	}
	if len(refused) == 0 {
		return stored, nil
	}
	closed, err := s.db.CloseAttempts(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("close %d jobs that were called off: %w", len(refused), err)
	}
	for _, row := range closed {
		refused[row.ID].outcome.Status = outbox.Status(row.Outcome)
		stored = append(stored, row.ID)
	}
	return stored, nil
}

// ensureDays creates the partition of today, which no reaper has created in time.
func (s *store) ensureDays() {
	ctx, cancel := bounded(context.Background())
	defer cancel()
	if _, err := s.db.EnsureDays(ctx, 1); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "partitions not created", slog.Any("err", err))
	}
}
