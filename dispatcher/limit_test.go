package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// limit sets the limits of the default queue as an operator does; 0 means no limit. It notifies nobody.
func limit(t *testing.T, db outbox.DB, maxRunning, rate int, interval time.Duration) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.queues (queue, max_running, rate, rate_interval, limited_at)
		VALUES ('default', nullif($1, 0), nullif($2, 0), nullif($3, interval '0'), statement_timestamp())
		ON CONFLICT (queue) DO UPDATE
		SET max_running = excluded.max_running, rate = excluded.rate, rate_interval = excluded.rate_interval, limited_at = excluded.limited_at`,
		maxRunning, rate, interval)
}

// awaitStops waits until limits or a pause have stopped n claims.
func awaitStops(t *testing.T, d *running, n float64) {
	t.Helper()
	awaitThat(t, "claims are stopped", func() bool { return d.metric(t, "outbox_dispatcher_limit_stops_total") >= n })
}

// recordMoves makes the database record, in the order of events, which jobs begin to run and which stop running.
func recordMoves(t *testing.T, db outbox.DB) {
	t.Helper()
	exec(t, db, `CREATE TABLE moves (n bigserial, delta integer, started_at timestamptz)`)
	exec(t, db, `
		CREATE FUNCTION record_move() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF TG_OP = 'DELETE' THEN
				IF OLD.status = 'running' THEN INSERT INTO moves (delta) VALUES (-1); END IF;
			ELSIF NEW.status = 'running' AND OLD.status <> 'running' THEN
				INSERT INTO moves (delta, started_at) VALUES (1, NEW.started_at);
			ELSIF NEW.status <> 'running' AND OLD.status = 'running' THEN
				INSERT INTO moves (delta) VALUES (-1);
			END IF;
			RETURN NULL;
		END $$`)
	exec(t, db, `CREATE TRIGGER record_move AFTER UPDATE OF status OR DELETE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION record_move()`)
}

// mostRunning returns how many jobs ran at once, by the recorded moves. A claim's moves are recorded after the commits
// of those that made room for it.
func mostRunning(t *testing.T, db outbox.DB) int {
	t.Helper()
	return ask[int](t, db, `SELECT coalesce(max(now), 0) FROM (SELECT sum(delta) OVER (ORDER BY n) AS now FROM moves) AS moves`)
}

// mostStarted returns the most starts in any span of the interval.
func mostStarted(t *testing.T, db outbox.DB, interval time.Duration) int {
	t.Helper()
	return ask[int](t, db, `
		SELECT coalesce(max(n), 0)
		FROM (SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN CURRENT ROW AND $1::interval FOLLOWING) AS n
		      FROM moves WHERE delta = 1) AS spans`, interval-time.Microsecond)
}

// probesAndKeys stores n probes, every third of which has one of four keys.
func probesAndKeys(t *testing.T, db outbox.DB, n int) {
	t.Helper()
	var requests []outbox.Request
	for i := range n {
		o := outbox.Options{Priority: i % 2}
		if i%3 == 0 {
			o.Key.Name, o.Key.MaxActive = fmt.Sprintf("k%d", i%4), 1+i%2
		}
		requests = append(requests, outbox.Request{Args: probe{i}, Options: o})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
}

// Three processes share a queue of which five jobs may run. Some of the jobs lose their leases to a reaper while they
// run, some fail, some have keys.
func TestAQueueNeverRunsMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	recordMoves(t, db)
	limit(t, db, 5, 0, 0)
	probesAndKeys(t, db, 300)
	for range 3 {
		start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			switch {
			case job.Attempt > 1:
			case job.Args.N%10 == 0:
				return errors.New("try again")
			case job.Args.N%10 == 1: // as if this process were dead
				if _, err := db.Exec(ctx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second' WHERE id = $1`, job.ID); err != nil {
					return err
				}
				_, err := expireLapsed(ctx, db)
				return err
			}
			return nil
		}, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)}), dispatcher.Config{
			Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 8}},
		})
	}
	awaitSucceeded(t, db, 300)
	if n := mostRunning(t, db); n != 5 {
		t.Errorf("most jobs running at once = %d, want 5", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE lost_leases > 0`); n < 25 {
		t.Errorf("jobs that lost a lease = %d, want some thirty", n)
	}
}

// In any span of the interval no more jobs start than the rate allows. All of them may start at once, in any process.
// Retries count.
func TestAQueueNeverStartsMoreThanItsRate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	recordMoves(t, db)
	const rate, interval = 40, 300 * time.Millisecond
	limit(t, db, 0, rate, interval)
	probesAndKeys(t, db, 200)
	for range 3 {
		start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
			if job.Attempt == 1 && job.Args.N%10 == 0 {
				return errors.New("try again")
			}
			return nil
		}, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)}), dispatcher.Config{
			Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
		})
	}
	awaitSucceeded(t, db, 200)
	if n := ask[int](t, db, `SELECT count(*) FROM moves WHERE delta = 1`); n != 220 {
		t.Errorf("starts = %d, want 220", n)
	}
	if n := mostStarted(t, db, interval); n > rate || n < rate/2 {
		t.Errorf("most starts within %s = %d, want %d", interval, n, rate)
	}
}

// B waits for A's claim, and looks at what runs after it has waited:
//
//	A   hold, look: 0 of 1 runs, start one, commit
//	B         hold, waits                     … look
//
// If B looked with the snapshot from before its wait, it would start a second.
func TestALimitedClaimLooksAfterItHasWaited(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	recordMoves(t, db)
	limit(t, db, 1, 0, 0)
	exec(t, db, `INSERT INTO outbox.queue_usage (queue) VALUES ('default')`)
	ids := enqueueProbes(t, db, 2, outbox.Options{})
	a := begin(t, db)
	if held, err := sqlgen.New(a).HoldQueue(t.Context(), engine.DefaultQueue); err != nil || len(held) != 1 {
		t.Fatalf("held %v, %v", held, err)
	}
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "the claim waits", `
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	p := claimParams("a", 1)
	p.WithinLimits = true
	claimed, err := sqlgen.New(a).ClaimJobs(t.Context(), p)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %v, %v", claimed, err)
	}
	if err := a.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStops(t, d, 2)
	if n := mostRunning(t, db); n != 1 {
		t.Errorf("most jobs running at once = %d, want 1", n)
	}
	// The room that other processes make is found without a notification.
	if _, err := sqlgen.New(db).SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
		Ids: []pgtype.UUID{claimed[0].ID}, Epochs: []int64{claimed[0].Epoch}, Results: [][]byte{nil},
	}); err != nil {
		t.Fatal(err)
	}
	awaitSucceeded(t, db, len(ids))
	if n := mostRunning(t, db); n != 1 {
		t.Errorf("most jobs running at once = %d, want 1", n)
	}
}

