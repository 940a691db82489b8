package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// task is the job that is enqueued.
type task struct{ kind string }

func (t task) Kind() string { return t.kind }

func (m *Machine) enqueue(ctx context.Context, d Draws) (bool, error) {
	return m.enqueueWith(ctx, d, "")
}

// enqueueOnce enqueues with an idempotency key, as a producer that retries.
func (m *Machine) enqueueOnce(ctx context.Context, d Draws) (bool, error) {
	return m.enqueueWith(ctx, d, pick(d, keys, "key"))
}

func (m *Machine) enqueueWith(ctx context.Context, d Draws, key string) (bool, error) {
	return m.enqueueAs(ctx, d, key, outbox.Options{})
}

func (m *Machine) enqueueAs(ctx context.Context, d Draws, key string, opts outbox.Options) (bool, error) {
	if len(m.where(func(j *job) bool { return !j.Status.Closed() })) >= maxOpen {
		return false, nil
	}
	j := &job{row: row{
		Status:      outbox.Pending,
		Queue:       pick(d, queues, "queue"),
		Kind:        kinds[max(0, d.Below(4, "kind")-2)], // one of four is unknown
		Priority:    int(pick(d, priorities, "priority")),
		MaxAttempts: 1 + d.Below(3, "max attempts"),
		Due:         d.Below(5, "due") > 0,
	}, hasDeadline: !opts.Deadline.IsZero()}
	if opts.Hold {
		j.Status = outbox.Created
	}
	opts.Queue, opts.Priority, opts.MaxAttempts, opts.IdempotencyKey, opts.Streamed = j.Queue, j.Priority,
		j.MaxAttempts, key, m.Streamed
	opts.Tenant = m.Tenant
	if !j.Due {
		opts.Delay = far
	}
	id, err := outbox.Enqueue(ctx, m.db, task{j.Kind}, opts)
	if err != nil {
		return false, err
	}
	if key != "" {
		key = j.Kind + "/" + key
		if first, used := m.keys[key]; used {
			if id != first {
				err = fmt.Errorf("a repeat of key %s got job %s, want the first one, %s", key, id, first)
			}
			return true, err
		}
		m.keys[key] = id
	}
	if m.jobs[id] != nil {
		return false, fmt.Errorf("a new job got the id of another, %s", id)
	}
	m.jobs[id] = j
	m.ids = append(m.ids, id)
	return true, nil
}

func (m *Machine) retry(ctx context.Context, d Draws) (bool, error) {
	ids := m.where(func(j *job) bool {
		return j.Status == outbox.Pending || j.Status == outbox.Retrying || j.Status == outbox.Failed ||
			j.Status == outbox.Dead
	})
	if len(ids) == 0 {
		return false, nil
	}
	id := pick(d, ids, "job")
	j := m.jobs[id]
	if j.late {
		if err := m.operator.Retry(ctx, id); !errors.Is(err, operator.ErrPastDeadline) {
			return false, fmt.Errorf("got %v, want a refusal because of the deadline", err)
		}
		return true, nil
	}
	if engine.CanBecome(j.Status, outbox.Dismissed) { // a dead letter
		j.Status, j.Attempt, j.LostLeases = outbox.Pending, 0, 0
	}
	j.Epoch++
	if !j.Due {
		j.due(true)
	}
	return true, m.operator.Retry(ctx, id)
}

func (m *Machine) dismiss(ctx context.Context, d Draws) (bool, error) {
	ids := m.where(func(j *job) bool { return engine.CanBecome(j.Status, outbox.Dismissed) })
	if len(ids) == 0 {
		return false, nil
	}
	id := pick(d, ids, "job")
	j := m.jobs[id]
	j.close(outbox.Dismissed)
	j.Epoch++
	return true, m.operator.Dismiss(ctx, id)
}

// mistake retries a job that runs or is closed, or dismisses one that is no dead letter. Both must be refused, with the
// status that is the reason.
func (m *Machine) mistake(ctx context.Context, d Draws) (bool, error) {
	act, allowed := m.operator.Retry, []outbox.Status{outbox.Pending, outbox.Retrying, outbox.Failed, outbox.Dead}
	if d.Below(2, "dismiss") == 1 {
		act, allowed = m.operator.Dismiss, []outbox.Status{outbox.Failed, outbox.Dead}
	}
	ids := m.where(func(j *job) bool { return !slices.Contains(allowed, j.Status) })
	if len(ids) == 0 {
		return false, nil
	}
	id := pick(d, ids, "job")
	err := act(ctx, id)
	refused, ok := errors.AsType[*operator.StatusError](err)
	if !ok || refused.Status != m.jobs[id].Status {
		return false, fmt.Errorf("got %v, want a refusal because the job is %s", err, m.jobs[id].Status)
	}
	return true, nil
}

func (m *Machine) pause(ctx context.Context, d Draws) (bool, error) {
	queue := pick(d, queues, "queue")
	if d.Below(3, "pause") == 0 {
		m.paused[queue] = true
		return true, m.operator.Pause(ctx, queue)
	}
	delete(m.paused, queue)
	return true, m.operator.Resume(ctx, queue)
}

func sortBy[T any](s []T, by func(T) int) {
	slices.SortFunc(s, func(a, b T) int { return cmp.Compare(by(a), by(b)) })
}
