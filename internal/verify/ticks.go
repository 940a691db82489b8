package verify

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ticks runs row K3.
func ticks(ctx context.Context, r *Run) error {
	const workers = 3
	r.Lease = 3 * time.Second
	crew, err := r.Crew(workers, "VERIFY_SCHEDULES=on", "VERIFY_CONCURRENCY=8")
	if err != nil {
		return err
	}
	if err := r.Await(ctx, patience, "a schedule to have fired", func(ctx context.Context) (bool, error) {
		n, err := r.closed(ctx)
		return n > 0, err
	}); err != nil {
		return err
	}
	// Cron has no seconds: pretend that the schedule has missed its ticks of a quarter of an hour.
	if _, err := r.DB.Exec(ctx, `UPDATE outbox.schedules SET since = since - interval '15 minutes',
		next_at = date_trunc('minute', since - interval '15 minutes') + interval '1 minute' WHERE name = $1`, probe.Minutes); err != nil {
		return err
	}
	plan := fault.Schedule(r.Seed, time.Duration(r.Size(9, 600))*time.Second,
		fault.Beat{Kind: "kill", Every: 500 * time.Millisecond, Targets: workers},
		fault.Beat{Kind: "restart", Every: time.Duration(r.Size(3, 20)) * time.Second})
	if err := r.Inject(ctx, plan, acts{
		"kill":    func(ctx context.Context, p fault.Planned) error { return crew.replace(ctx, p.Target) },
		"restart": r.restartPostgres,
	}); err != nil {
		return err
	}
	if err := r.pauseSchedules(ctx); err != nil {
		return err
	}
	if err := r.Drain(ctx, 0, time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	r.atLeast(5, "kill -9 worker")
	r.atLeast(1, "restart Postgres -m immediate")
	if err := r.checkTicks(ctx); err != nil {
		return err
	}
	moves, err := r.checkMoves(ctx)
	if err != nil {
		return err
	}
	b, err := r.read()
	if err != nil {
		return err
	}
	if _, err := r.checkOverlaps(ctx, b, moves.GivenUp); err != nil {
		return err
	}
	r.None(noCrashes, r.fates())
	return nil
}

// pauseSchedules waits until the missed ticks were fired, and pauses the schedules, so that the fired ticks can be
// counted.
func (r *Run) pauseSchedules(ctx context.Context) error {
	if err := r.Await(ctx, patience, "missed ticks to be fired", func(ctx context.Context) (bool, error) {
		var behind int
		err := r.DB.QueryRow(
			ctx, `SELECT count(*) FROM outbox.schedules WHERE next_at < now() - interval '2 seconds'`).Scan(&behind)
		return behind == 0, err
	}); err != nil {
		return err
	}
	o := operator.New(r.DB)
	for _, name := range []string{probe.Seconds, probe.Minutes} {
		if err := o.PauseSchedule(ctx, outbox.RootTenant, name); err != nil {
			return err
		}
	}
	return nil
}

// checkTicks compares the jobs with the ticks from the declaration of each schedule to its pause. Drain must have
// closed all jobs.
func (r *Run) checkTicks(ctx context.Context) error {
	const fired = `fired AS (SELECT headers ->> 'schedule' AS name, (headers ->> 'scheduled_for')::timestamptz AS at, status FROM outbox.history),
		due AS (SELECT name, at FROM outbox.schedules, LATERAL (SELECT CASE name WHEN 'seconds' THEN interval '1 second' ELSE interval '1 minute' END AS step) AS every,
			generate_series(date_bin(step, since, '1970-01-01 UTC') + step, next_at - step, step) AS at WHERE at > since) `
	for what, sql := range map[string]string{
		"ticks fired twice":                 `SELECT name || ' at ' || at || ': ' || count(*) FROM fired GROUP BY name, at HAVING count(*) > 1`,
		"ticks never fired":                 `SELECT name || ' at ' || at FROM due EXCEPT SELECT name || ' at ' || at FROM fired`,
		"jobs without a tick":               `SELECT coalesce(name || ' at ' || at, 'a job without a tick') FROM fired EXCEPT SELECT name || ' at ' || at FROM due`,
		"ticks whose job has not succeeded": `SELECT name || ' at ' || at || ': ' || status FROM fired WHERE status <> 'succeeded'`,
		"ticks whose job is still open":     `SELECT id::text FROM outbox.jobs`,
	} {
		found, err := r.Texts(ctx, `WITH `+fired+sql)
		if err != nil {
			return err
		}
		r.None(what, found)
	}
	for name, least := range map[string]int{probe.Seconds: r.Size(8, 500), probe.Minutes: 15} {
		n, err := r.Number(ctx, `SELECT count(*) FROM outbox.history WHERE headers ->> 'schedule' = $1`, name)
		if err != nil {
			return err
		}
		r.Expect("ticks fired by schedule "+name, float64(n), ">=", float64(least))
	}
	return nil
}
