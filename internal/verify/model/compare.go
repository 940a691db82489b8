package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	storedJobs = `
		SELECT id, status::text, '' AS closed_from, queue, kind, priority, attempt, max_attempts, lost_leases, epoch,
		       coalesce(lease_owner, ''),
		       CASE WHEN lease_expires_at < now() THEN 'lapsed'
		            WHEN lease_expires_at > now() + interval '90 minutes' THEN 'extended'
		            WHEN lease_expires_at IS NOT NULL THEN 'held'
		            ELSE '' END,
		       coalesce(last_error_code, ''), cancel_requested_at IS NOT NULL, run_at <= now(), (extract(epoch FROM run_at) * 1000000)::bigint
		FROM outbox.jobs
		UNION ALL
		SELECT id, status::text, closed_from::text, queue, kind, priority, attempt, max_attempts, lost_leases, epoch,
		       coalesce(worker, ''), '',
		       coalesce(last_error_code, ''), cancel_requested_at IS NOT NULL, run_at <= now(), (extract(epoch FROM run_at) * 1000000)::bigint
		FROM outbox.history`
	storedAttempts = `
		SELECT job_id, string_agg(format('%s/%s/%s ', epoch, attempt, error_code), '' ORDER BY epoch)
		FROM outbox.attempts
		GROUP BY job_id`
	storedKeys   = `SELECT kind || '/' || key, job_id FROM outbox.idempotency_keys`
	pausedQueues = `SELECT queue FROM outbox.queues WHERE paused_at IS NOT NULL`
)

// compare reads the whole database, in one round trip, and compares it with the model.
func (m *Machine) compare(ctx context.Context) error {
	stored, keys, paused := map[outbox.ID]*row{}, map[string]outbox.ID{}, map[string]bool{}
	batch := &pgx.Batch{}
	batch.Queue(storedJobs).Query(func(rows pgx.Rows) error {
		var id outbox.ID
		var r row
		_, err := pgx.ForEachRow(rows, []any{
			&id, (*string)(&r.Status), &r.ClosedFrom, &r.Queue, &r.Kind, &r.Priority, &r.Attempt, &r.MaxAttempts,
			&r.LostLeases, &r.Epoch,
			&r.Worker, &r.Lease, &r.Error, &r.Asked, &r.Due, &r.RunAt,
		}, func() error {
			if stored[id] != nil {
				return fmt.Errorf("job %s is stored twice", id)
			}
			copied := r
			stored[id] = &copied
			return nil
		})
		return err
	})
	batch.Queue(storedAttempts).Query(func(rows pgx.Rows) error {
		var id outbox.ID
		var attempts string
		_, err := pgx.ForEachRow(rows, []any{&id, &attempts}, func() error {
			if stored[id] == nil {
				return fmt.Errorf("an attempt is recorded of job %s, which is not stored", id)
			}
			stored[id].Attempts = attempts
			return nil
		})
		return err
	})
	batch.Queue(storedKeys).Query(func(rows pgx.Rows) error {
		var key string
		var id outbox.ID
		_, err := pgx.ForEachRow(rows, []any{&key, &id}, func() error { keys[key] = id; return nil })
		return err
	})
	batch.Queue(pausedQueues).Query(func(rows pgx.Rows) error {
		var queue string
		_, err := pgx.ForEachRow(rows, []any{&queue}, func() error { paused[queue] = true; return nil })
		return err
	})
	if err := m.db.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	return m.differences(stored, keys, paused)
}

func (m *Machine) differences(stored map[outbox.ID]*row, keys map[string]outbox.ID, paused map[string]bool) error {
	var errs []error
	for _, id := range m.ids {
		j, got := m.jobs[id], stored[id]
		if got == nil {
			errs = append(errs, fmt.Errorf("job %s is gone, want %+v", id, j.row))
			continue
		}
		if j.RunAt == 0 {
			j.RunAt = got.RunAt
		}
		if *got != j.row {
			errs = append(errs, fmt.Errorf("job %s is stored as\n%+v, want\n%+v", id, *got, j.row))
		}
	}
	if len(stored) > len(m.ids) {
		extra := slices.DeleteFunc(slices.Collect(maps.Keys(stored)), func(id outbox.ID) bool {
			return m.jobs[id] != nil
		})
		errs = append(errs, fmt.Errorf("jobs are stored that nobody enqueued: %v", extra))
	}
	if !maps.Equal(keys, m.keys) {
		errs = append(errs, fmt.Errorf("idempotency keys are %v, want %v", keys, m.keys))
	}
	if !maps.Equal(paused, m.paused) {
		errs = append(errs, fmt.Errorf("paused queues are %v, want %v", paused, m.paused))
	}
	return errors.Join(errs...)
}
