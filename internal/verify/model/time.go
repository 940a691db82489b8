package model

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Time passes by moving the times in rows: no clock is faked.

// lapse makes some leases lapse, one after the other. No reaper has noticed yet.
func (m *Machine) lapse(ctx context.Context, d Draws) (bool, error) {
	any := false
	for _, l := range m.drawLeases(d, 3) {
		j := m.live(l)
		if j == nil {
			continue
		}
		any = true
		m.lapses++
		j.Lease, j.lapsedAt = "lapsed", m.lapses
		if _, err := m.db.Exec(
			ctx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 day' + $2 * interval '1 millisecond' WHERE id = $1`,
			l.id, m.lapses); err != nil {
			return false, err
		}
	}
	return any, nil
}

// restart makes a job look as if the server had started after its claim, so that its lease could not be extended. Some
// jobs have lost many leases before.
func (m *Machine) restart(ctx context.Context, d Draws) (bool, error) {
	leases := m.drawLeases(d, 1)
	if len(leases) == 0 || m.live(leases[0]) == nil {
		return false, nil
	}
	j := m.live(leases[0])
	j.outage = true
	if d.Below(2, "lost many leases before") == 1 {
		j.LostLeases = 2*j.MaxAttempts + 10 - 2
	}
	_, err := m.db.Exec(ctx,
		`UPDATE outbox.jobs SET started_at = pg_postmaster_start_time() - interval '1 second', lost_leases = $2 WHERE id = $1`,
		leases[0].id, j.LostLeases)
	return true, err
}

// reap expires lapsed leases, the oldest first.
func (m *Machine) reap(ctx context.Context, d Draws) (bool, error) {
	room := 1 + d.Below(4, "room")
	lapsed := m.where(func(j *job) bool { return j.Lease == "lapsed" })
	sortBy(lapsed, func(id outbox.ID) int { return m.jobs[id].lapsedAt })
	lapsed = lapsed[:min(room, len(lapsed))]
	rows, err := m.q.ExpireLeases(ctx, sqlgen.ExpireLeasesParams{
		FromLease:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeLease: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:     pgvalue.Interval(0),
		MaxJobs:     int32(room),
	})
	if err != nil {
		return false, err
	}
	var expired []pgtype.UUID
	for _, row := range rows {
		if row.ID.Valid {
			expired = append(expired, row.ID)
		}
	}
	if err := sameIDs(expired, lapsed); err != nil {
		return false, err
	}
	for _, row := range rows {
		if !row.ID.Valid {
			continue
		}
		if err := m.expire(ctx, row); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (m *Machine) expire(ctx context.Context, row sqlgen.ExpireLeasesRow) error {
	id := outbox.ID(row.ID.Bytes)
	j := m.jobs[id]
	if row.Worker != j.Worker {
		return fmt.Errorf("the lease was taken from %s, want %s", row.Worker, j.Worker)
	}
	j.recordFailure("lease_lost")
	if j.Asked {
		j.close(outbox.Cancelled)
		j.Epoch++
		if row.Status != string(outbox.Cancelled) {
			return fmt.Errorf("the cancelled job came back as %s", row.Status)
		}
		return nil
	}
	next, away, before := outbox.Retrying, j.outage, j.LostLeases
	switch {
	case away: // an outage costs the job nothing
		j.Attempt--
	case j.Attempt >= j.MaxAttempts || j.LostLeases+1 >= 2*j.MaxAttempts+10:
		next = outbox.Dead
		fallthrough
	default:
		j.LostLeases++
	}
	j.leave(next)
	j.Epoch++
	if row.Status != string(j.Status) || int(row.Attempt) != j.Attempt {
		return fmt.Errorf("the job came back as %s with attempt %d, want %+v", row.Status, row.Attempt, j.row)
	}
	if before == 0 || away {
		return nil // the job keeps its place in the queue
	}
	// The job waits for some seconds. Check how long, and then move it to the model's future.
	want := min(1<<min(before, 6)-1, 60)
	var wait float64
	err := m.db.QueryRow(ctx, `
		UPDATE outbox.jobs SET run_at = run_at + $3::interval
		WHERE id = $1
		RETURNING extract(epoch FROM run_at - $3::interval - $2::timestamptz)::float8`, id, row.Now, pgvalue.Interval(far)).Scan(&wait)
	if err == nil && wait != float64(want) {
		err = fmt.Errorf("after %d lost leases the job waits for %g s, want %d", before+1, wait, want)
	}
	j.due(false)
	return err
}

func (m *Machine) becomeDue(ctx context.Context, _ Draws) (bool, error) {
	_, err := m.db.Exec(ctx, `UPDATE outbox.jobs SET run_at = now() WHERE run_at > now()`)
	for _, id := range m.where(func(j *job) bool { return !j.Status.Closed() && !j.Due }) {
		m.jobs[id].due(true)
	}
	return true, err
}
