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
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// store stores outcomes, each kind with a statement of its own. If a statement does not match an attempt, its job was
// cancelled, has reached its deadline, or has lost its lease.
type store struct {
	*common
	db      settleStatements
	conn    outbox.DB // for successes with their follow-ups
	pokeAll func()    // makes all queues of this process look
	peers   *notifier
}

// settleStatements lists the statements of a store, except [engine.SettleSucceeded].
type settleStatements interface {
	SettleInPlace(context.Context, sqlgen.SettleInPlaceParams) ([]pgtype.UUID, error)
	SettleSucceeded(context.Context, sqlgen.SettleSucceededParams) ([]pgtype.UUID, error)
	SettleStreamed(context.Context, sqlgen.SettleStreamedParams) ([]pgtype.UUID, error)
	SettleUnfinished(context.Context, sqlgen.SettleUnfinishedParams) ([]pgtype.UUID, error)
	SettleUnavailable(context.Context, sqlgen.SettleUnavailableParams) ([]sqlgen.SettleUnavailableRow, error)
	CloseAttempts(context.Context, sqlgen.CloseAttemptsParams) ([]sqlgen.CloseAttemptsRow, error)
	FindLocked(ctx context.Context, ids []pgtype.UUID) ([]pgtype.UUID, error)
	EnsureDays(ctx context.Context, days int32) (int32, error)
}

// settlement is a way to store outcomes. Those of a batch are stored in this order.
type settlement int

const (
	success settlement = iota
	successThen
	unfinished
	unavailable
	settlements = iota
)

// settlementOf returns how the outcome of the attempt is stored.
func settlementOf(a *attempt) settlement {
	switch {
	case a.outcome.OutageLimit > 0:
		return unavailable
	case a.outcome.Status != outbox.Succeeded:
		return unfinished
	case a.follows:
		return successThen
	}
	return success
}

// store stores the outcomes of attempts that are settled alike, and marks the attempts whose outcomes are stored. If it
// returns an error, some may be marked, and the batch can be stored again. An empty batch shows whether the statement
// works.
func (s *store) store(ctx context.Context, how settlement, batch []*attempt) error {
	settle := [settlements]func(*store, context.Context, []*attempt) error{
		success:     (*store).storeSucceeded,
		successThen: (*store).storeFollowed,
		unfinished:  (*store).storeUnfinished,
		unavailable: (*store).storeUnavailable,
	}
	if err := settle[how](s, ctx, batch); err != nil {
		return fmt.Errorf("settle %d jobs: %w", len(batch), err)
	}
	return s.closeCalledOff(ctx, unstored(batch))
}

// noteStored marks the attempts that a statement has stored.
func noteStored(batch []*attempt, stored []pgtype.UUID) {
	all, settled := len(stored) == len(batch), map[[16]byte]bool(nil)
	if !all {
		settled = idSet(stored)
	}
	for _, a := range batch {
		a.stored = a.stored || all || settled[a.job.ID]
	}
}

func byID(a, b *attempt) int { return bytes.Compare(a.job.ID[:], b.job.ID[:]) }

// storeSucceeded first stores the successes whose rows are where their claims left them, which costs the server less
// than finding the rows by id, and then the others. Streamed jobs have a statement of their own, so that other jobs do
// not pay for events. A large result is left to stream_job, which measures the event.
func (s *store) storeSucceeded(ctx context.Context, batch []*attempt) error {
	if err := s.storeInPlace(ctx, batch); err != nil {
		return err
	}
	var streamed, others []*attempt
	for _, a := range batch {
		switch {
		case a.stored:
		case a.streamed && len(a.job.Result) <= engine.MaxStreamedResult:
			streamed = append(streamed, a)
		default:
			others = append(others, a)
		}
	}
	if len(streamed) > 0 {
		stored, err := s.db.SettleStreamed(ctx, sqlgen.SettleStreamedParams(successes(streamed)))
		if err != nil {
			return err
		}
		noteStored(streamed, stored)
	}
	if len(others) > 0 || len(batch) == 0 {
		stored, err := s.db.SettleSucceeded(ctx, successes(others))
		if err != nil {
			return err
		}
		noteStored(others, stored)
	}
	return nil
}

func successes(batch []*attempt) (p sqlgen.SettleSucceededParams) {
	p.Ids, p.Epochs, p.Starts = fencesOf(batch)
	p.Results = make([][]byte, len(batch))
	for i, a := range batch {
		p.Results[i] = a.job.Result
	}
	return p
}

// storeInPlace stores the successes without results whose rows are where their claims left them. If another transaction
// keeps one of the rows locked, storeInPlace stores none of them, so that it ends no operator's statement by a deadlock
// (docs/adr/0017-settled-as-a-list.md).
func (s *store) storeInPlace(ctx context.Context, batch []*attempt) error {
	unmoved, now := make([]*attempt, 0, len(batch)), time.Now()
	var p sqlgen.SettleInPlaceParams
	for _, a := range batch {
		if !a.stored && !a.streamed && a.job.Result == nil && a.isUnmoved(now, s.leaseTTL) {
			unmoved, p.Places = append(unmoved, a), append(p.Places, a.rowAt)
		}
	}
	if len(unmoved) == 0 {
		return nil
	}
	p.Ids, p.Epochs, p.Starts = fencesOf(unmoved)
	stored, err := s.db.SettleInPlace(ctx, p)
	if pgsession.State(err) == pgsession.LockNotAvailable {
		return nil // the transaction that has one row may wait for another: leave all
	}
	noteStored(unmoved, stored)
	return err
}

