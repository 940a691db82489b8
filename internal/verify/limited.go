package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/checker"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/operator"
)

// recordStarts records when jobs were started, by the time that their claims store.
const recordStarts = `
	CREATE TABLE verify.starts (at timestamptz NOT NULL);
	CREATE FUNCTION verify.started() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		INSERT INTO verify.starts VALUES (NEW.started_at);
		RETURN NULL;
	END $$;
	CREATE TRIGGER verify_started AFTER UPDATE OF status ON outbox.jobs
		FOR EACH ROW WHEN (NEW.status = 'running' AND OLD.status <> 'running') EXECUTE FUNCTION verify.started()`

// limitedQueue runs row K5.
func limitedQueue(ctx context.Context, r *Run) error {
	const workers, maxRunning = 3, 6
	rate := operator.Rate{Starts: 30, Interval: 400 * time.Millisecond}
	r.Lease = 2 * time.Second // a killed worker's jobs count as running until it lapses
	if _, err := r.DB.Exec(ctx, recordStarts); err != nil {
		return err
	}
	if _, _, err := operator.New(r.DB).Limit(ctx, engine.DefaultQueue,
		operator.Limits{MaxRunning: new(maxRunning), Rate: &rate}); err != nil {
		return err
	}
	jobs := r.Size(350, 30_000)
	f := flow{
		jobs: jobs, producers: 2, workers: workers, concurrency: maxRunning,
		patience: time.Minute + time.Duration(jobs)*50*time.Millisecond,
		producerEnv: []string{
			"VERIFY_INSIST=on", "VERIFY_CLIENTS=4", "VERIFY_MS=60", "VERIFY_PACE=" + r.pace("80ms", "60ms"),
			"VERIFY_MIX=effect,once,effect,sleep,sleep,sleep",
		},
	}
	f.least = map[string]int{"kill -9 worker": 3}
	f.faults = func(ctx context.Context, c *crew) error {
		return r.beat(acts{
			"kill": func(ctx context.Context, p fault.Planned) error { return c.replace(ctx, p.Target) },
		}, fault.Beat{Kind: "kill", Every: 700 * time.Millisecond, Targets: workers})(ctx)
	}
	if _, err := f.run(ctx, r); err != nil {
		return err
	}
	r.allAcked(f.jobs)
	if err := r.checkRunning(ctx, maxRunning); err != nil {
		return err
	}
	return r.checkStarts(ctx, rate)
}

// checkRunning checks at every instant how many jobs were running, by the recorded moves.
func (r *Run) checkRunning(ctx context.Context, limit int) error {
	running, _, err := r.leases(ctx)
	if err != nil {
		return err
	}
	var all []checker.Span
	for _, spans := range running {
		all = append(all, spans...)
	}
	most, which := checker.AtOnce(all)
	var tooMany []string
	if most > limit {
		tooMany = append(tooMany, fmt.Sprintf("%d: %v", most, which))
	}
	r.None("moments with more running jobs than the limit", tooMany)
	r.Expect("most jobs running at one moment", float64(most), "=", float64(limit))
	return nil
}

// checkStarts checks how many jobs were started in the interval after each start.
func (r *Run) checkStarts(ctx context.Context, rate operator.Rate) error {
	const spans = `SELECT at, count(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND make_interval(secs => $1) FOLLOWING) AS n FROM verify.starts`
	within := (rate.Interval - time.Microsecond).Seconds() // the interval does not include its end
	tooMany, err := r.Texts(ctx, `SELECT DISTINCT at || ': ' || n FROM (`+spans+`) AS spans WHERE n > $2`, within,
		rate.Starts)
	if err != nil {
		return err
	}
	most, err := r.Number(ctx, `SELECT max(n) FROM (`+spans+`) AS spans`, within)
	if err != nil {
		return err
	}
	r.None("rate intervals with more starts than allowed", tooMany)
	r.Expect("most starts within one rate interval", float64(most), ">=", float64(rate.Starts)*2/3)
	return nil
}
