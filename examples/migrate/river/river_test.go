// Package river_test runs River and Posthaste on one database, as docs/migrate/to-posthaste.md says: River's
// migrations, client and workers fill its tables, and ../river.sql moves what waits.
package river_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// mail is a job of both systems.
type mail struct {
	N int `json:"n"`
}

func (mail) Kind() string { return "mail.send" }

// outcome is a job of River's that ends as it says.
type outcome struct {
	How string `json:"how"`
}

func (outcome) Kind() string { return "outcome" }

// rig is a database that has the tables of both.
type rig struct {
	t     *testing.T
	db    *pgxpool.Pool
	river *river.Client[pgx.Tx] // inserts
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, db: pgtest.New(t)}
	migrator, err := rivermigrate.New(riverpgxv5.New(r.db), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	if r.river, err = river.NewClient(riverpgxv5.New(r.db), &river.Config{Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	r.exec(`CREATE TABLE effects (n int NOT NULL, system text NOT NULL)`)
	return r
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%v: %s", err, sql)
	}
}

func (r *rig) count(query string) (n int) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), query).Scan(&n); err != nil {
		r.t.Fatalf("%v: %s", err, query)
	}
	return n
}

// await waits until a query counts n.
func (r *rig) await(n int, query string) {
	r.t.Helper()
	got := 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = r.count(query); got == n {
			return
		}
	}
	r.t.Fatalf("it is %d and not %d: %s", got, n, query)
}

// none fails for each row that the query returns, as text.
func (r *rig) none(what, query string) {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), query)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		r.t.Errorf("%s: %v %v", what, values, err)
	}
	if rows.Err() != nil {
		r.t.Fatal(rows.Err())
	}
}

