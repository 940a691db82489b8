package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/outbox"
)

// heldSnapshot runs row D1: an idle transaction keeps dead rows and index entries from being removed, while jobs come
// and go at a steady pace. Tier P is too short for that, and makes as many dead entries as ten minutes would leave.
func heldSnapshot(ctx context.Context, r *Run) error {
	const deadEntries = 300_000 // 500 per second for ten minutes
	before := time.Duration(r.Size(5, 60)) * time.Second
	held := time.Duration(r.Size(6, 600)) * time.Second
	crew, err := r.Crew(2, "VERIFY_CONCURRENCY=16", tracing)
	if err != nil {
		return err
	}
	producer, err := r.Producer("p0", "VERIFY_CLIENTS=2", "VERIFY_BATCH=5", "VERIFY_PACE=16ms", "VERIFY_MIX=nothing")
	if err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, 2*time.Second); err != nil { // until the processes are warm
		return err
	}
	baseline := span{from: time.Now()}
	if err := backoff.Sleep(ctx, before); err != nil {
		return err
	}
	baseline.until = time.Now()

	forgotten, err := r.holdSnapshot(ctx)
	if err != nil {
		return err
	}
	defer forgotten.Close(context.WithoutCancel(ctx))
	healed := r.Faults.Begin("idle transaction holds xmin", "")
	if r.Tier == TierP {
		if err := r.leaveDeadEntries(ctx, outbox.RootTenant, deadEntries); err != nil {
			return err
		}
	}
	during := span{from: time.Now()}
	if err := backoff.Sleep(ctx, held); err != nil {
		return err
	}
	during.until = time.Now()
	if err := r.expectDead(ctx, deadEntries); err != nil {
		return err
	}
	c := r.newClaims()
	if err := c.read(); err != nil { // now, since a soak's ledgers are long, and expectSteady reads on repeatedly
		return err
	}
	if err := forgotten.Close(ctx); err != nil {
		return err
	}
	healed()
	if err := r.expectSteady(ctx, c, baseline, during); err != nil {
		return err
	}
	return r.endSteady(ctx, producer, crew)
}

// span is a period of the run.
type span struct{ from, until time.Time }

// holdSnapshot opens a session and begins a transaction in it, which holds a snapshot until the session is closed.
func (r *Run) holdSnapshot(ctx context.Context) (*pgx.Conn, error) {
	config := r.DB.Config().ConnConfig.Copy()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders`); err != nil {
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return conn, nil
}

// leaveDeadEntries inserts and deletes rows, due now, in one transaction that nothing else can see. The index of due
// jobs keeps an entry of each for as long as the snapshot is held.
func (r *Run) leaveDeadEntries(ctx context.Context, tenant outbox.ID, n int) error {
	r.Progress("leave dead rows behind", 0, 0)
	return pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`) // these are no jobs: record no moves
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload)
				SELECT outbox.uuid_v7(), $1, 'dead', '{}' FROM generate_series(1, $2::integer)`, tenant.String(), n)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM outbox.jobs WHERE kind = 'dead'`)
		}
		if err != nil {
			return fmt.Errorf("leave dead entries behind: %w", err)
		}
		return nil
	})
}

// expectDead checks that there are at least the given number of dead rows.
func (r *Run) expectDead(ctx context.Context, least int) error {
	var age, dead int
	err := r.DB.QueryRow(ctx, `SELECT (SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE state = 'idle in transaction'),
		(SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.jobs'::regclass)`).Scan(&age, &dead)
	r.Figure("xmin_age", float64(age))
	r.Expect("dead rows that vacuum cannot remove", float64(dead), ">=", float64(least))
	return err
}

