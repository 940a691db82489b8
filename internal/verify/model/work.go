package model

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	leaseTTL    = time.Hour
	extendedTTL = 2 * time.Hour
	far         = time.Hour // longer than any run: what is due then is not due now
)

// claim checks that a claim takes exactly the most urgent jobs, in the documented order.
func (m *Machine) claim(ctx context.Context, d Draws) (bool, error) {
	queue, worker, room := pick(d, queues, "queue"), pick(d, workers, "worker"), 1+d.Below(4, "room")
	handled := kinds[:1]
	if d.Below(4, "handles the unknown kind") == 0 {
		handled = kinds
	}
	due := m.where(func(j *job) bool {
		return j.Queue == queue && j.Due && engine.CanBecome(j.Status, outbox.Running) && !j.late &&
			slices.Contains(handled, j.Kind) && !m.paused[queue]
	})
	slices.SortFunc(due, func(a, b outbox.ID) int {
		x, y := m.jobs[a], m.jobs[b]
		return cmp.Or(cmp.Compare(y.Priority, x.Priority), cmp.Compare(x.RunAt, y.RunAt), bytes.Compare(a[:], b[:]))
	})
	due = due[:min(room, len(due))]

	p := sqlgen.ClaimJobsParams{
		Worker: worker, LeaseTtl: pgvalue.Interval(leaseTTL), Queue: queue, Kinds: handled,
		MaxJobs: int32(room),
	}
	p.TenantIds, p.Quotas = []pgtype.UUID{{Bytes: m.Tenant, Valid: true}}, []int32{int32(room)}
	p.Firsts, p.Lasts = []int32{1}, []int32{int32(len(priorities))}
	for _, priority := range priorities {
		p.Priorities = append(p.Priorities, priority)
		p.FromRunAt = append(p.FromRunAt, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true})
		p.FromID = append(p.FromID, pgtype.UUID{Valid: true})
	}
	rows, err := m.claimJobs(ctx, p)
	if err != nil {
		return false, err
	}
	var claimed []pgtype.UUID
	for _, row := range rows {
		claimed = append(claimed, row.ID)
	}
	if err := sameIDs(claimed, due); err != nil {
		return false, err
	}
	for _, row := range rows {
		j := m.jobs[row.ID.Bytes]
		j.Status, j.Worker, j.Lease, j.Attempt, j.Epoch = outbox.Running, worker, "held", j.Attempt+1, j.Epoch+1
		if row.Epoch != j.Epoch || int(row.Attempt) != j.Attempt || int(row.LostLeases) != j.LostLeases ||
			row.Kind != j.Kind {
			return false, fmt.Errorf("claimed with epoch %d, attempt %d, %d lost leases, kind %s; want %+v", row.Epoch,
				row.Attempt, row.LostLeases, row.Kind, j.row)
		}
		m.leases = append(m.leases, lease{row.ID.Bytes, row.Epoch, row.StartedAt, row.Place})
	}
	return true, nil
}

// claimJobs runs ClaimJobs and ClaimStreamedJobs in turn.
func (m *Machine) claimJobs(ctx context.Context, p sqlgen.ClaimJobsParams) ([]sqlgen.ClaimJobsRow, error) {
	if m.claims++; m.claims%2 == 0 {
		return m.q.ClaimJobs(ctx, p)
	}
	streamed, err := m.q.ClaimStreamedJobs(ctx, sqlgen.ClaimStreamedJobsParams{
		TenantIds: p.TenantIds, Quotas: p.Quotas, Firsts: p.Firsts, Lasts: p.Lasts, Priorities: p.Priorities,
		FromRunAt: p.FromRunAt, FromID: p.FromID,
		Queue: p.Queue, Kinds: p.Kinds, MaxJobs: p.MaxJobs, Worker: p.Worker, LeaseTtl: p.LeaseTtl,
	})
	rows := make([]sqlgen.ClaimJobsRow, len(streamed))
	for i, row := range streamed {
		rows[i] = sqlgen.ClaimJobsRow(row)
	}
	return rows, err
}

// drawLeases draws different leases, at most the given number. If there are valid leases, it draws two in three from
// them.
func (m *Machine) drawLeases(d Draws, most int) []lease {
	var live, drawn []lease
	for _, l := range m.leases {
		if m.live(l) != nil {
			live = append(live, l)
		}
	}
	for range 1 + d.Below(most, "leases") {
		from := m.leases
		if len(live) > 0 && d.Below(3, "live") > 0 {
			from = live
		}
		if len(from) == 0 {
			return nil
		}
		if l := pick(d, from, "lease"); !slices.Contains(drawn, l) {
			drawn = append(drawn, l)
		}
	}
	return drawn
}