// insert stores a job by River's client, in a transaction, as an application does.
func (r *rig) insert(args river.JobArgs, opts river.InsertOpts) {
	r.t.Helper()
	err := pgx.BeginFunc(r.t.Context(), r.db, func(tx pgx.Tx) error {
		_, err := r.river.InsertTx(r.t.Context(), tx, args, &opts)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// work starts River's workers on one queue, who try a job that failed again after a while.
func (r *rig) work(queue string, retry retryAfter, workers *river.Workers) (stop func()) {
	r.t.Helper()
	client, err := river.NewClient(riverpgxv5.New(r.db), &river.Config{
		Logger: quiet(), Queues: map[string]river.QueueConfig{queue: {MaxWorkers: 4}}, Workers: workers,
		FetchCooldown: time.Millisecond, FetchPollInterval: 10 * time.Millisecond, RetryPolicy: retry,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := client.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if err := client.Stop(context.WithoutCancel(r.t.Context())); err != nil {
			r.t.Error(err)
		}
	}
}

type retryAfter time.Duration

func (after retryAfter) NextRetry(*rivertype.JobRow) time.Time {
	return time.Now().Add(time.Duration(after))
}

// dispatch starts our workers on a queue.
func (r *rig) dispatch(queue string, mux *dispatcher.Mux) (stop func()) {
	r.t.Helper()
	d, err := dispatcher.New(r.db, mux, dispatcher.Config{
		Logger: quiet(), PollInterval: 10 * time.Millisecond,
		Queues: map[string]dispatcher.QueueConfig{queue: {Concurrency: 4}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

// move runs the script until it has nothing left to do, and returns how much it moved.
func (r *rig) move() (moved int) {
	r.t.Helper()
	sql, err := os.ReadFile("../river.sql")
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		n := r.count(string(sql))
		if n == 0 {
			return moved
		}
		moved += n
	}
}

// Jobs in every state that River's client and workers give them: what waits is moved, the same, and the rest is left
// alone, also the job that runs.
func TestEveryStateOfRiver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for priority := 1; priority <= 4; priority++ {
		for _, queue := range []string{river.QueueDefault, "mail"} {
			r.insert(mail{priority}, river.InsertOpts{Queue: queue, Priority: priority, MaxAttempts: 3 + priority})
		}
	}
	r.insert(mail{5}, river.InsertOpts{ScheduledAt: time.Now().Add(48 * time.Hour), Tags: []string{"late"}})
	r.insert(mail{6}, river.InsertOpts{Pending: true})
	r.insert(mail{7}, river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
	release := r.workOutcomes()
	for state, n := range map[rivertype.JobState]int{
		rivertype.JobStateAvailable: 9, rivertype.JobStateScheduled: 1, rivertype.JobStatePending: 1,
		rivertype.JobStateRetryable: 1, rivertype.JobStateRunning: 1,
		rivertype.JobStateCompleted: 1, rivertype.JobStateDiscarded: 1, rivertype.JobStateCancelled: 1,
	} {
		r.await(n, `SELECT count(*) FROM river_job WHERE state = '`+string(state)+`'`)
	}
	r.exec(`CREATE TABLE before AS TABLE river_job`)
	if moved := r.move(); moved != 12 {
		t.Errorf("%d jobs were moved, want the 12 that waited", moved)
	}
	const waited = `before.state IN ('available', 'scheduled', 'retryable', 'pending')`
	r.none("a job that waited and is not the same here", `
		SELECT before.id, before.state::text FROM before
		LEFT JOIN outbox.jobs AS job ON job.headers ->> 'river-id' = before.id::text
		WHERE `+waited+` AND (
			job.kind, convert_from(job.payload, 'UTF8')::jsonb, job.queue, job.priority::integer, job.run_at,
			job.max_attempts::integer, job.status::text
		) IS DISTINCT FROM (
			before.kind, before.args, before.queue, 1 - before.priority, before.scheduled_at,
			before.max_attempts - before.attempt, CASE before.state WHEN 'pending' THEN 'created' ELSE 'pending' END
		)`)
	r.none("a job that did not wait and is not as it was", `
		SELECT before.id, before.state::text FROM before LEFT JOIN river_job AS now USING (id)
		WHERE CASE WHEN `+waited+` THEN now.id IS NOT NULL ELSE now.state IS DISTINCT FROM before.state END`)
	release()
	r.await(2, `SELECT count(*) FROM river_job WHERE state = 'completed'`)
	if n := r.count(`SELECT count(*) FROM outbox.jobs`); n != 12 {
		t.Errorf("%d jobs are here at the end, want 12", n)
	}
}

// workOutcomes has River's workers bring a job to each state that only they give. The one that runs does so until it is
// released, and the workers stop then.
func (r *rig) workOutcomes() (release func()) {
	r.t.Helper()
	released := make(chan struct{})
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[outcome]) error {
		switch job.Args.How {
		case "runs":
			<-released
		case "fails":
			return errors.New("no")
		case "cancels":
			return river.JobCancel(errors.New("never"))
		}
		return nil
	}))
	for _, how := range []string{"runs", "succeeds", "cancels"} {
		r.insert(outcome{how}, river.InsertOpts{Queue: "outcomes"})
	}
	r.insert(outcome{"fails"}, river.InsertOpts{Queue: "outcomes", MaxAttempts: 9}) // and is retried
	r.insert(outcome{"fails"}, river.InsertOpts{Queue: "outcomes", MaxAttempts: 1}) // and is discarded
	stop := r.work("outcomes", retryAfter(time.Hour), workers)
	return func() {
		close(released)
		r.await(0, `SELECT count(*) FROM river_job WHERE state = 'running'`)
		stop()
	}
}

// Both systems run the same kind at once, as in step 2 of the page: the producer is switched while River's workers have
// jobs of before, and the script moves what waits while they go on taking jobs. Each job takes effect once.
func TestBothRunAndEachJobTakesEffectOnce(t *testing.T) {
	t.Parallel()
	const before, after = 600, 300
	r := newRig(t)
	var inRiver, here atomic.Int64
	workers, mux := river.NewWorkers(), new(dispatcher.Mux)
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[mail]) error {
		if inRiver.Add(1); job.Args.N%20 == 0 && job.Attempt == 1 {
			return errors.New("not yet") // and it waits for some seconds, in which the script moves it
		}
		return r.send(ctx, job.Args.N, "river")
	}))
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[mail]) error {
		here.Add(1)
		return r.send(ctx, job.Args.N, "posthaste")
	})
	defer r.dispatch("mail", mux)()
	for n := range before {
		r.insert(mail{n}, river.InsertOpts{Queue: "mail", MaxAttempts: 9})
	}
	stop := r.work("mail", retryAfter(2*time.Second), workers)
	r.await(1, `SELECT least(count(*) / 100, 1) FROM effects`) // River is in the middle of its jobs
	for n := before; n < before+after; n++ {
		if n == before+10 {
			if moved := r.move(); moved == 0 || moved >= before {
				t.Errorf("%d jobs were moved, want some of %d", moved, before)
			}
		}
		if _, err := outbox.Enqueue(t.Context(), r.db, mail{n}, outbox.Options{Queue: "mail"}); err != nil {
			t.Fatal(err)
		}
	}
	r.await(0, `SELECT count(*) FROM river_job WHERE state = 'running'`)
	stop()
	r.move() // what failed since then
	r.await(0, `SELECT count(*) FROM outbox.jobs WHERE status IN ('pending', 'running', 'retrying', 'blocked')`)
	r.none("a job that did not take effect once", `
		SELECT n, count(effects.n), string_agg(system, ', ') FROM generate_series(0, 899) AS n LEFT JOIN effects USING (n)
		GROUP BY n HAVING count(effects.n) <> 1 LIMIT 5`)
	r.none("a job that still waits in River", `SELECT id, state::text FROM river_job WHERE state <> 'completed' LIMIT 5`)
	if n := r.count(`SELECT count(*) FROM effects`); n != before+after {
		t.Errorf("there are %d effects, want %d", n, before+after)
	}
	t.Logf("River ran %d attempts, and we %d", inRiver.Load(), here.Load())
	if inRiver.Load() < 100 || here.Load() <= after {
		t.Errorf("River ran %d attempts, and we %d: want both to have run jobs of before", inRiver.Load(), here.Load())
	}
}

// send takes effect.
func (r *rig) send(ctx context.Context, n int, system string) error {
	time.Sleep(5 * time.Millisecond)
	_, err := r.db.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, n, system)
	return err
}
