package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ttl is so long that leases lapse only by elapse.
const ttl = time.Hour

func (c *client) claim(ctx context.Context, h *history, a *ask) error {
	for _, id := range h.jobs {
		a.about[id] = operation{in: input{verb: claim}}
	}
	room := 1 + c.rand.IntN(3)
	rows, err := c.db.ClaimJobs(ctx, sqlgen.ClaimJobsParams{
		Worker: "worker", LeaseTtl: pgvalue.Interval(ttl), Queue: engine.DefaultQueue, Kinds: []string{task{}.Kind()},
		MaxJobs:   int32(room),
		TenantIds: []pgtype.UUID{{Bytes: outbox.RootTenant, Valid: true}}, Quotas: []int32{int32(room)},
		Firsts: []int32{1}, Lasts: []int32{1},
		Priorities: []int16{0},
		FromRunAt:  []pgtype.Timestamptz{{InfinityModifier: pgtype.NegativeInfinity, Valid: true}},
		FromID:     []pgtype.UUID{{Valid: true}},
	})
	if err != nil {
		return err
	}
	a.spare = room - len(rows)
	a.passedBy(a.spare > 0, false)
	for _, row := range rows {
		a.about[row.ID.Bytes] = operation{input{verb: claim}, output{
			done: true, status: outbox.Running, epoch: row.Epoch, attempt: int(row.Attempt),
		}}
		h.give(held{row.ID.Bytes, row.Epoch, row.StartedAt, int(row.Attempt), row.Place})
	}
	return nil
}

// passedBy records what a claim or a reaper's pass proves about the jobs that it did not take: that it passed them by
// if it had room for more, nothing otherwise. But even a claim without room may have locked their rows and let them go:
// it checks a row again once it has the lock, and skips it if another statement has changed it meanwhile.
func (a *ask) passedBy(room, reaper bool) {
	for id := range a.about {
		if room {
			a.about[id] = operation{in: input{verb: passBy, reaper: reaper}}
		} else {
			a.about[id] = operation{in: input{verb: lock}}
		}
	}
}

// succeed settles as a dispatcher does: first at the places where the claims have left the rows, and then the other
// jobs. Either one of the two statements takes effect for a job, or none.
func (c *client) succeed(ctx context.Context, h *history, a *ask) error {
	var p sqlgen.SettleSucceededParams
	var places []pgtype.TID
	for _, l := range c.someLeases(h) {
		a.about[l.id] = operation{in: input{verb: settle, epoch: l.epoch, to: outbox.Succeeded}}
		p.Ids, p.Epochs = append(p.Ids, pgvalue.UUID(l.id)), append(p.Epochs, l.epoch)
		p.Starts, p.Results = append(p.Starts, l.started), append(p.Results, nil)
		places = append(places, l.place)
	}
	var settled []pgtype.UUID
	if c.rand.IntN(4) > 0 { // some leases are too old to try that
		var err error
		if c.rand.IntN(4) > 0 {
			settled, err = c.db.SettleInPlace(ctx, sqlgen.SettleInPlaceParams{
				Places: places, Ids: p.Ids, Epochs: p.Epochs, Starts: p.Starts,
			})
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55P03" {
				settled, err = nil, nil // it did not wait for a lock: all are left
			}
		} else {
			settled, err = c.db.SettleStreamed(ctx, sqlgen.SettleStreamedParams(p))
		}
		if err != nil {
			return err
		}
	}
	others, err := c.db.SettleSucceeded(ctx, p)
	if err == nil {
		h.settled(a, append(settled, others...))
	}
	return err
}

func (c *client) unfinished(ctx context.Context, h *history, a *ask) error {
	var p sqlgen.SettleUnfinishedParams
	for _, l := range c.someLeases(h) {
		next := []outbox.Status{outbox.Retrying, outbox.Retrying, outbox.Pending, outbox.Failed}[c.rand.IntN(4)]
		if next == outbox.Retrying && l.attempt >= maxAttempts {
			next = outbox.Dead
		}
		code := "boom"
		if next == outbox.Pending {
			code = ""
		}
		a.about[l.id] = operation{in: input{verb: settle, epoch: l.epoch, to: next}}
		p.Ids, p.Epochs = append(p.Ids, pgvalue.UUID(l.id)), append(p.Epochs, l.epoch)
		p.Starts, p.Statuses = append(p.Starts, l.started), append(p.Statuses, string(next))
		p.Delays = append(p.Delays, pgvalue.Interval(0))
		p.ErrorCodes, p.ErrorMessages, p.Stacks = append(p.ErrorCodes, code), append(p.ErrorMessages, code),
			append(p.Stacks, "")
	}
	settled, err := c.db.SettleUnfinished(ctx, p)
	if err == nil {
		h.settled(a, settled)
	}
	return err
}