// A claim that began before a limit was set commits after a limited claim has looked. It is let through, but it counts
// from then on.
func TestAClaimOfBeforeTheLimitCounts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 3, outbox.Options{})
	before := begin(t, db)
	claimed, err := sqlgen.New(before).ClaimJobs(t.Context(), claimParams("before", 1))
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %v, %v", claimed, err)
	}
	limit(t, db, 1, 0, 0)
	ran, proceed := make(chan struct{}, 3), make(chan struct{})
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		ran <- struct{}{}
		<-proceed
		return nil
	}), quiet(nil))
	receive(t, ran, "the first job to run")
	if err := before.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	proceed <- struct{}{}
	await(t, db, "the first job is settled", `SELECT count(*) = 1 FROM outbox.history`)
	stops := d.metric(t, "outbox_dispatcher_limit_stops_total")
	awaitStops(t, d, stops+2)
	if n := len(ran); n != 0 {
		t.Errorf("started while the job of before the limit runs: %d, want 0", n)
	}
	close(proceed)
	if _, err := sqlgen.New(db).SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
		Ids: []pgtype.UUID{claimed[0].ID}, Epochs: []int64{claimed[0].Epoch}, Results: [][]byte{nil},
	}); err != nil {
		t.Fatal(err)
	}
	awaitSucceeded(t, db, len(ids))
}

// Limits that are set, raised, lowered and lifted take effect, although no notification arrives and the poll is an hour
// away.
func TestLimitsChangeWhileJobsRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 20, outbox.Options{})
	limit(t, db, 1, 0, 0)
	proceed := make(chan struct{})
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { <-proceed; return nil }), quiet(nil))
	running := func(n int) {
		t.Helper()
		await(t, db, fmt.Sprintf("%d jobs run", n), `SELECT count(*) = $1 FROM outbox.jobs WHERE status = 'running'`, n)
	}
	running(1)
	limit(t, db, 4, 0, 0)
	running(4)
	limit(t, db, 2, 0, 0)
	for i := range 2 { // nothing takes their places
		proceed <- struct{}{}
		await(t, db, "a job is settled", `SELECT count(*) = $1 FROM outbox.history`, i+1)
	}
	awaitStops(t, d, d.metric(t, "outbox_dispatcher_limit_stops_total")+1)
	running(2)
	limit(t, db, 0, 1, time.Hour) // another kind of limit, and one more may start
	running(3)
	awaitStops(t, d, d.metric(t, "outbox_dispatcher_limit_stops_total")+1)
	running(3)
	limit(t, db, 0, 0, 0)
	running(18)
	close(proceed)
	awaitSucceeded(t, db, 20)
}