// split returns the ids and epochs of leases, and the jobs whose leases are valid.
func (m *Machine) split(leases []lease) (ids []pgtype.UUID, epochs []int64, live []outbox.ID) {
	for _, l := range leases {
		ids, epochs = append(ids, pgvalue.UUID(l.id)), append(epochs, l.epoch)
		if m.live(l) != nil {
			live = append(live, l.id)
		}
	}
	return ids, epochs, live
}

func (m *Machine) succeed(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 3)
	return len(leases) > 0, m.settleSucceeded(ctx, leases)
}

func (m *Machine) settleSucceeded(ctx context.Context, leases []lease) error {
	ids, epochs, live := m.split(leases)
	p := sqlgen.SettleSucceededParams{Ids: ids, Epochs: epochs, Results: make([][]byte, len(ids))}
	settled, err := m.settleFirst(ctx, leases, p)
	if err != nil {
		return err
	}
	// All of them once more: a settled job is not settled again.
	moved, err := m.q.SettleSucceeded(ctx, p)
	if err != nil {
		return err
	}
	settled = append(settled, moved...)
	live = m.onTime(live)
	for _, id := range live {
		m.jobs[id].close(outbox.Succeeded)
	}
	return sameIDs(settled, live)
}

// settleFirst runs the two other statements for successes in turn.
func (m *Machine) settleFirst(ctx context.Context, leases []lease,
	p sqlgen.SettleSucceededParams,
) ([]pgtype.UUID, error) {
	if m.settlements++; m.settlements%2 == 0 {
		return m.q.SettleStreamed(ctx, sqlgen.SettleStreamedParams(p))
	}
	inPlace := sqlgen.SettleInPlaceParams{Ids: p.Ids, Epochs: p.Epochs}
	for _, l := range leases {
		inPlace.Places, inPlace.Starts = append(inPlace.Places, l.place), append(inPlace.Starts, l.start)
	}
	return m.q.SettleInPlace(ctx, inPlace)
}

// close moves a job into the history, which keeps the name of its worker.
func (j *job) close(status outbox.Status) {
	worker := j.Worker
	j.ClosedFrom = string(j.Status)
	j.leave(status)
	j.Worker = worker
}

// complete finishes a job in a transaction of its own, which may be rolled back.
func (m *Machine) complete(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 1)
	if len(leases) == 0 {
		return false, nil
	}
	l, commit := leases[0], d.Below(2, "commit") == 1
	j := m.live(l)
	if j != nil && j.late {
		j = nil
	}
	tx, err := m.db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	err = (&outbox.Claimed{ID: l.id, Epoch: l.epoch}).Complete(ctx, tx)
	if err := wantFence(err, j); err != nil || j == nil || !commit {
		return true, err
	}
	j.close(outbox.Succeeded)
	return true, tx.Commit(ctx)
}

// wantFence returns an error unless err reports a lost lease exactly if live is nil.
func wantFence(err error, live *job) error {
	switch {
	case err == nil && live == nil:
		return errors.New("a lost lease was accepted")
	case err != nil && (live != nil || !errors.Is(err, outbox.ErrLeaseLost)):
		return err
	}
	return nil
}

func (m *Machine) guard(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 1)
	if len(leases) == 0 {
		return false, nil
	}
	l := leases[0]
	j := m.live(l)
	if j != nil && j.late {
		j = nil
	}
	return true, wantFence((&outbox.Claimed{ID: l.id, Epoch: l.epoch}).Guard(ctx, m.db), j)
}

func (m *Machine) fail(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 3)
	return len(leases) > 0, m.settleUnfinished(ctx, d, leases, outbox.Retrying, outbox.Retrying, outbox.Failed)
}

// snooze also stands for interrupted jobs, and for claimed jobs that have not started.
func (m *Machine) snooze(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 3)
	return len(leases) > 0, m.settleUnfinished(ctx, d, leases, outbox.Pending)
}