// storeFollowed settles jobs as succeeded together with their follow-ups, and wakes the dispatchers for the follow-ups.
func (s *store) storeFollowed(ctx context.Context, batch []*attempt) error {
	jobs := make([]engine.Success, len(batch))
	for i, a := range batch {
		jobs[i] = engine.Success{
			ID: pgvalue.UUID(a.job.ID), Epoch: a.job.Epoch, StartedAt: pgvalue.TimeOrNull(a.job.StartedAt),
			Result: a.job.Result, FollowUps: engine.InternalOf(a.job).FollowUps.Rows(),
		}
	}
	stored, err := engine.SettleSucceeded(ctx, s.conn, jobs, false)
	if err != nil {
		return err
	}
	noteStored(batch, stored)
	if len(batch) > 0 {
		// Wake them also when nothing matched: an earlier try may have committed before its connection broke, and
		// nobody was woken for that.
		s.pokeAll()
		s.peers.notify()
	}
	return nil
}

func (s *store) storeUnfinished(ctx context.Context, batch []*attempt) error {
	stored, err := s.db.SettleUnfinished(ctx, unfinishedParams(s.worker, batch))
	noteStored(batch, stored)
	return err
}

func unfinishedParams(worker string, batch []*attempt) sqlgen.SettleUnfinishedParams {
	p := sqlgen.SettleUnfinishedParams{Worker: worker, Traces: spansOf(batch)}
	p.Ids, p.Epochs, p.Starts = fencesOf(batch)
	p.ErrorCodes, p.ErrorMessages, p.Stacks = errorsOf(batch)
	for _, a := range batch {
		o := a.outcome
		p.Statuses = append(p.Statuses, string(o.Status))
		p.Delays = append(p.Delays, pgtype.Interval{Microseconds: o.Delay.Microseconds(), Valid: !o.KeepDue})
		mark := ""
		if o.Status == outbox.Failed || o.Status == outbox.Dead { // it waits for an operator
			mark = failureMark(a)
		}
		p.Fingerprints = append(p.Fingerprints, mark)
	}
	return p
}

func errorsOf(batch []*attempt) (codes, messages, stacks []string) {
	for _, a := range batch {
		codes, messages, stacks = append(codes, a.outcome.Code), append(messages, a.outcome.Message),
			append(stacks, a.outcome.Stack)
	}
	return codes, messages, stacks
}

// storeUnavailable stores outages. The database knows how long each outage has lasted, and returns the new status of
// each job.
func (s *store) storeUnavailable(ctx context.Context, batch []*attempt) error {
	u := unfinishedParams(s.worker, batch)
	p := sqlgen.SettleUnavailableParams{
		Worker: u.Worker, Ids: u.Ids, Epochs: u.Epochs, Starts: u.Starts, Statuses: u.Statuses, Delays: u.Delays,
		ErrorCodes: u.ErrorCodes, ErrorMessages: u.ErrorMessages, Stacks: u.Stacks, Fingerprints: u.Fingerprints,
		Traces: u.Traces,
	}
	for _, a := range batch {
		p.OutageLimits = append(p.OutageLimits, pgvalue.Interval(a.outcome.OutageLimit))
		p.Waits = append(p.Waits, pgvalue.IntervalOrNull(a.outcome.Wait))
	}
	rows, err := s.db.SettleUnavailable(ctx, p)
	became := make(map[outbox.ID]outbox.Status, len(rows))
	for _, row := range rows {
		became[row.ID.Bytes] = outbox.Status(row.Status)
	}
	noteStatuses(batch, became)
	return err
}

// noteStatuses marks the attempts that a statement has stored, with the status that each job has got.
func noteStatuses(batch []*attempt, became map[outbox.ID]outbox.Status) {
	for _, a := range batch {
		if status, ok := became[a.job.ID]; ok {
			a.outcome.Status, a.stored = status, true
			// If it is retried, the last attempt is not spent after all.
			a.outcome.KeepDue = a.outcome.KeepDue && status != outbox.Retrying
		}
	}
}

// closeCalledOff handles attempts that a settling statement did not match. If a job was cancelled or its deadline has
// come, closeCalledOff closes it as cancelled or expired, and marks it as stored. It uses a statement of its own, so
// that other jobs pay nothing for it. Others may act between the two statements, and the fence decides: "Cancellation
// and settlement" (docs/races.md).
func (s *store) closeCalledOff(ctx context.Context, refused []*attempt) error {
	refused = slices.DeleteFunc(refused, func(a *attempt) bool { return !a.mayBeCalledOff() })
	if len(refused) == 0 {
		return nil
	}
	p := sqlgen.CloseAttemptsParams{Worker: s.worker}
	p.Ids, p.Epochs, p.Starts = fencesOf(refused)
	p.ErrorCodes, p.ErrorMessages, p.Stacks = errorsOf(refused)
	closed, err := s.db.CloseAttempts(ctx, p)
	if err != nil {
		return fmt.Errorf("close %d jobs that were called off: %w", len(refused), err)
	}
	became := make(map[outbox.ID]outbox.Status, len(closed))
	for _, row := range closed {
		became[row.ID.Bytes] = outbox.Status(row.Outcome)
	}
	noteStatuses(refused, became)
	return nil
}

// ensureDays creates the partition of today, which no reaper has created in time.
func (s *store) ensureDays() {
	ctx, cancel := bounded(context.Background())
	defer cancel()
	if _, err := s.db.EnsureDays(ctx, 1); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "partitions not created", slog.Any("err", err))
	}
}
