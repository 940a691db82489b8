package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// backlog runs row D5: claims from a queue with very many due jobs take no longer than from one with few.
func backlog(ctx context.Context, r *Run) error {
	const few = 10_000
	many := r.Size(200_000, 10_000_000)
	lasts := time.Duration(r.Size(5, 60)) * time.Second
	small, err := r.claimsFrom(ctx, few, lasts)
	if err != nil {
		return err
	}
	large, err := r.claimsFrom(ctx, many, lasts)
	if err != nil {
		return err
	}
	r.Expect(fmt.Sprintf("claim p99 with %d due jobs, divided by claim p99 with %d", many, few),
		large.Seconds()/small.Seconds(), "<=", 2)
	// A worker that is told to stop gives back what it has not begun, and one that stops a moment later may take
	// that: a second epoch of a first attempt.
	for what, sql := range map[string]string{
		"due jobs missing from outbox.jobs and outbox.history": `SELECT $1 - (SELECT count(*) FROM outbox.jobs) - (SELECT count(*) FROM outbox.history)`,
		"jobs still running after the workers stopped":         `SELECT count(*) + 0 * $1::integer FROM outbox.jobs WHERE status = 'running'`,
		"jobs that needed more than one attempt":               `SELECT count(*) + 0 * $1::integer FROM outbox.history WHERE attempt > 1`,
	} {
		var n int
		// Without a deadline: ten million rows take a while to count.
		if err := r.DB.QueryRow(ctx, sql, few+many).Scan(&n); err != nil {
			return err
		}
		r.Expect(what, float64(n), "=", 0)
	}
	return nil
}

// claimsFrom adds due jobs and lets workers claim from them for a while, a few jobs at a time. It returns the 99th
// percentile of the claims' durations.
func (r *Run) claimsFrom(ctx context.Context, jobs int, lasts time.Duration) (p99 time.Duration, err error) {
	if err := r.fillQueue(ctx, jobs); err != nil {
		return 0, err
	}
	// 4 workers of 4 that take 16 ms a job: as many claims as the machine likes to make, none of which empties the
	// small queue.
	crew, err := r.Crew(4, "VERIFY_CONCURRENCY=4", tracing)
	if err != nil {
		return 0, err
	}
	// Measure only when all are warm.
	if err := errors.Join(r.awaitStatus(ctx, "ready", crew.workers...), backoff.Sleep(ctx, time.Second)); err != nil {
		return 0, err
	}
	measured := span{from: time.Now()}
	if err := backoff.Sleep(ctx, lasts); err != nil {
		return 0, err
	}
	measured.until = time.Now()
	if err := r.stop(ctx, crew.workers...); err != nil {
		return 0, err
	}
	c := r.newClaims()
	if err := c.read(); err != nil {
		return 0, err
	}
	p99, n := c.p99(measured.from, measured.until)
	r.Count(fmt.Sprintf("claims from %d jobs", jobs), n)
	r.Figure(fmt.Sprintf("claim_p99_of_%d_ms", jobs), milliseconds(p99))
	r.Expect(fmt.Sprintf("claims measured with %d due jobs", jobs), float64(n), ">=", 100)
	return p99, nil
}

// fillQueue adds due jobs, in parts, so that the progress is shown.
func (r *Run) fillQueue(ctx context.Context, jobs int) error {
	const part = 100_000
	for done := 0; done < jobs; done += part {
		r.Progress("fill the queue", done, jobs)
		err := pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
			// Without triggers the rows leave no moves.
			if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO outbox.jobs (id, kind, run_at, payload)
				SELECT outbox.uuid_v7(), 'verify.task', now() - n * interval '1 ms', '{"do": "sleep", "ms": 16}'
				FROM generate_series(1, $1::integer) AS n`, min(part, jobs-done))
			return err
		})
		if err != nil {
			return fmt.Errorf("fill the queue: %w", err)
		}
	}
	_, err := r.DB.Exec(ctx, `ANALYZE outbox.jobs`)
	return err
}