// settled records which of the settlements took effect.
func (h *history) settled(a *ask, ids []pgtype.UUID) {
	for _, id := range ids {
		op := a.about[id.Bytes]
		op.out.done = true
		a.about[id.Bytes] = op
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused += len(a.about) - len(ids)
}

func (c *client) extend(ctx context.Context, h *history, a *ask) error {
	p := sqlgen.ExtendLeasesParams{LeaseTtl: pgvalue.Interval(ttl)}
	for _, l := range c.someLeases(h) {
		a.about[l.id] = operation{in: input{verb: extend, epoch: l.epoch}, out: output{done: true}}
		p.Ids, p.Epochs = append(p.Ids, pgvalue.UUID(l.id)), append(p.Epochs, l.epoch)
		p.Starts = append(p.Starts, l.started)
	}
	rows, err := c.db.ExtendLeases(ctx, p)
	for _, row := range rows {
		op := a.about[row.ID.Bytes]
		op.out = output{lost: row.Lost}
		a.about[row.ID.Bytes] = op
	}
	return err
}

func (c *client) expire(ctx context.Context, h *history, a *ask) error {
	for _, id := range h.jobs {
		a.about[id] = operation{in: input{verb: expire}}
	}
	rows, err := c.db.ExpireLeases(ctx, sqlgen.ExpireLeasesParams{
		FromLease:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeLease: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:     pgvalue.Interval(0),
		MaxJobs:     10 * jobs,
	})
	if err != nil {
		return err
	}
	a.passedBy(true, true)
	for _, row := range rows {
		if row.ID.Valid {
			a.about[row.ID.Bytes] = operation{input{verb: expire}, output{
				done: true, status: outbox.Status(row.Status),
				attempt: int(row.Attempt),
			}}
		}
	}
	return nil
}

// elapse changes a row instead of the clock: the lease of a running job lapses, a waiting job becomes due. Extensions
// that were stored in lease_extensions while their statement waited for the row belong to the time before, so a second
// statement, which sees them, removes them.
func (c *client) elapse(ctx context.Context, a *ask, id pgtype.UUID) error {
	op := operation{in: input{verb: elapse}}
	a.about[id.Bytes] = op
	err := pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			UPDATE outbox.jobs
			SET run_at           = least(run_at, now()),
			    lease_expires_at = CASE WHEN status = 'running' THEN now() - interval '1 second' END
			WHERE id = $1
			RETURNING status::text, epoch`, id).Scan((*string)(&op.out.status), &op.out.epoch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM outbox.lease_extensions WHERE job_id = $1`, id)
		return err
	})
	op.out.done = err == nil
	a.about[id.Bytes] = op
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

func (c *client) retry(ctx context.Context, a *ask, id pgtype.UUID) error {
	op := operation{in: input{verb: retry}}
	a.about[id.Bytes] = op
	rows, err := c.db.RetryJob(ctx, sqlgen.RetryJobParams{ID: id, Actor: "client"})
	if len(rows) == 1 {
		op.out.status, op.out.done = outbox.Status(rows[0].Status), rows[0].Moved
	}
	a.about[id.Bytes] = op
	return err
}

func (c *client) dismiss(ctx context.Context, a *ask, id pgtype.UUID) error {
	a.about[id.Bytes] = operation{in: input{verb: dismiss}}
	rows, err := c.db.DismissJob(ctx, sqlgen.DismissJobParams{ID: id, Actor: "client"})
	a.about[id.Bytes] = operation{input{verb: dismiss}, output{done: len(rows) == 1}}
	return err
}

func (c *client) read(ctx context.Context, a *ask, id pgtype.UUID) error {
	op := operation{in: input{verb: read}}
	a.about[id.Bytes] = op
	rows, err := c.db.FindJob(ctx, id, pgtype.UUID{})
	if len(rows) == 1 { // without a row, the status stays one that no job has
		row := rows[0]
		op.out = output{status: outbox.Status(row.Status), epoch: row.Epoch, attempt: int(row.Attempt)}
		// By the database's clock alone: a lease that has not lapsed has most of ttl left.
		op.out.lapsed = row.LeaseExpiresAt.Valid && row.LeaseExpiresAt.Time.Before(row.CreatedAt.Time.Add(ttl/2))
	}
	a.about[id.Bytes] = op
	return err
}
