package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	heldJobs   = 10_000  // held by the worker that dies
	liveLeases = 100_000 // of other workers
	lapsedRows = 20_000  // for the reaper's rate
)

// deadWorkers runs row B9.
func deadWorkers(ctx context.Context, r *Run) error {
	if r.Tier == TierS {
		r.Lease = 4 * time.Second // with reap and poll, the scorecard's 7.5 s
	}
	if err := r.insertRunning(ctx, "somebody else", liveLeases, "1 day"); err != nil {
		return err
	}
	var took []time.Duration
	deaths := r.Size(1, 10)
	for n := range deaths {
		fresh, err := r.die(ctx, n)
		if err != nil {
			return err
		}
		took = append(took, fresh...)
	}
	untouched, err := r.Number(
		ctx, `SELECT count(*) FROM outbox.jobs WHERE status = 'running' AND lease_owner = 'somebody else' AND epoch = 1`)
	if err != nil {
		return err
	}
	r.Expect("live leases of other workers left untouched", float64(untouched), "=", liveLeases)
	if err := r.measureReaper(ctx); err != nil {
		return err
	}
	if _, err := r.DB.Exec(ctx, `DELETE FROM outbox.jobs WHERE kind = 'verify.nobody'`); err != nil {
		return err
	}
	if _, err := r.Check(ctx); err != nil {
		return err
	}
	slices.Sort(took)
	median, p99, last := took[len(took)/2].Seconds(), took[len(took)*99/100].Seconds(), took[len(took)-1].Seconds()
	r.Figure("rerun_median_s", median)
	r.Figure("rerun_p99_s", p99)
	r.Figure("rerun_max_s", last)
	r.atLeast(deaths, "kill -9 worker")
	r.Expect("jobs of killed workers that were run again", float64(len(took)), "=", float64(deaths*heldJobs))
	const reap, poll = 2500 * time.Millisecond, time.Second
	r.Expect("seconds from the kill until the jobs were run again, p99", p99, "<=", (r.Lease + reap + poll).Seconds())
	return nil
}

// die starts a worker, lets it run all the jobs at once, kills it, and returns how long after the kill another worker
// started each of them again.
func (r *Run) die(ctx context.Context, n int) (took []time.Duration, err error) {
	env := []string{fmt.Sprint("VERIFY_CONCURRENCY=", heldJobs), "OUTBOX_REAP=off"}
	victim, err := r.Worker(fmt.Sprintf("victim%d", n), env...)
	if err != nil {
		return nil, err
	}
	if _, err := r.Enqueue(ctx, tasks(heldJobs, func(int) probe.Task { return probe.Task{Do: "wait"} }),
		outbox.Options{}); err != nil {
		return nil, err
	}
	r.Progress("hold", 0, heldJobs)
	if err := r.awaitEntries(ctx, ledger.NewTail(r.ledgerOf(victim.Name)), ledger.Start, heldJobs); err != nil {
		return nil, err
	}
	heir, err := r.Worker(fmt.Sprintf("heir%d", n), env[:1]...)
	if err != nil {
		return nil, err
	}
	if err := r.awaitLog(ctx, heir, "reaper started"); err != nil {
		return nil, err
	}
	r.Faults.Begin("kill -9 worker", victim.Name)()
	died := time.Now()
	if err := victim.Kill9(); err != nil {
		return nil, err
	}
	r.Progress("run again", 0, heldJobs)
	book := ledger.NewTail(r.ledgerOf(heir.Name))
	if err := r.awaitEntries(ctx, book, ledger.Start, heldJobs); err != nil {
		return nil, err
	}
	entries, err := book.Entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Event == ledger.Start {
			took = append(took, e.At.Sub(died))
		}
	}
	return took, r.finishWaiting(ctx, heir)
}

// finishWaiting opens the gate that a worker's jobs wait for, stops the worker when they are done, and shuts the gate
// again.
func (r *Run) finishWaiting(ctx context.Context, p *child.Process) error {
	if _, err := r.DB.Exec(ctx, `INSERT INTO gates DEFAULT VALUES`); err != nil {
		return err
	}
	err := r.Await(ctx, time.Minute, "the jobs to be done", func(ctx context.Context) (bool, error) {
		var open int
		err := r.DB.QueryRow(ctx, `SELECT count(*) FROM outbox.jobs WHERE kind <> 'verify.nobody'`).Scan(&open)
		return open == 0, err
	})
	if err != nil {
		return err
	}
	if err := r.stop(ctx, p); err != nil {
		return err
	}
	_, err = r.DB.Exec(ctx, `DELETE FROM gates`)
	return err
}

// measureReaper stores leases that have lapsed, of a kind that no worker runs, and checks that a new process expires
// them fast enough. The rate is measured from the end of the first statement to the end of the last.
func (r *Run) measureReaper(ctx context.Context) error {
	if err := r.insertRunning(ctx, "nobody", lapsedRows, "-1 minute"); err != nil {
		return err
	}
	p, err := r.Worker("reaper")
	if err != nil {
		return err
	}
	r.Progress("reap", 0, lapsedRows)
	const reaped = `FROM verify.moves JOIN outbox.jobs ON jobs.id = moves.job WHERE jobs.kind = 'verify.nobody' AND was = 'running' AND became = 'retrying'`
	err = r.Await(ctx, patience, "the reaper", func(ctx context.Context) (bool, error) {
		var n int
		err := r.DB.QueryRow(ctx, `SELECT count(*) `+reaped).Scan(&n)
		return n == lapsedRows, err
	})
	if err != nil {
		return err
	}
	var rate float64
	err = r.DB.QueryRow(ctx, `WITH statement AS (SELECT max(at) AS at, count(*) AS n `+reaped+` GROUP BY moves.xmin)
		SELECT (sum(n) - (SELECT n FROM statement ORDER BY at LIMIT 1)) / extract(epoch FROM max(at) - min(at))::float8 FROM statement`).Scan(&rate)
	if err != nil {
		return err
	}
	r.Figure("reaped_per_s", rate)
	r.Expect("leases expired by the reaper, per second", rate, ">=", 5000)
	if err := r.stop(ctx, p); err != nil {
		return err
	}
	_, err = r.DB.Exec(ctx,
		`DELETE FROM verify.moves USING outbox.jobs WHERE jobs.id = moves.job AND jobs.kind = 'verify.nobody'`)
	return err
}

// insertRunning stores jobs that an unknown worker appears to run. It records no moves for them, since no claim made
// them run.
func (r *Run) insertRunning(ctx context.Context, owner string, n int, lease string) error {
	return pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `ALTER TABLE outbox.jobs DISABLE TRIGGER verify_made`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO outbox.jobs (id, kind, payload, status, attempt, epoch, lease_owner, lease_expires_at, started_at)
			SELECT outbox.uuid_v7(), 'verify.nobody', '{}', 'running', 1, 1, $1, clock_timestamp() + $2::text::interval, now()
			FROM generate_series(1, $3)`, owner, lease, n)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `ALTER TABLE outbox.jobs ENABLE TRIGGER verify_made`)
		return err
	})
}

// awaitLog waits until a process has logged a message.
func (r *Run) awaitLog(ctx context.Context, p *child.Process, msg string) error {
	return r.Await(ctx, patience, fmt.Sprintf("%s to log %q", p.Name, msg), func(context.Context) (bool, error) {
		lines, err := logged(p, saying(msg))
		return len(lines) > 0, err
	})
}
