package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// A trimmer removes data beyond its retention.
type trimmer struct {
	chores  chores
	history *historyTrimmer
	events  eventTrimmer
	rows    rowTrimmer
}

func newTrimmer(on chores, d days, config Config, m *metrics, log *slog.Logger) trimmer {
	b := batches{on, m}
	history := &historyTrimmer{b, d, config, m, map[string]int64{}, map[string]bool{}}
	return trimmer{on, history, eventTrimmer{b, d, config, m, log}, rowTrimmer{b, config, m, log}}
}

// trim removes data beyond its retention. Two reapers may do it at once: they meet the same rows in the same order, and
// the second finds them gone. A table that cannot be trimmed does not keep trim from the others. When nothing is left
// to trim, trim records that in the database: if that does not happen for days, doctor reports it, whatever the reason.
func (t trimmer) trim(ctx context.Context) (time.Duration, error) {
	wait, err := t.history.trim(ctx)
	waitEvents, failed := t.events.trim(ctx)
	wait = min(wait, waitEvents)
	err = errors.Join(err, failed, t.rows.trim(ctx))
	if err != nil || wait < trimInterval/2 { // a past day could not be dropped
		return wait, err
	}
	return wait, t.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) error {
		return q.NoteChore(ctx, "trim")
	})
}

// batches runs the statements that trim, a little at a time.
type batches struct {
	chores  chores
	metrics *metrics
}

// all repeats a statement until it finds less than a batch to examine.
func (b batches) all(ctx context.Context, table string, batch int64,
	statement func(context.Context, *sqlgen.Queries) (trimmed, lookedAt int64, err error),
) error {
	for lookedAt := batch; lookedAt >= batch; {
		err := b.one(ctx, table, func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
			trimmed, lookedAt, err = statement(ctx, q)
			return trimmed, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// one runs a statement once and then pauses, which limits trimming to a tenth of the time.
func (b batches) one(ctx context.Context, table string,
	statement func(context.Context, *sqlgen.Queries) (trimmed int64, err error),
) error {
	var trimmed int64
	var took time.Duration
	err := b.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		sent := time.Now()
		trimmed, err = statement(ctx, q)
		took = time.Since(sent)
		return err
	})
	if err != nil {
		return fmt.Errorf("trim %s: %w", table, err)
	}
	b.metrics.trimmed[table].Add(float64(trimmed))
	_ = backoff.Sleep(ctx, budget*took)
	return ctx.Err()
}
