package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const trimBlocks = 128 // of the history, which hold some thousand rows

// rules are how long each outcome is kept: in any queue, which is the
// empty text, and in those that differ.
type rules struct {
	statuses []string
	queues   []string
	keeps    []pgtype.Interval
}

func (c Config) rules(concerned func(outbox.Status) bool) (r rules) {
	add := func(status outbox.Status, queue string, keep time.Duration) {
		r.statuses, r.queues, r.keeps = append(r.statuses, string(status)), append(r.queues, queue), append(r.keeps, pgvalue.Interval(keep))
	}
	for _, status := range slices.DeleteFunc(engine.Statuses[outbox.Status](), func(s outbox.Status) bool { return !concerned(s) }) {
		add(status, "", c.retention(status))
		for _, queue := range slices.Sorted(maps.Keys(c.KeepByQueue)) {
			if keep, ok := c.KeepByQueue[queue][status]; ok {
				add(status, queue, keep)
			}
		}
	}
	return r
}

// shorter are the retentions below the longest, each once, and none at all: a row that
// is not kept does not wait until its day is over.
func (r rules) shorter(longest time.Duration) (keeps []pgtype.Interval) {
	for _, keep := range r.keeps {
		if (longest == 0 || keep != pgvalue.Interval(longest)) && !slices.Contains(keeps, keep) {
			keeps = append(keeps, keep)
		}
	}
	return keeps
}

// trimDays drops the days of which everything is beyond its retention, and deletes
// what is from the others. A day that all of a retention's rows are beyond need not
// be read again for it: nothing is added to days that are over. How many
// retentions those are is remembered for the life of the process.
func (r *Reaper) trimDays(ctx context.Context) (time.Duration, error) {
	rules := r.config.rules(outbox.Status.Closed)
	days, err := r.listPartitions(ctx, rules.shorter(r.config.longestRetention()))
	if err != nil {
		return 0, err
	}
	listed := func(name string) bool {
		return slices.ContainsFunc(days, func(day sqlgen.ListHistoryPartitionsRow) bool { return day.Name == name })
	}
	maps.DeleteFunc(r.trimmed, func(name string, _ int64) bool { return !listed(name) }) // another reaper dropped them
	maps.DeleteFunc(r.counted, func(name string, _ map[string]int64) bool { return !listed(name) })
	wait := jittered(trimInterval)
	for _, day := range days {
		done, known := r.trimmed[day.Name]
		unread := day.Past > 0 && (!known || day.Past > done)
		if day.BeyondAll || unread && day.IsOver {
			empty, dropped, err := r.dropIfPast(ctx, day, rules)
			if err != nil {
				return 0, err
			}
			if empty {
				if !dropped {
					wait = jittered(dropInterval)
				}
				continue
			}
		}
		if unread || day.Touched > day.Past {
			if err := r.trimHistory(ctx, day, rules); err != nil {
				return 0, err
			}
			r.trimmed[day.Name] = day.Past
		}
	}
	return wait, nil
}

// dropIfPast drops a day if nothing in it is within its retention any more. What it
// learns by reading the day is remembered while the drop has to wait.
func (r *Reaper) dropIfPast(ctx context.Context, day sqlgen.ListHistoryPartitionsRow, rules rules) (past, dropped bool, err error) {
	jobs, known := r.counted[day.Name]
	if !known {
		if jobs, past, err = r.countDay(ctx, day, rules); err != nil || !past {
			return past, false, err
		}
		if err := r.freeKeys(ctx, day); err != nil {
			return true, false, err
		}
		r.counted[day.Name] = jobs
	}
	dropped, err = r.dropPartition(ctx, day.Name, false)
	if err != nil || !dropped {
		return true, false, err
	}
	for status, n := range jobs {
		r.metrics.jobsTrimmed[status].Add(float64(n))
	}
	delete(r.counted, day.Name)
	return true, true, nil
}

// countDay counts a day's jobs by outcome. It stops where it finds one that stays.
func (r *Reaper) countDay(ctx context.Context, day sqlgen.ListHistoryPartitionsRow, rules rules) (jobs map[string]int64, past bool, err error) {
	jobs = map[string]int64{}
	params := sqlgen.CountDayParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, FirstInstant: day.FirstInstant, EndInstant: day.EndInstant,
	}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		var staying int64
		_, err := r.trimSome(ctx, "history", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			rows, err := q.CountDay(ctx, params)
			for _, row := range rows {
				jobs[row.Status] += row.Jobs
				staying += row.Staying
			}
			return 0, 0, err
		})
		if err != nil || staying > 0 {
			return nil, false, err
		}
	}
	return jobs, true, nil
}

// freeKeys frees the idempotency keys of a day that is to be dropped.
func (r *Reaper) freeKeys(ctx context.Context, day sqlgen.ListHistoryPartitionsRow) error {
	var any bool
	err := r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) (err error) {
		any, err = q.HasKeys(ctx)
		return err
	})
	if err != nil || !any {
		return err
	}
	params := sqlgen.FreeKeysParams{FirstInstant: day.FirstInstant, EndInstant: day.EndInstant}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		_, err := r.trimSome(ctx, "idempotency_keys", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			trimmed, err = q.FreeKeys(ctx, params)
			return trimmed, 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// trimHistory reads one day from end to end, a few blocks at a time, and deletes
// what is beyond its retention.
func (r *Reaper) trimHistory(ctx context.Context, day sqlgen.ListHistoryPartitionsRow, rules rules) error {
	params := sqlgen.TrimHistoryParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, FirstInstant: day.FirstInstant, EndInstant: day.EndInstant,
	}
	for ; params.FirstBlock < day.Blocks; params.FirstBlock += trimBlocks {
		params.EndBlock = params.FirstBlock + trimBlocks
		_, err := r.trimSome(ctx, "history", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			rows, err := q.TrimHistory(ctx, params)
			for _, row := range rows {
				trimmed += row.Jobs
				r.metrics.jobsTrimmed[row.Status].Add(float64(row.Jobs))
			}
			if len(rows) > 0 {
				r.metrics.trimmed["idempotency_keys"].Add(float64(rows[0].Keys))
			}
			return trimmed, 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// trimDeadLetters removes dead letters that nobody has done anything about.
func (r *Reaper) trimDeadLetters(ctx context.Context) error {
	rules := r.config.rules(isDeadLetter)
	params := sqlgen.TrimDeadLettersParams{
		Statuses: rules.statuses, Queues: rules.queues, Keeps: rules.keeps, After: pgtype.UUID{Valid: true}, MaxRows: trimBatch,
	}
	var failed, dead int64
	err := r.trimAll(ctx, "dead_letters", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
		row, err := q.TrimDeadLetters(ctx, params)
		params.After = row.Last
		failed, dead = failed+row.Failed, dead+row.Dead
		r.metrics.jobsTrimmed[string(outbox.Failed)].Add(float64(row.Failed))
		r.metrics.jobsTrimmed[string(outbox.Dead)].Add(float64(row.Dead))
		r.metrics.trimmed["idempotency_keys"].Add(float64(row.Keys))
		return row.Failed + row.Dead, row.LookedAt, err
	})
	if failed+dead > 0 {
		r.log.LogAttrs(ctx, slog.LevelWarn, "dead letters removed: nobody retried or dismissed them within their retention",
			slog.Int64("failed", failed), slog.Int64("dead", dead))
	}
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	return nil
}
