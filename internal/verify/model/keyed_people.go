package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// drawKeyed draws the options of a job with a key.
func (m *KeyedMachine) drawKeyed(d Draws) outbox.Options {
	shape := pick(d, keyShapes, "key")
	opts := shape.rules
	if shape.drawn != nil {
		opts = shape.drawn(d)
	}
	opts.Queue, opts.Key.Name = keyedQueue, shape.key
	opts.Priority = int(pick(d, priorities, "priority"))
	opts.Key.OnLapse = pick(d, []outbox.LapsePolicy{"", "", outbox.FailStale, outbox.BlockLapsed}, "on lapse")
	opts.MaxAttempts = 2 + d.Below(3, "attempts")
	if d.Below(5, "later") == 4 {
		opts.Delay = far
	}
	if d.Below(5, "deadline") == 4 {
		opts.Deadline = time.Now().AddDate(1, 0, 0)
	}
	opts.Hold = d.Below(6, "held") == 5
	opts.Streamed, opts.Tenant = m.Streamed, m.Tenant
	return opts
}

func (m *KeyedMachine) enqueue(ctx context.Context, d Draws) (bool, error) {
	if len(m.open) >= maxKeyed {
		return false, nil
	}
	id, err := outbox.Enqueue(ctx, m.db, task{kinds[0]}, m.drawKeyed(d))
	m.known = append(m.known, id)
	return true, err
}

// submit checks that Submit decides as the waiting jobs of the key demand.
func (m *KeyedMachine) submit(ctx context.Context, d Draws) (bool, error) {
	if len(m.open) >= maxKeyed {
		return false, nil
	}
	opts := m.drawKeyed(d)
	opts.Key.MaxQueued = 1 + d.Below(3, "max queued")
	opts.Key.WhenFull = pick(d, []outbox.DepthPolicy{"", outbox.CoalesceFull, outbox.ReplaceOldest}, "when full")
	waiting := m.where(func(j *keyedJob) bool { return j.key == opts.Key.Name && j.queued() && !j.late })

	done, err := outbox.Submit(ctx, m.db, task{kinds[0]}, opts)
	if err != nil {
		return false, err
	}
	want := outbox.Submitted{Stored: true, ID: done.ID, Queued: len(waiting)}
	if len(waiting) >= opts.Key.MaxQueued {
		switch opts.Key.WhenFull {
		case "":
			want.Stored, want.ID = false, outbox.ID{}
		case outbox.CoalesceFull:
			want.Stored, want.ID = false, newestOf(waiting).id
		case outbox.ReplaceOldest:
			want.Replaced = oldestOf(waiting).id
		}
	}
	if done != want {
		return false, fmt.Errorf("submitted to key %s with %d waiting: %+v, want %+v", opts.Key.Name, len(waiting),
			done, want)
	}
	if want.Stored {
		m.known = append(m.known, done.ID)
	}
	if !want.Replaced.IsZero() {
		if err := m.look(ctx); err != nil {
			return false, err
		}
		if got := m.closed[want.Replaced]; got != outbox.Skipped {
			return false, fmt.Errorf("job %s is %q, want skipped", want.Replaced, got)
		}
	}
	return true, nil
}

func newestOf(jobs []*keyedJob) *keyedJob {
	newest := jobs[0]
	for _, j := range jobs {
		if j.id.String() > newest.id.String() {
			newest = j
		}
	}
	return newest
}

// oldestOf returns the job that a new one replaces: of the first ordered job and the unordered job that was stored
// first, the one that was stored earlier.
func oldestOf(jobs []*keyedJob) *keyedJob {
	var first, stored *keyedJob
	for _, j := range jobs {
		if j.ordered && (first == nil || before(j, first)) {
			first = j
		}
		if !j.ordered && (stored == nil || storedBefore(j, stored)) {
			stored = j
		}
	}
	if first == nil || stored != nil && storedBefore(stored, first) {
		return stored
	}
	return first
}