func (m *Machine) settleUnfinished(ctx context.Context, d Draws, leases []lease, outcomes ...outbox.Status) error {
	ids, epochs, live := m.split(leases)
	live = m.wanted(live)
	p := sqlgen.SettleUnfinishedParams{Ids: ids, Epochs: epochs}
	for _, l := range leases {
		next := pick(d, outcomes, "outcome")
		j := m.live(l)
		if next == outbox.Retrying && j != nil && j.Attempt >= j.MaxAttempts {
			next = outbox.Dead
		}
		delay := pick(d, []time.Duration{-1, 0, far}, "delay") // -1 leaves run_at alone
		code := "boom"
		if next == outbox.Pending {
			code = ""
		}
		p.Statuses = append(p.Statuses, string(next))
		p.Delays = append(p.Delays, pgtype.Interval{Microseconds: max(delay, 0).Microseconds(), Valid: delay >= 0})
		p.ErrorCodes, p.ErrorMessages, p.Stacks = append(p.ErrorCodes, code), append(p.ErrorMessages, code),
			append(p.Stacks, "")
		if j == nil || j.calledOff() {
			continue
		}
		if next == outbox.Pending {
			j.Attempt--
		} else {
			j.recordFailure(code)
		}
		j.leave(next)
		j.Epoch++
		if delay >= 0 {
			j.due(delay == 0)
		}
	}
	settled, err := m.q.SettleUnfinished(ctx, p)
	if err != nil {
		return err
	}
	return sameIDs(settled, live)
}

func (m *Machine) extend(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 3)
	return len(leases) > 0, m.extendLeases(ctx, leases)
}

func (m *Machine) extendLeases(ctx context.Context, leases []lease) error {
	ids, epochs, live := m.split(leases)
	refused, err := m.q.ExtendLeases(ctx, sqlgen.ExtendLeasesParams{
		Ids: ids, Epochs: epochs,
		LeaseTtl: pgvalue.Interval(extendedTTL),
	})
	if err != nil {
		return err
	}
	for _, id := range live {
		m.jobs[id].Lease = "extended" // also a lapsed lease that no reaper has expired
	}
	for _, r := range refused {
		if !r.Lost {
			return fmt.Errorf("the lease of %s was not extended, and is not lost", outbox.ID(r.ID.Bytes))
		}
	}
	if want := len(leases) - len(live); len(refused) != want {
		return fmt.Errorf("leases not extended = %d, want %d", len(refused), want)
	}
	return nil
}

// zombie writes with leases that are lost, and only with those.
func (m *Machine) zombie(ctx context.Context, d Draws) (bool, error) {
	var lost, leases []lease
	for _, l := range m.leases {
		if m.live(l) == nil {
			lost = append(lost, l)
		}
	}
	if len(lost) == 0 {
		return false, nil
	}
	for range 1 + d.Below(3, "leases") {
		if l := pick(d, lost, "lease"); !slices.Contains(leases, l) {
			leases = append(leases, l)
		}
	}
	switch d.Below(4, "write") {
	case 0:
		return true, m.settleSucceeded(ctx, leases)
	case 1:
		return true, m.settleUnfinished(ctx, d, leases, outbox.Retrying, outbox.Failed, outbox.Dead)
	case 2:
		return true, m.settleUnfinished(ctx, d, leases, outbox.Pending)
	default:
		return true, m.extendLeases(ctx, leases)
	}
}

// returnOrphans gives back the jobs of a worker that it does not know of.
func (m *Machine) returnOrphans(ctx context.Context, d Draws) (bool, error) {
	queue, worker := pick(d, queues, "queue"), pick(d, workers, "worker")
	mine := m.where(func(j *job) bool { return j.Queue == queue && j.Worker == worker && j.Status == outbox.Running })
	if len(mine) == 0 {
		return false, nil
	}
	held := []pgtype.UUID{}
	orphans := int64(0)
	for _, id := range mine {
		if d.Below(2, "known") == 1 {
			held = append(held, pgvalue.UUID(id))
			continue
		}
		j := m.jobs[id]
		if j.Lease == "lapsed" || j.Asked {
			continue // the reaper expires it
		}
		j.leave(outbox.Pending)
		j.Attempt--
		j.Epoch++
		orphans++
	}
	n, err := m.q.ReturnOrphans(ctx, sqlgen.ReturnOrphansParams{Queue: queue, Worker: worker, Held: held})
	if err == nil && n != orphans {
		err = fmt.Errorf("jobs given back = %d, want %d", n, orphans)
	}
	return true, err
}
