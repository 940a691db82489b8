package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
)

// forgedNotifications runs row C5: the same load without forged notifications and with them.
func forgedNotifications(ctx context.Context, r *Run) error {
	const dispatchers = 2
	if _, err := r.DB.Exec(ctx, `CREATE EXTENSION pg_stat_statements; CREATE ROLE stranger LOGIN`); err != nil {
		return err
	}
	crew, err := r.Crew(dispatchers, "VERIFY_CONCURRENCY=16")
	if err != nil {
		return err
	}
	if err := r.awaitStatus(ctx, "ready", crew.workers...); err != nil {
		return err
	}
	lasts := time.Duration(r.Size(6, 35)) * time.Second
	forged := r.Size(10_000, 11_000) // a second; some are late, and S must see 10,000
	var calm, storm weather
	err = r.trickle(ctx, crew.workers, []string{
		"VERIFY_CLIENTS=4", "VERIFY_PACE=20ms",
		"VERIFY_MIX=effect,nothing,once",
	}, func(ctx context.Context) (err error) {
		r.Progress("warm up", 0, 0)
		if err := backoff.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		r.Progress("without forged notifications", 0, 0)
		if calm, err = r.observe(ctx, lasts); err != nil {
			return err
		}
		r.Progress("with forged notifications", 0, 0)
		healed := r.Faults.Begin("forged notifications", "")
		defer healed()
		raging, end := context.WithCancel(ctx)
		defer end()
		var n int
		var failed error
		var raged sync.WaitGroup
		raged.Go(func() { n, failed = r.forge(raging, forged) })
		storm, err = r.observe(ctx, lasts)
		end()
		raged.Wait()
		r.Expect("forged notifications per second", float64(n)/lasts.Seconds(), ">=", float64(r.Size(5_000, 10_000)))
		return errors.Join(err, failed)
	})
	if err != nil {
		return err
	}
	return r.compare(calm, storm, dispatchers)
}

// weather holds how many queries the dispatchers sent per second within a period.
type weather struct {
	from, until     time.Time
	claims, surveys float64 // per second
}

func (r *Run) observe(ctx context.Context, lasts time.Duration) (w weather, err error) {
	const calls = `SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements WHERE query LIKE `
	var before, after [2]int
	count := func(n *[2]int) {
		// Not by the comment before it, which PostgreSQL 18 leaves out.
		for i, statement := range []string{`'%started_at       = statement_timestamp()%'`, `'%AS surveyed_at%'`} {
			if err == nil {
				n[i], err = r.Number(ctx, calls+statement)
			}
		}
	}
	w.from = time.Now()
	count(&before)
	err = errors.Join(err, backoff.Sleep(ctx, lasts))
	count(&after)
	w.until = time.Now()
	seconds := w.until.Sub(w.from).Seconds()
	w.claims, w.surveys = float64(after[0]-before[0])/seconds, float64(after[1]-before[1])/seconds
	return w, err
}

// How many claims per second forged notifications may add for each dispatcher. A dispatcher that is woken for nothing
// looks at most every 20 ms, so that an idle one comes to fifty. If it looked less often, forged notifications would
// delay real jobs. In a soak the dispatchers claim real jobs all the time, and forged notifications add far fewer.
const (
	stormClaims     = 55
	soakStormClaims = 20
)

// compare checks that the forged notifications cost little.
func (r *Run) compare(calm, storm weather, dispatchers float64) error {
	all, err := r.pickups()
	if err != nil {
		return err
	}
	before, during := between(all, calm.from, calm.until), between(all, storm.from, storm.until)
	r.Count("jobs committed before the forged notifications", len(before))
	r.Count("jobs committed during the forged notifications", len(during))
	r.Expect("jobs committed during the forged notifications", float64(len(during)), ">=", float64(r.Size(1, 5_000)))
	r.Figure("claims_per_s", calm.claims)
	r.Figure("claims_per_s_in_storm", storm.claims)
	r.Figure("surveys_per_s", calm.surveys)
	r.Figure("surveys_per_s_in_storm", storm.surveys)
	r.Figure("pickup_p50_ms", ms(quantile(before, 0.5)))
	r.Figure("pickup_p50_in_storm_ms", ms(quantile(during, 0.5)))
	r.Figure("pickup_p99_ms", ms(quantile(before, 0.99)))
	r.Figure("pickup_p99_in_storm_ms", ms(quantile(during, 0.99)))
	r.Expect("claim queries per second before the forged notifications", calm.claims, ">=", 1)
	r.Expect("claim queries per second that the forged notifications added for each dispatcher",
		(storm.claims-calm.claims)/dispatchers, "<=", float64(r.Size(stormClaims, soakStormClaims)))
	r.Expect("ms from commit to start during the forged notifications, p99", ms(quantile(during, 0.99)), "<=",
		max(2*ms(quantile(before, 0.99)), 50))
	return nil
}

// forge sends notifications as a role without any grants, until ctx ends, and returns how many.
func (r *Run) forge(ctx context.Context, aSecond int) (n int, err error) {
	const strangers, batch = 2, 20
	u, err := url.Parse(r.URL)
	if err != nil {
		return 0, err
	}
	u.User = url.User("stranger")
	// Postgres merges equal notifications of a transaction: these differ.
	statement := fmt.Sprintf(`SELECT pg_notify('%s', i::text) FROM generate_series(1, %d) AS i`, engine.Channel, batch)
	errs := make([]error, strangers)
	var sent atomic.Int64
	var forging sync.WaitGroup
	for i := range strangers {
		forging.Go(func() {
			errs[i] = forgeAlone(ctx, u.String(), statement, time.Second*strangers*batch/time.Duration(aSecond),
				func() { sent.Add(batch) })
		})
	}
	forging.Wait()
	return int(sent.Load()), errors.Join(errs...)
}

func forgeAlone(ctx context.Context, url, statement string, every time.Duration, sent func()) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil { // not to wait for the disk
		return err
	}
	beat := time.NewTicker(every)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
		// The statement is fast: the end of ctx need not interrupt it.
		if _, err := conn.Exec(context.WithoutCancel(ctx), statement); err != nil {
			return err
		}
		sent()
	}
}