func storedBefore(a, b *keyedJob) bool {
	if a.createdAt != b.createdAt {
		return a.createdAt < b.createdAt
	}
	return a.id.String() < b.id.String()
}

// drawJob draws an open job that satisfies is, or returns nil.
func (m *KeyedMachine) drawJob(d Draws, is func(*keyedJob) bool) *keyedJob {
	jobs := m.where(is)
	if len(jobs) == 0 {
		return nil
	}
	return pick(d, jobs, "job")
}

func (m *KeyedMachine) release(ctx context.Context, d Draws) (bool, error) {
	j := m.drawJob(d, func(j *keyedJob) bool { return j.status == outbox.Created })
	if j == nil {
		return false, nil
	}
	return true, m.operator.Release(ctx, j.id)
}

func (m *KeyedMachine) cancel(ctx context.Context, d Draws) (bool, error) {
	j := m.drawJob(d, func(j *keyedJob) bool { return !j.dead() })
	if j == nil {
		return false, nil
	}
	_, err := m.operator.Cancel(ctx, j.id)
	return true, err
}

func (m *KeyedMachine) retry(ctx context.Context, d Draws) (bool, error) {
	j := m.drawJob(d, func(j *keyedJob) bool { return j.dead() || j.status == outbox.Retrying })
	if j == nil {
		return false, nil
	}
	err := m.operator.Retry(ctx, j.id)
	if j.late && errors.Is(err, operator.ErrPastDeadline) {
		err = nil
	}
	return true, err
}

func (m *KeyedMachine) dismiss(ctx context.Context, d Draws) (bool, error) {
	j := m.drawJob(d, (*keyedJob).dead)
	if j == nil {
		return false, nil
	}
	return true, m.operator.Dismiss(ctx, j.id)
}

func (m *KeyedMachine) unblock(ctx context.Context, d Draws) (bool, error) {
	key := pick(d, keyShapes, "key").key
	_, err := m.operator.Unblock(ctx, operator.KeyName{Tenant: m.Tenant, Queue: keyedQueue, Key: key})
	if errors.Is(err, operator.ErrKeyNotFound) && len(m.of(key)) == 0 {
		err = nil
	}
	if errors.Is(err, operator.ErrKeyNotFound) { // none of its jobs has been claimed or has died
		err = nil
	}
	return true, err
}

// drain now and then runs every job that can be made to run, and checks that none is left: otherwise a key is stuck.
func (m *KeyedMachine) drain(ctx context.Context, d Draws) (bool, error) {
	if d.Below(8, "now") != 7 { // it takes as long as many other operations
		return false, nil
	}
	for round := 0; len(m.open) > 0; round++ {
		if round > 4*maxKeyed {
			return false, fmt.Errorf("jobs are left when everything that can run has run: %d", len(m.open))
		}
		if err := m.drainRound(ctx); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (m *KeyedMachine) drainRound(ctx context.Context) error {
	for _, j := range m.where(func(*keyedJob) bool { return true }) {
		var err error
		switch {
		case j.status == outbox.Created:
			err = m.operator.Release(ctx, j.id)
		case j.dead():
			err = m.operator.Dismiss(ctx, j.id)
		}
		if err != nil {
			return err
		}
	}
	for key := range m.parked {
		if _, err := m.operator.Unblock(ctx, operator.KeyName{
			Tenant: m.Tenant, Queue: keyedQueue,
			Key: key,
		}); err != nil {
			return err
		}
	}
	if _, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET deadline = NULL WHERE deadline IS NOT NULL`); err != nil {
		return err
	}
	if _, err := m.becomeDue(ctx, nil); err != nil {
		return err
	}
	if _, err := m.sweep(ctx, nil); err != nil {
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	if err := m.claimSome(ctx, maxKeyed, 2*maxKeyed, nil); err != nil {
		return err
	}
	for _, j := range m.where(running) {
		if err := m.settle(ctx, j); err != nil {
			return err
		}
		if err := m.moveOn(ctx, []string{j.key}, 1); err != nil {
			return err
		}
	}
	return m.check(ctx)
}
