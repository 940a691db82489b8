package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

var trimBatch int32 = 5000 // tests need fewer

// A rowTrimmer removes row by row what is not dropped with its day: dead letters, and the rows that accompany jobs.
type rowTrimmer struct {
	batches batches
	config  Config
	metrics *metrics
	log     *slog.Logger
}

func (t rowTrimmer) trim(ctx context.Context) error {
	return errors.Join(t.deadLetters(ctx), t.attempts(ctx), t.inbox(ctx), t.reports(ctx), t.workers(ctx),
		t.leaseExtensions(ctx), t.audit(ctx), t.measures(ctx), t.operations(ctx))
}

// deadLetters removes the dead letters that nobody has dealt with.
func (t rowTrimmer) deadLetters(ctx context.Context) error {
	rules := t.config.rules(isDeadLetter)
	params := sqlgen.TrimDeadLettersParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, After: pgtype.UUID{Valid: true},
		MaxRows: trimBatch,
	}
	var failed, dead int64
	err := t.batches.all(ctx, "dead_letters", int64(trimBatch),
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimDeadLetters(ctx, params)
			params.After = row.Last
			failed, dead = failed+row.Failed, dead+row.Dead
			t.metrics.jobsTrimmed[string(outbox.Failed)].Add(float64(row.Failed))
			t.metrics.jobsTrimmed[string(outbox.Dead)].Add(float64(row.Dead))
			t.metrics.trimmed["idempotency_keys"].Add(float64(row.Keys))
			return row.Failed + row.Dead, row.LookedAt, err
		})
	if failed+dead > 0 {
		t.log.LogAttrs(ctx, slog.LevelWarn,
			"dead letters removed: nobody retried or dismissed them within their retention",
			slog.Int64("failed", failed), slog.Int64("dead", dead))
	}
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	return nil
}

func (t rowTrimmer) attempts(ctx context.Context) error {
	params := sqlgen.TrimAttemptsParams{
		AfterFinishedAt: always, AfterJobID: pgtype.UUID{Valid: true},
		Keep: pgvalue.Interval(t.config.longestRetention()), MaxRows: trimBatch,
	}
	return t.batches.all(ctx, "attempts", int64(trimBatch),
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimAttempts(ctx, params)
			params.AfterFinishedAt, params.AfterJobID, params.AfterEpoch = row.FinishedAt, row.JobID, row.Epoch
			return row.Trimmed, row.LookedAt, err
		})
}

func (t rowTrimmer) inbox(ctx context.Context) error {
	params := sqlgen.TrimInboxParams{
		FromReceivedAt: always, Keep: pgvalue.Interval(t.config.KeepInbox),
		MaxRows: trimBatch,
	}
	return t.batches.all(ctx, "inbox", int64(trimBatch),
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimInbox(ctx, params)
			params.FromReceivedAt = row.ReceivedAt
			return row.Trimmed, row.LookedAt, err
		})
}

// keepWorkers is how long the row of a killed dispatcher stays visible.
const keepWorkers = time.Hour

func (t rowTrimmer) workers(ctx context.Context) error {
	return t.batches.one(ctx, "workers", func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
		return q.TrimWorkers(ctx, pgvalue.Interval(keepWorkers))
	})
}

// keepLeaseExtensions allows for a database whose clock is set back.
const keepLeaseExtensions = time.Hour

func (t rowTrimmer) leaseExtensions(ctx context.Context) error {
	return t.batches.one(ctx, "lease_extensions",
		func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
			return q.TrimLeaseExtensions(ctx, pgvalue.Interval(keepLeaseExtensions))
		})
}

func (t rowTrimmer) audit(ctx context.Context) error {
	// Delete the oldest first, while whole batches are old.
	return t.batches.all(ctx, "audit", int64(trimBatch),
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			trimmed, err = q.TrimAudit(ctx, pgvalue.Interval(t.config.KeepAudit), trimBatch)
			return trimmed, trimmed, err
		})
}

// reportsBatch is smaller than trimBatch: each of these jobs may have 200 lines and as many steps.
const reportsBatch = 200

// reports deletes the reports of jobs that the history no longer holds. It examines only jobs older than the longest
// retention: the others are open, or were closed since.
func (t rowTrimmer) reports(ctx context.Context) error {
	params := sqlgen.TrimReportsParams{
		AfterCreatedAt: always, AfterJobID: pgtype.UUID{Valid: true},
		Keep: pgvalue.Interval(t.config.longestRetention()), MaxRows: reportsBatch,
	}
	return t.batches.all(ctx, "progress", reportsBatch,
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimReports(ctx, params)
			params.AfterCreatedAt, params.AfterJobID = row.CreatedAt, row.JobID
			return row.Trimmed, row.LookedAt, err
		})
}

const keepOperations = 90 * day

// operations forgets those that ended long ago, or were stopped and never resumed, and then the jobs that these were
// still to act on.
func (t rowTrimmer) operations(ctx context.Context) error {
	return t.batches.all(ctx, "operations", int64(trimBatch),
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimOperations(ctx, pgvalue.Interval(keepOperations), trimBatch)
			if row.Operations > 0 {
				return row.Operations + row.Jobs, int64(trimBatch), err // their jobs are the next statement's
			}
			return row.Jobs, row.Jobs, err
		})
}

const (
	keepMeasures = 14 * day
	trimMinutes  = 60 // per statement
)

func (t rowTrimmer) measures(ctx context.Context) error {
	return t.batches.all(ctx, "measures", trimMinutes,
		func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			minutes, err := q.TrimMeasures(ctx, pgvalue.Interval(keepMeasures), trimMinutes)
			return minutes, minutes, err
		})
}