// A queue that is busy is paused and resumed, without a notification.
func TestPauseAndResumeWithoutAWakeUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 400, outbox.Options{})
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { time.Sleep(10 * time.Millisecond); return nil }), dispatcher.Config{
		PollInterval: time.Hour, FallbackPollInterval: time.Hour,
		Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 2}},
	})
	await(t, db, "some are done", `SELECT count(*) > 10 FROM outbox.history`)
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', statement_timestamp())`)
	paused := ask[time.Time](t, db, `SELECT clock_timestamp()`) // until then a claim may not see it
	awaitStops(t, d, 2)
	await(t, db, "what was claimed is done", `SELECT NOT EXISTS (SELECT FROM outbox.jobs WHERE status = 'running')`)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE started_at > $1`, paused); n > 0 {
		t.Errorf("jobs claimed after the pause = %d, want 0", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n == 0 {
		t.Fatal("all jobs were done before the pause")
	}
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL`)
	awaitSucceeded(t, db, 400)
}

// A claimer that has stopped in the middle of a limited claim (SIGSTOP, a dead network) blocks the queue until the
// server ends its transaction.
func TestAClaimerThatStopsIsCutOff(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	limit(t, db, 1, 0, 0)
	exec(t, db, `INSERT INTO outbox.queue_usage (queue) VALUES ('default')`)
	enqueue(t, db, probe{}, outbox.Options{})
	stuck := begin(t, db)
	q := sqlgen.New(stuck)
	if err := q.BoundClaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := q.HoldQueue(t.Context(), engine.DefaultQueue); err != nil {
		t.Fatal(err)
	}
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitSucceeded(t, db, 1)
	if c := d.log.complaints(); c != "" {
		t.Errorf("complaints:\n%s", c)
	}
	if err := stuck.Commit(t.Context()); err == nil {
		t.Error("the stuck transaction commits")
	}
}

// The answer to a limited claim's commit is lost: its jobs are given back, and no job starts that is not known to be
// leased.
func TestJobsOfALostLimitedClaimAreGivenBack(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	limit(t, good, 1, 0, 0)
	loss := answerLoss{of: "COMMIT\x00"}
	id := enqueue(t, good, probe{}, outbox.Options{})
	ran := make(chan int64, 1)
	start(t, loss.pool(t, good), handle(func(_ context.Context, job *outbox.Job[probe]) error {
		ran <- job.Epoch
		return nil
	}), quiet(nil))
	if epoch := receive(t, ran, "the job to run"); epoch != 3 || !loss.happened.Load() {
		t.Errorf("the job runs with epoch %d, an answer was lost: %v; want 3, true", epoch, loss.happened.Load())
	}
	awaitSucceeded(t, good, 1)
	wantState(t, good, id, "succeeded attempt=1 epoch=3 lost=0 error=")
}

// Two processes have handlers for different kinds of one limited queue, and none for the third kind, which is left
// alone.
func TestEachProcessClaimsItsOwnKindsOnly(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*testing.T, *pgxpool.Pool){
		"unlimited": func(*testing.T, *pgxpool.Pool) {},
		"limited":   func(t *testing.T, db *pgxpool.Pool) { limit(t, db, 3, 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			set(t, db)
			var strangers []outbox.ID
			for i := range 20 {
				for _, kind := range []string{"a", "b", "stranger"} {
					o := outbox.Options{Priority: i % 2}
					if i%4 == 0 {
						o.Key.Name = "k" + kind
					}
					id := enqueue(t, db, outbox.Raw{KindName: kind, Payload: []byte("{}")}, o)
					if kind == "stranger" {
						strangers = append(strangers, id)
					}
				}
			}
			for _, kind := range []string{"a", "b"} {
				mux := new(dispatcher.Mux)
				mux.HandleRaw(kind, func(context.Context, *outbox.Claimed) error { return nil })
				start(t, db, mux, dispatcher.Config{})
			}
			await(t, db, "both kinds are done", `SELECT count(*) = 40 AND count(*) FILTER (WHERE attempt = 1 AND epoch = 1) = 40 FROM outbox.history WHERE status = 'succeeded'`)
			for _, id := range strangers {
				wantState(t, db, id, "pending attempt=0 epoch=0 lost=0 error=")
			}
		})
	}
}

