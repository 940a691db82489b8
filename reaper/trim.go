package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const trimBatch = 5000 // rows

// trim removes what is beyond its retention. Two reapers may do it at once: they
// meet the same rows in the same order, and the second finds them gone. A table
// that cannot be trimmed does not keep the others from it. That nothing is left to trim is
// noted in the database: where it is not for days, doctor says so, whatever the reason.
func (r *Reaper) trim(ctx context.Context) (time.Duration, error) {
	wait, err := r.trimDays(ctx)
	waitEvents, failed := r.trimEvents(ctx)
	wait = min(wait, waitEvents)
	err = errors.Join(err, failed, r.trimDeadLetters(ctx), r.trimAttempts(ctx), r.trimInbox(ctx), r.trimReports(ctx), r.trimWorkers(ctx), r.trimLeaseExtensions(ctx), r.trimAudit(ctx), r.trimMeasures(ctx))
	if err != nil || wait < trimInterval/2 { // a day that is past could not be dropped
		return wait, err
	}
	return wait, r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) error {
		return q.NoteChore(ctx, "trim")
	})
}

func (r *Reaper) trimAttempts(ctx context.Context) error {
	params := sqlgen.TrimAttemptsParams{
		AfterFinishedAt: always, AfterJobID: pgtype.UUID{Valid: true},
		Keep: pgvalue.Interval(r.config.longestRetention()), MaxRows: trimBatch,
	}
	return r.trimAll(ctx, "attempts", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimAttempts(ctx, params)
		params.AfterFinishedAt, params.AfterJobID, params.AfterEpoch = row.FinishedAt, row.JobID, row.Epoch
		return row.Trimmed, row.LookedAt, err
	})
}

func (r *Reaper) trimInbox(ctx context.Context) error {
	params := sqlgen.TrimInboxParams{FromReceivedAt: always, Keep: pgvalue.Interval(r.config.KeepInbox), MaxRows: trimBatch}
	return r.trimAll(ctx, "inbox", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimInbox(ctx, params)
		params.FromReceivedAt = row.ReceivedAt
		return row.Trimmed, row.LookedAt, err
	})
}

// keepWorkers is how long the row of a dispatcher that was killed stays for people to
// see.
const keepWorkers = time.Hour

func (r *Reaper) trimWorkers(ctx context.Context) error {
	_, err := r.trimSome(ctx, "workers", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		trimmed, err = q.TrimWorkers(ctx, pgvalue.Interval(keepWorkers))
		return trimmed, trimmed, err
	})
	return err
}

// keepLeaseExtensions allows for a database whose clock is set back.
const keepLeaseExtensions = time.Hour

func (r *Reaper) trimLeaseExtensions(ctx context.Context) error {
	_, err := r.trimSome(ctx, "lease_extensions", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		trimmed, err = q.TrimLeaseExtensions(ctx, pgvalue.Interval(keepLeaseExtensions))
		return trimmed, trimmed, err
	})
	return err
}

func (r *Reaper) trimAudit(ctx context.Context) error {
	for { // the oldest first: as long as whole batches are old
		var trimmed int64
		_, err := r.trimSome(ctx, "audit", func(ctx context.Context, q *sqlgen.Queries) (_, _ int64, err error) {
			trimmed, err = q.TrimAudit(ctx, pgvalue.Interval(r.config.KeepAudit), trimBatch)
			return trimmed, 0, err
		})
		if err != nil || trimmed < trimBatch {
			return err
		}
	}
}

// trimStatement trims some rows, and says how many it looked at.
type trimStatement func(context.Context, *sqlgen.Queries) (trimmed, lookedAt int64, err error)

// trimAll repeats a statement until it finds less than a batch to look at.
func (r *Reaper) trimAll(ctx context.Context, table string, statement trimStatement) error {
	for {
		lookedAt, err := r.trimSome(ctx, table, statement)
		if err != nil || lookedAt < trimBatch {
			return err
		}
	}
}

// trimSome runs a statement once and then leaves the database alone for a while.
func (r *Reaper) trimSome(ctx context.Context, table string, statement trimStatement) (lookedAt int64, err error) {
	var trimmed int64
	var took time.Duration
	err = r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) error {
		sent := time.Now()
		trimmed, lookedAt, err = statement(ctx, q)
		took = time.Since(sent)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("trim %s: %w", table, err)
	}
	r.metrics.trimmed[table].Add(float64(trimmed))
	r.idle(ctx, took)
	return lookedAt, ctx.Err()
}
