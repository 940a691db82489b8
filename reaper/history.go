package reaper

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const trimBlocks = 128 // of the history, which hold a few thousand rows

// A historyTrimmer removes closed jobs. Only one goroutine may use it.
type historyTrimmer struct {
	batches batches
	days    days
	config  Config
	metrics *metrics

	trimmed map[string]int64 // how many retentions each day has been read for
	past    map[string]bool  // days in which nothing had to stay when they were read last
}

// trim drops the days in which everything is beyond its retention, and deletes such rows from the others. Once all rows
// of a retention in a day are beyond it, the day need not be read for it again, because nothing is added to past days.
// The process remembers how many retentions those are.
func (t *historyTrimmer) trim(ctx context.Context) (time.Duration, error) {
	rules := t.config.rules(outbox.Status.Closed)
	days, err := t.list(ctx, rules.shorter(t.config.longestRetention()))
	if err != nil {
		return 0, err
	}
	listed := func(name string) bool {
		return slices.ContainsFunc(days, func(day sqlgen.ListHistoryPartitionsRow) bool { return day.Name == name })
	}
	maps.DeleteFunc(t.trimmed, func(name string, _ int64) bool { return !listed(name) }) // another reaper dropped them
	maps.DeleteFunc(t.past, func(name string, _ bool) bool { return !listed(name) })
	wait := backoff.Jitter(trimInterval)
	inUse := false // by a transaction, for whose end the next empty day need not wait, too
	for _, day := range days {
		done, known := t.trimmed[day.Name]
		unread := day.Past > 0 && (!known || day.Past > done)
		if day.BeyondAll || unread && day.IsOver {
			if inUse && day.Blocks == 0 {
				continue
			}
			past, became, err := t.dropIfPast(ctx, day, rules)
			if err != nil {
				return 0, err
			}
			if past {
				if became == kept {
					wait = backoff.Jitter(dropInterval)
				}
				inUse = inUse || became == emptied
				continue
			}
		}
		if unread || day.Touched > day.Past {
			if err := t.trimDay(ctx, day, rules); err != nil {
				return 0, err
			}
			t.trimmed[day.Name] = day.Past
		}
	}
	return wait, nil
}

// dropIfPast drops a day if everything in it is beyond its retention. It keeps a day that is in use, and reads it again
// once it is not: what used it may have been a transaction that stored a job in it.
func (t *historyTrimmer) dropIfPast(ctx context.Context, day sqlgen.ListHistoryPartitionsRow,
	rules rules,
) (past bool, became outcome, err error) {
	used, err := t.days.isUsed(ctx, day.Name)
	if err != nil || used && t.past[day.Name] {
		return true, kept, err
	}
	jobs, past, err := t.countDay(ctx, day, rules)
	if err != nil {
		return false, kept, err
	}
	t.past[day.Name] = past
	if !past || used {
		return past, kept, nil
	}
	if err := t.freeKeys(ctx, day); err != nil {
		return true, kept, err
	}
	became, err = t.days.drop(ctx, day.Name, false)
	if err != nil || became == kept {
		return true, kept, err
	}
	for status, n := range jobs {
		t.metrics.jobsTrimmed[status].Add(float64(n))
	}
	return true, became, nil
}

// countDay counts a day's jobs by status. It stops at the first job that stays.
func (t *historyTrimmer) countDay(ctx context.Context, day sqlgen.ListHistoryPartitionsRow,
	rules rules,
) (jobs map[string]int64, past bool, err error) {
	jobs = map[string]int64{}
	params := sqlgen.CountDayParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, FirstInstant: day.FirstInstant,
		EndInstant: day.EndInstant,
	}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		var staying int64
		err := t.batches.one(ctx, "history", func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
			rows, err := q.CountDay(ctx, params)
			for _, row := range rows {
				jobs[row.Status] += row.Jobs
				staying += row.Staying
			}
			return 0, err
		})
		if err != nil || staying > 0 {
			return nil, false, err
		}
	}
	return jobs, true, nil
}

// freeKeys frees the idempotency keys of a day that is about to be dropped.
func (t *historyTrimmer) freeKeys(ctx context.Context, day sqlgen.ListHistoryPartitionsRow) error {
	var any bool
	err := t.batches.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		any, err = q.HasKeys(ctx)
		return err
	})
	if err != nil || !any {
		return err
	}
	params := sqlgen.FreeKeysParams{FirstInstant: day.FirstInstant, EndInstant: day.EndInstant}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		err := t.batches.one(ctx, "idempotency_keys",
			func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
				return q.FreeKeys(ctx, params)
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// trimDay reads one day from end to end, a few blocks at a time, and deletes rows beyond their retention.
func (t *historyTrimmer) trimDay(ctx context.Context, day sqlgen.ListHistoryPartitionsRow, rules rules) error {
	params := sqlgen.TrimHistoryParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, FirstInstant: day.FirstInstant,
		EndInstant: day.EndInstant,
	}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		err := t.batches.one(ctx, "history", func(ctx context.Context, q *sqlgen.Queries) (trimmed int64, err error) {
			rows, err := q.TrimHistory(ctx, params)
			for _, row := range rows {
				trimmed += row.Jobs
				t.metrics.jobsTrimmed[row.Status].Add(float64(row.Jobs))
			}
			if len(rows) > 0 {
				t.metrics.trimmed["idempotency_keys"].Add(float64(rows[0].Keys))
			}
			return trimmed, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the days of the history, and for each day which of the retentions that are shorter than the longest it
// is beyond.
func (t *historyTrimmer) list(ctx context.Context,
	shorter []pgtype.Interval,
) (days []sqlgen.ListHistoryPartitionsRow, err error) {
	err = t.batches.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) error {
		days, err = q.ListHistoryPartitions(ctx, pgvalue.Interval(t.config.longestRetention()), shorter)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the history's partitions: %w", err)
	}
	return days, nil
}