// A limited queue refuses claims that have not checked its limits, including claims of jobs with keys; a paused queue
// refuses all claims.
func TestAClaimThatHasNotLookedIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	probesAndKeys(t, db, 30)
	tenant := outbox.NewID()
	for range 10 {
		enqueue(t, db, probe{}, outbox.Options{Tenant: tenant})
	}
	claims := map[string]func(within bool) (int, error){
		"ClaimJobs of another tenant": func(within bool) (int, error) {
			p := claimParams("w", 2)
			p.TenantIds, p.WithinLimits = []pgtype.UUID{pgID(tenant)}, within
			rows, err := sqlgen.New(db).ClaimJobs(t.Context(), p)
			return len(rows), err
		},
		"ClaimJobs": func(within bool) (int, error) {
			p := claimParams("w", 2, 1, 0)
			p.WithinLimits = within
			rows, err := sqlgen.New(db).ClaimJobs(t.Context(), p)
			return len(rows), err
		},
		"ClaimKeyedJobs": func(within bool) (n int, err error) {
			p := claimParams("w", 2, 1, 0)
			rows, _ := db.Query(t.Context(), sqlgen.ClaimKeyedJobs, p.Worker, p.LeaseTtl, p.TenantIds, p.Quotas, []int32{100}, p.Firsts, p.Lasts,
				p.Priorities, p.FromRunAt, p.FromID, p.Kinds, nil, 2, p.Queue, within)
			for rows.Next() {
				if rows.RawValues()[0] != nil { // else it tells of the others
					n++
				}
			}
			return n, rows.Err()
		},
	}
	want := func(state string, without, within int) {
		t.Helper()
		for name, claim := range claims {
			for looked, want := range map[bool]int{false: without, true: within} {
				if n, err := claim(looked); n != want || err != nil {
					t.Errorf("%s of a queue that is %s, looked %v: %d jobs, %v; want %d", name, state, looked, n, err, want)
				}
			}
		}
	}
	want("known to nobody", 2, 2)
	limit(t, db, 1, 0, 0)
	want("limited", 0, 2)
	limit(t, db, 0, 0, 0)
	exec(t, db, `UPDATE outbox.queues SET paused_at = now()`)
	want("paused", 0, 0)
}

// A queue is paused, or has started as many jobs as its rate allows, while twenty of its jobs run. They end one by one,
// and none of them lets another start: nobody locks the queue's usage for it.
func TestJobsThatEndLookAtNoLimitThatTheyDoNotChange(t *testing.T) {
	t.Parallel()
	const jobs = 20
	for name, stop := range map[string]func(t *testing.T, db outbox.DB){
		"paused": func(t *testing.T, db outbox.DB) {
			exec(t, db, `UPDATE outbox.queues SET paused_at = statement_timestamp()`)
		},
		"a rate": func(*testing.T, outbox.DB) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			limit(t, db, 0, jobs, time.Hour)
			enqueueProbes(t, db, 3*jobs, outbox.Options{})
			end := make(chan struct{})
			config := quiet(nil)
			config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 2 * jobs}}
			d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
				select {
				case <-end:
				case <-ctx.Done():
				}
				return nil
			}), config)
			awaitThat(t, "jobs run", func() bool { return d.metric(t, "outbox_dispatcher_slots_busy") == jobs })
			stop(t, db)
			stops := d.metric(t, "outbox_dispatcher_limit_stops_total")
			awaitStops(t, d, stops+2) // of which one has begun after the stop
			stops, began := d.metric(t, "outbox_dispatcher_limit_stops_total"), time.Now()
			for range jobs {
				end <- struct{}{}
				time.Sleep(10 * time.Millisecond)
			}
			await(t, db, "they end", `SELECT count(*) = $1 FROM outbox.history`, jobs)
			const often = 350 * time.Millisecond // half of the longest time between two looks
			looks := d.metric(t, "outbox_dispatcher_limit_stops_total") - stops
			if most := 2 + float64(time.Since(began)/often); looks > most {
				t.Errorf("%v looks at the limits within %s, want at most %v", looks, time.Since(began), most)
			}
		})
	}
}