// expectSteady compares claims during the fault with those before it, and waits until they are as fast as before. Two
// seconds out of three must be fast, so that a single noisy second does not decide.
func (r *Run) expectSteady(ctx context.Context, c *claims, baseline, during span) error {
	const patience = 60 * time.Second
	released := time.Now()
	var before, under time.Duration
	recovered := r.Await(ctx, patience+5*time.Second, "claims to be as fast as before",
		func(context.Context) (bool, error) {
			now := time.Now() // reading may take seconds; claims of that time are left out
			if err := c.read(); err != nil {
				return false, err
			}
			var n, m int
			before, n = c.p99(baseline.from, baseline.until)
			under, m = c.p99(during.from, during.until)
			r.record.Counts["claims before the fault"], r.record.Counts["claims during the fault"] = n, m
			after, seen := c.p99s(now.Add(-5*time.Second), now)
			fast := 0
			for _, p99 := range after[max(len(after)-3, 0):] {
				// A scan over dead entries takes a hundred milliseconds; less comes from a busy machine.
				if p99 <= max(2*before, before+20*time.Millisecond) {
					fast++
				}
			}
			return seen > 0 && fast >= 2, backoff.Sleep(ctx, 500*time.Millisecond)
		})
	took := time.Since(released)
	if recovered != nil && ctx.Err() != nil {
		return recovered
	}
	r.Figure("claim_p99_before_ms", milliseconds(before))
	r.Figure("claim_p99_during_ms", milliseconds(under))
	r.Expect("claim p99 while the snapshot is held, divided by claim p99 before", under.Seconds()/before.Seconds(),
		"<=", 5)
	r.Expect("seconds from the release until claims were as fast as before", took.Seconds(), "<=", patience.Seconds())
	if err := r.figurePickups(ctx, baseline, during); err != nil {
		return err
	}
	return r.expectThroughput(ctx, baseline, during)
}

// figurePickups records how long jobs waited for their claim, before the fault and during it.
func (r *Run) figurePickups(ctx context.Context, baseline, during span) error {
	// The table has grown by two hundred thousand rows; a plan for few rows would take a minute.
	if _, err := r.DB.Exec(ctx, `ANALYZE verify.moves`); err != nil {
		return err
	}
	for name, s := range map[string]span{"pickup_p99_before_ms": baseline, "pickup_p99_during_ms": during} {
		var p99 float64
		if err := r.DB.QueryRow(ctx, `SELECT coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM claimed.at - made.at)), 0)
			FROM verify.moves AS made JOIN verify.moves AS claimed USING (job)
			WHERE made.was IS NULL AND claimed.became = 'running' AND made.at BETWEEN $1 AND $2`, s.from, s.until).Scan(&p99); err != nil {
			return err
		}
		r.Figure(name, p99*1000)
	}
	return nil
}

// expectThroughput compares the completed jobs per second during the fault with those before it.
func (r *Run) expectThroughput(ctx context.Context, baseline, during span) error {
	// The median of the seconds, as for the claims.
	perSecond := func(s span) (rate float64, err error) {
		err = r.DB.QueryRow(ctx, `SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY n), 0) FROM (
			SELECT count(*) AS n FROM verify.moves WHERE became = 'succeeded' AND at >= date_trunc('second', $1::timestamptz + interval '1 s') AND at < date_trunc('second', $2::timestamptz)
			GROUP BY date_trunc('second', at)) AS seconds`, s.from, s.until).Scan(&rate)
		return rate, err
	}
	steady, err := perSecond(baseline)
	if err != nil {
		return err
	}
	rate, err := perSecond(during)
	if err != nil {
		return err
	}
	r.Figure("jobs_per_s_before", steady)
	r.Figure("jobs_per_s_during", rate)
	r.Expect("throughput while the snapshot is held, divided by throughput before", rate/steady, ">=", 0.8)
	return nil
}

// endSteady stops the producer, if there is one, drains, stops the workers, and checks.
func (r *Run) endSteady(ctx context.Context, producer *child.Process, crew *crew) error {
	if producer != nil {
		if err := r.stop(ctx, producer); err != nil {
			return err
		}
	}
	// In a soak, a slow database leaves thousands of open jobs.
	if err := r.Drain(ctx, 0, time.Duration(r.Size(1, 10))*time.Minute); err != nil {
		return err
	}
	if err := r.stop(ctx, crew.workers...); err != nil {
		return err
	}
	_, err := r.Check(ctx)
	return err
}
