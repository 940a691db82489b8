package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// enqueueHeld stores a job that waits to be released, sometimes with a deadline.
func (m *Machine) enqueueHeld(ctx context.Context, d Draws) (bool, error) {
	return m.enqueueAs(ctx, d, "",
		outbox.Options{Hold: true, Deadline: pick(d, []time.Time{{}, m.nextYear()}, "deadline")})
}

// enqueueWithDeadline stores a job with a deadline in a year.
func (m *Machine) enqueueWithDeadline(ctx context.Context, d Draws) (bool, error) {
	return m.enqueueAs(ctx, d, "", outbox.Options{Deadline: m.nextYear()})
}

func (*Machine) nextYear() time.Time { return time.Now().AddDate(1, 0, 0) }

// release releases a held job, or is refused.
func (m *Machine) release(ctx context.Context, d Draws) (bool, error) {
	if len(m.ids) == 0 {
		return false, nil
	}
	id := pick(d, m.ids, "job")
	j := m.jobs[id]
	err := m.operator.Release(ctx, id)
	if j.Status != outbox.Created {
		return true, wantRefusal(err, j)
	}
	j.Epoch++
	if j.Status = outbox.Pending; j.Due {
		j.due(true) // now, and not when it was stored
	}
	return true, err
}

// cancel cancels a job: it closes a waiting job, asks the worker of a running one to stop, and is refused for a closed
// one.
func (m *Machine) cancel(ctx context.Context, d Draws) (bool, error) {
	if len(m.ids) == 0 {
		return false, nil
	}
	id := pick(d, m.ids, "job")
	j := m.jobs[id]
	done, err := m.operator.Cancel(ctx, id)
	switch {
	case j.Status == outbox.Running:
		j.Asked = true
		return true, wantDone(done, operator.CancelRequested, err)
	case j.Status == outbox.Cancelled:
		return true, wantDone(done, operator.Cancelled, err)
	case engine.CanBecome(j.Status, outbox.Cancelled):
		j.close(outbox.Cancelled)
		j.Epoch++
		return true, wantDone(done, operator.Cancelled, err)
	default:
		return true, wantRefusal(err, j)
	}
}

func wantDone(got, want operator.Cancellation, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("it is said to be %s, want %s", got, want)
	}
	return err
}

func wantRefusal(err error, j *job) error {
	if refused, ok := errors.AsType[*operator.StatusError](err); !ok || refused.Status != j.Status {
		return fmt.Errorf("got %v, want a refusal because the job is %s", err, j.Status)
	}
	return nil
}

// deadlineComes makes the deadline of a job pass. No process has noticed yet.
func (m *Machine) deadlineComes(ctx context.Context, d Draws) (bool, error) {
	ids := m.where(func(j *job) bool { return !j.Status.Closed() && j.hasDeadline && !j.late })
	if len(ids) == 0 {
		return false, nil
	}
	id := pick(d, ids, "job")
	m.jobs[id].late = true
	_, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET deadline = clock_timestamp() WHERE id = $1`, id)
	return true, err
}

// expireDeadlines closes the jobs whose deadlines have passed, except dead letters.
func (m *Machine) expireDeadlines(ctx context.Context, _ Draws) (bool, error) {
	late := m.where(func(j *job) bool { return j.late && engine.CanBecome(j.Status, outbox.Expired) })
	row, err := m.q.ExpireDeadlines(ctx, sqlgen.ExpireDeadlinesParams{
		FromDeadline:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeDeadline: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:        pgvalue.Interval(0), Horizon: pgvalue.Interval(0), Patience: pgvalue.Interval(0), MaxJobs: 1000,
	})
	for _, id := range late {
		m.jobs[id].close(outbox.Expired)
		m.jobs[id].Epoch++
	}
	if err == nil && row.Closed != int64(len(late)) {
		err = fmt.Errorf("expired %d jobs, want %d", row.Closed, len(late))
	}
	return true, err
}

// closeCalledOff does what a worker does after an outcome was refused: it closes the jobs that were cancelled or are
// past their deadline, and no others.
func (m *Machine) closeCalledOff(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 3)
	if len(leases) == 0 {
		return false, nil
	}
	ids, epochs, live := m.split(leases)
	p := sqlgen.CloseAttemptsParams{Ids: ids, Epochs: epochs, Worker: "w1"}
	for _, l := range leases {
		code := pick(d, []string{"", "late"}, "code")
		p.ErrorCodes, p.ErrorMessages, p.Stacks = append(p.ErrorCodes, code), append(p.ErrorMessages, code),
			append(p.Stacks, "")
		if j := m.live(l); j != nil && j.calledOff() && code != "" {
			j.recordFailure(code)
		}
	}
	var want []outbox.ID
	for _, id := range live {
		if j := m.jobs[id]; j.calledOff() {
			want = append(want, id)
			j.close(map[bool]outbox.Status{true: outbox.Cancelled, false: outbox.Expired}[j.Asked])
			j.Epoch++
		}
	}
	rows, err := m.q.CloseAttempts(ctx, p)
	if err != nil {
		return false, err
	}
	var closed []pgtype.UUID
	for _, row := range rows {
		closed = append(closed, row.ID)
		if got, want := row.Outcome, string(m.jobs[row.ID.Bytes].Status); got != want {
			return false, fmt.Errorf("job %s was closed as %s, want %s", outbox.ID(row.ID.Bytes), got, want)
		}
	}
	return true, sameIDs(closed, want)
}

// calledOff reports whether the job was cancelled or is past its deadline. In the first case the worker's only outcome
// that counts is success, in the second none.
func (j *job) calledOff() bool { return j.Asked || j.late }

// onTime leaves out the jobs that are past their deadline: no outcome of them counts.
func (m *Machine) onTime(ids []outbox.ID) []outbox.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id outbox.ID) bool { return m.jobs[id].late })
}

// wanted leaves out the jobs that are past their deadline or were cancelled.
func (m *Machine) wanted(ids []outbox.ID) []outbox.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id outbox.ID) bool { return m.jobs[id].calledOff() })
}
