package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/verify/checker"
)

// fakeTime makes the server take the time from libfaketime, which adds the offset that a file holds. Timeouts are
// unaffected: they use the monotonic clock.
func fakeTime(r *Run) ([]string, error) {
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(found) == 0 {
		return nil, notPossible("libfaketime is not installed (apt-get install faketime)")
	}
	dir, err := os.MkdirTemp("", "posthaste-clock-") // the server's account may be unable to read the run's own folder
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	r.clock = filepath.Join(dir, "clock")
	file := r.clock
	return []string{
		"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + file, "FAKETIME_CACHE_DURATION=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}, stepTo(file, 0)
}

// stepTo sets the offset of the server's clock, by an atomic rename.
func stepTo(file string, off time.Duration) error {
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%+d\n", int(off.Seconds())), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

const serverStep = 10 * time.Minute

// Steps of the server's clock. A step ahead ends leases, a step back does not.
const (
	stepAhead = "server's clock steps ahead"
	stepBack  = "server's clock steps back"
)

// serverClock runs row B4b.
func serverClock(ctx context.Context, r *Run) (err error) {
	if r.Tier == TierP {
		r.Lease = 3 * time.Second
	}
	var standby *pgdev.Server
	if r.Tier == TierS {
		if standby, err = r.standbyOfOneClock(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, standby.Stop()) }()
		defer func() { r.DB.Close() }()
	}
	f := flow{
		jobs: r.Size(4_000, 20_000), producers: 2, workers: 3, concurrency: 128,
		producerEnv: append(insisting("10ms"), "VERIFY_MS=1000"),
	}
	f.least = map[string]int{stepAhead: r.Size(2, 8), stepBack: r.Size(1, 8)}
	if standby != nil {
		f.least[failedOver] = 5
	}
	steps := 0
	// A step lasts until the next one. Processes cannot detect it.
	f.faults = func(ctx context.Context, c *crew) error {
		for ; backoff.Sleep(ctx, time.Second) == nil; steps++ {
			var fail **pgdev.Server
			if standby != nil && steps%3 == 2 { // which is sometimes a step ahead and sometimes one back
				fail = &standby
			}
			if err := r.stepServer(context.WithoutCancel(ctx), time.Duration((steps+1)%2)*serverStep,
				fail); err != nil {
				return err
			}
			if steps == 1 {
				if err := c.replace(context.WithoutCancel(ctx), 0); err != nil {
					return err
				}
			}
		}
		return nil
	}
	// Jobs that were stored while the clock was ahead become due only when it is ahead again.
	f.healed = func(ctx context.Context) error { return r.stepServer(ctx, serverStep, nil) }
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	// At least the leases of the killed worker expired. To the reaper a step ahead is an outage, which costs a job no
	// attempt and does not count as a lost lease: only the record of the attempt shows it.
	lapsed, err := r.Number(ctx, `SELECT count(*) FROM outbox.attempts WHERE error_code = 'lease_lost'`)
	if err != nil {
		return err
	}
	r.Expect("leases that expired because of a clock step", float64(lapsed), ">=", 1)
	r.allAcked(f.jobs)
	return nil
}

// standbyOfOneClock starts a standby whose clock steps together with the server's, like two machines that are set by
// the same source. It turns off the servers' replication timeouts, which use that clock.
func (r *Run) standbyOfOneClock(ctx context.Context) (*pgdev.Server, error) {
	for _, sql := range []string{
		`ALTER SYSTEM SET wal_sender_timeout = 0`, `ALTER SYSTEM SET wal_receiver_timeout = 0`,
		`SELECT pg_reload_conf()`,
	} {
		if _, err := r.DB.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	standby, err := r.Server.Standby(ctx, 0)
	if err != nil {
		return nil, err
	}
	if err := r.connectToEither(ctx, standby); err != nil {
		return nil, errors.Join(err, standby.Stop())
	}
	return standby, nil
}

// lapsedByStep returns a function that reports whether an execution lost its lease because the taker's clock was ahead
// of the giver's: by a step between the two, or because one of their sessions had not yet seen a step, which it looks
// for once a second. The recorded moves have the clock of the session that made them.
func (r *Run) lapsedByStep(ctx context.Context) (func(job string, x checker.Execution) bool, error) {
	rows, err := r.DB.Query(ctx, `
		SELECT job::text, epoch
		FROM (SELECT job, became, epoch, at, lead(at) OVER (PARTITION BY job ORDER BY seq) AS taken FROM verify.moves) AS moves
		WHERE became = 'running' AND taken - at > $1::text::interval`, (serverStep / 2).String())
	if err != nil {
		return nil, err
	}
	lapsed := map[checker.Lease]bool{}
	var lease checker.Lease
	_, err = pgx.ForEachRow(rows, []any{&lease.Job, &lease.Epoch}, func() error {
		lapsed[lease] = true
		return nil
	})
	return func(job string, x checker.Execution) bool { return lapsed[checker.Lease{Job: job, Epoch: x.Epoch}] }, err
}

// stepServer steps the clock and waits until new sessions see it. If standby is not nil, it also kills the server at
// the step, promotes the standby, and starts a new one.
func (r *Run) stepServer(ctx context.Context, off time.Duration, standby **pgdev.Server) error {
	kind := stepBack
	if off > 0 {
		kind = stepAhead
	}
	healed := r.Faults.Begin(kind, "")
	if err := stepTo(r.clock, off); err != nil {
		return err
	}
	if standby != nil {
		if _, err := r.promote(ctx, standby); err != nil {
			return err
		}
		r.DB.Reset()
	}
	err := r.Await(ctx, 10*time.Second, "the server to see the step", func(ctx context.Context) (bool, error) {
		var now time.Time
		err := r.DB.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
		return (time.Until(now) - off).Abs() < time.Second, err
	})
	if err == nil {
		err = backoff.Sleep(ctx, r.Lease) // until every lease that a step ended was lost or extended
	}
	healed()
	if err == nil && standby != nil { // a new standby takes the place of the dead server
		next, err := r.Server.Standby(ctx, port(*standby))
		if err != nil {
			return err
		}
		*standby = next
	}
	return err
}
