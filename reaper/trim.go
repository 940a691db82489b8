package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	trimBatch  = 5000 // rows
	trimBlocks = 128  // blocks of the history, which hold some thousand rows
)

// trim removes what is beyond its retention. Two reapers may do it at once: they
// meet the same rows in the same order, and the second finds them gone. A table
// that cannot be trimmed does not keep the others from it.
func (r *Reaper) trim(ctx context.Context) (time.Duration, error) {
	wait, err := r.trimDays(ctx)
	return wait, errors.Join(err, r.trimAttempts(ctx), r.trimKeys(ctx), r.trimInbox(ctx))
}

// trimDays drops the days that are beyond every retention, and deletes from the
// others the outcomes that are kept for less time.
func (r *Reaper) trimDays(ctx context.Context) (time.Duration, error) {
	rules := r.shorterRules()
	days, err := r.listPartitions(ctx, rules.keeps)
	if err != nil {
		return 0, err
	}
	wait := jittered(trimInterval)
	for _, day := range days {
		switch done, known := r.trimmed[day.Name]; {
		case day.BeyondAll:
			dropped, err := r.dropPartition(ctx, day.Name)
			if err != nil {
				return 0, err
			}
			if !dropped {
				wait = jittered(dropInterval)
			}
			delete(r.trimmed, day.Name)
		case day.Touched > day.Past, day.Past > 0 && (!known || day.Past > done):
			if err := r.trimHistory(ctx, day, rules); err != nil {
				return 0, err
			}
		}
	}
	return wait, nil
}

// rules are the outcomes that are kept for less time than the longest.
type rules struct {
	statuses []string
	keeps    []pgtype.Interval
}

func (r *Reaper) shorterRules() (shorter rules) {
	longest := r.config.longestRetention()
	for _, status := range closedStatuses() {
		if keep := r.config.retention(status); keep < longest {
			shorter.statuses = append(shorter.statuses, status.String())
			shorter.keeps = append(shorter.keeps, interval(keep))
		}
	}
	return shorter
}

// trimHistory reads one day from end to end, a few blocks at a time. A day that
// all of a rule's rows are beyond need not be read again for it: nothing is added
// to days that are over. How many rules those are is remembered for the life of
// the process.
func (r *Reaper) trimHistory(ctx context.Context, day sqlgen.ListHistoryPartitionsRow, rules rules) error {
	params := sqlgen.TrimHistoryParams{
		Statuses: rules.statuses, Keeps: rules.keeps,
		FirstInstant: day.FirstInstant, EndInstant: day.EndInstant,
	}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		_, err := r.trimSome(ctx, "history", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			trimmed, err = q.TrimHistory(ctx, params)
			return trimmed, 0, err
		})
		if err != nil {
			return err
		}
	}
	r.trimmed[day.Name] = day.Past
	return nil
}

func (r *Reaper) trimAttempts(ctx context.Context) error {
	params := sqlgen.TrimAttemptsParams{
		AfterFinishedAt: always, AfterJobID: pgtype.UUID{Valid: true},
		Keep: interval(r.config.longestRetention()), MaxRows: trimBatch,
	}
	return r.trimAll(ctx, "attempts", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimAttempts(ctx, params)
		params.AfterFinishedAt, params.AfterJobID, params.AfterEpoch = row.FinishedAt, row.JobID, row.Epoch
		return row.Trimmed, row.LookedAt, err
	})
}

func (r *Reaper) trimKeys(ctx context.Context) error {
	params := sqlgen.TrimIdempotencyKeysParams{
		AfterCreatedAt: always, AfterTenantID: pgtype.UUID{Valid: true},
		Keep: interval(r.config.longestRetention()), MaxRows: trimBatch,
	}
	return r.trimAll(ctx, "idempotency_keys", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimIdempotencyKeys(ctx, params)
		params.AfterCreatedAt, params.AfterTenantID, params.AfterKind, params.AfterKey = row.CreatedAt, row.TenantID, row.Kind, row.Key
		return row.Trimmed, row.LookedAt, err
	})
}

func (r *Reaper) trimInbox(ctx context.Context) error {
	params := sqlgen.TrimInboxParams{FromReceivedAt: always, Keep: interval(r.config.KeepInbox), MaxRows: trimBatch}
	return r.trimAll(ctx, "inbox", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimInbox(ctx, params)
		params.FromReceivedAt = row.ReceivedAt
		return row.Trimmed, row.LookedAt, err
	})
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
