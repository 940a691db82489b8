package outboxtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/schedule"
)

// Now returns the worker's clock: time.Now plus the time by which Advance has moved it. Give it to handlers that take a
// clock.
func (w *Worker) Now() time.Time { return time.Now().Add(w.ahead) }

// Advance lets the given time pass and does what becomes due meanwhile, in the order in which it becomes due: delayed
// jobs and retries run, schedules fire, jobs expire at their deadlines. It drains the worker first and last, and
// returns the outcome of each attempt, as [Worker.Drain] does.
//
// No clock is moved. Instead, stored data is made older: Advance moves back the times of jobs, and those in the columns
// that Config.Columns names. now(), clock_timestamp() and time.Now() are unaffected, and SQL that compares them with
// the stored times finds that the time has passed. To a handler, its job seems to have been stored that much earlier.
// Only the ticks of schedules follow the calendar of the advanced clock, [Worker.Now]: the [schedule.TickOf] of a
// nightly job is the night that it is for.
//
// Your rows keep their age in the columns that Config.Columns does not name. So do the history, reports and leases:
// retention, parked keys and lost leases are not simulated.
func (w *Worker) Advance(d time.Duration) []Outcome {
	w.t.Helper()
	if d < 0 {
		w.t.Fatalf("advance by %s: time does not go back", d)
	}
	d = (d + time.Microsecond - 1).Truncate(time.Microsecond) // up to the database's resolution
	all := w.Drain()
	for end := w.ahead + d; w.ahead < end; {
		step := end - w.ahead
		next, err := w.next()
		if err == nil {
			step = min(step, max(next, time.Microsecond))
			err = w.pass(step)
		}
		if err != nil {
			w.t.Fatalf("advance by %s: %v", d, err)
		}
		if all = append(all, w.Drain()...); len(all) > most {
			w.t.Fatalf("more than %d jobs become due in %s", most, d)
		}
	}
	return all
}

// next returns how long nothing becomes due.
func (w *Worker) next() (time.Duration, error) {
	var seconds *float64
	err := engineDB{w.db, nil}.QueryRow(context.Background(), `
		SELECT extract(epoch FROM min(at) - statement_timestamp())::double precision
		FROM (
			SELECT run_at AS at FROM outbox.jobs
			WHERE status IN ('pending', 'retrying') AND kind = ANY ($1)
			UNION ALL
			SELECT deadline FROM outbox.jobs WHERE status NOT IN ('failed', 'dead')
			UNION ALL
			SELECT next_at - $2::interval FROM outbox.schedules WHERE paused_at IS NULL
		) AS moment
		WHERE at > statement_timestamp()`, w.mux.Kinds(), interval(w.ahead)).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("look what is due next: %w", err)
	}
	if seconds == nil || *seconds > farOff.Seconds() {
		return farOff, nil
	}
	return time.Duration(*seconds*1e6+1) * time.Microsecond, nil
}

const farOff = 100 * 365 * 24 * time.Hour

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// pass lets time pass during which nothing becomes due except at its end, and then does the due work that needs no
// handler.
func (w *Worker) pass(d time.Duration) error {
	ctx := context.Background()
	err := w.inTx(func(tx pgx.Tx) error {
		for _, sql := range []string{moveJobs, moveKeys} {
			if _, err := tx.Exec(ctx, sql, interval(d)); err != nil {
				return err
			}
		}
		if err := w.moveColumns(ctx, tx, interval(d)); err != nil {
			return err
		}
		w.ahead += d
		_, err := schedule.FireIn(ctx, tx, w.ahead)
		return err
	})
	if err != nil {
		return err
	}
	return w.inline.Expire(ctx)
}

const (
	moveJobs = `UPDATE outbox.jobs
		SET run_at = run_at - $1::interval, created_at = created_at - $1::interval, started_at = started_at - $1::interval, deadline = deadline - $1::interval,
		    unavailable_since = unavailable_since - $1::interval, failed_at = failed_at - $1::interval
		WHERE status <> 'running'`
	moveKeys = `UPDATE outbox.keys SET made_at = made_at - $1::interval, park_at = park_at - $1::interval, parked_at = parked_at - $1::interval`
)

// moveColumns moves the test's own columns: as the test's tenant, because policies of its tables need not know "*".
func (w *Worker) moveColumns(ctx context.Context, tx pgx.Tx, by pgtype.Interval) error {
	if len(w.config.Columns) == 0 {
		return nil
	}
	if err := setTenant(ctx, tx, w.db.tenant); err != nil {
		return err
	}
	for _, column := range w.config.Columns {
		path := strings.Split(column, ".")
		name := pgx.Identifier(path[len(path)-1:]).Sanitize()
		table := pgx.Identifier(path[:len(path)-1]).Sanitize()
		if _, err := tx.Exec(ctx,
			fmt.Sprintf(`UPDATE %s SET %s = %[2]s - $1::interval WHERE %[2]s IS NOT NULL`, table, name), by); err != nil {
			return err
		}
	}
	return setTenant(ctx, tx, allTenants)
}
