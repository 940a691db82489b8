package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ledger creates the business table of a handler that completes its job itself.
func ledger(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `CREATE TABLE effects (job_id uuid NOT NULL)`)
}

func wantEffects(t *testing.T, db *pgxpool.Pool, want int) {
	t.Helper()
	if got := ask[int](t, db, `SELECT count(*) FROM effects`); got != want {
		t.Errorf("effects = %d, want %d", got, want)
	}
}

func TestCompleteCommitsWithTheEffect(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	const jobs = 50
	enqueueProbes(t, db, jobs, outbox.Options{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, job.ID); err != nil {
				return err
			}
			job.Result = []byte("by hand")
			return job.Complete(ctx, tx)
		})
	}), quiet(nil))
	awaitSucceeded(t, db, jobs)
	d.stop(t)
	wantEffects(t, db, jobs)
	if n := ask[int](t, db, `
		SELECT count(*) FROM outbox.history JOIN effects ON job_id = id
		WHERE status = 'succeeded' AND epoch = 1 AND attempt = 1 AND result = 'by hand' AND worker = $1`, d.Worker()); n != jobs {
		t.Errorf("jobs in the history with their effect = %d, want each of %d once", n, jobs)
	}
	// If the dispatcher finds nothing left to settle, that is a success, not a lost lease.
	if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
		t.Errorf("leases lost = %v, want 0", n)
	}
	if n := d.metric(t, "job_completed_total"); n != jobs {
		t.Errorf("jobs completed = %v, want %d", n, jobs)
	}
}

func TestCompleteThatRolledBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	id := enqueue(t, db, probe{}, outbox.Options{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, job.ID); err != nil {
			return err
		}
		if err := job.Complete(ctx, tx); err != nil {
			return err
		}
		if job.Attempt < 3 {
			return nil // forgets to commit
		}
		return tx.Commit(ctx)
	}), quiet(nil))
	awaitSucceeded(t, db, 1)
	d.stop(t)
	wantEffects(t, db, 1)
	wantState(t, db, id, "succeeded attempt=3 epoch=5 lost=0 error=complete_not_committed")
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts WHERE error_code = 'complete_not_committed'`); n != 2 {
		t.Errorf("recorded attempts = %d, want 2", n)
	}
}

func TestCompleteThatRolledBackEndsDead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{MaxAttempts: 2})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := job.Complete(ctx, tx); err != nil {
				return err
			}
			return errBoom
		})
		if !errors.Is(err, errBoom) {
			return err
		}
		return nil // swallows it
	}), quiet(nil))
	await(t, db, "the job is dead", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'dead'`)
	wantState(t, db, id, "dead attempt=2 epoch=4 lost=0 error=complete_not_committed")
}

// The COMMIT of Complete's transaction succeeded, but its answer was lost: the handler returns the error, as it should,
// and the job has succeeded all the same. A handler that could not commit and lost its lease has not succeeded,
// whatever it returns.
func TestACompleteWhoseAnswerIsLostIsASuccess(t *testing.T) {
	t.Parallel()
	errLost := errors.New("the connection broke during the COMMIT")
	for name, tt := range map[string]struct {
		commit, lost bool
		returns      error
		completed    float64
	}{
		"it has committed":                               {true, false, errLost, 4},
		"it has committed, and the job is discarded":     {true, false, dispatcher.Discard(errLost), 4},
		"it has not, and the lease is lost":              {false, true, errLost, 0},
		"it has not, the lease is lost, nothing is said": {false, true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
				enqueue(t, db, probe{}, outbox.Options{Tenant: tenant})
				enqueue(t, db, probe{}, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "k"}})
			}
			d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				tx, err := db.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it says so
				if err := job.Complete(ctx, tx); err != nil {
					return err
				}
				end := tx.Rollback
				if tt.commit {
					end = tx.Commit
				}
				if err := end(ctx); err != nil {
					return err
				}
				if tt.lost {
					if _, err := db.Exec(ctx, takeAway, job.ID); err != nil {
						return err
					}
				}
				return tt.returns
			}), quiet(nil))
			awaitThat(t, "four outcomes are reported", func() bool {
				return d.metric(t, "job_completed_total")+d.metric(t, "outbox_dispatcher_leases_lost_total") == 4
			})
			d.stop(t)
			if n := d.metric(t, "job_completed_total"); n != tt.completed {
				t.Errorf("counted as completed: %v, want %v", n, tt.completed)
			}
			if n := ask[float64](t, db, `SELECT count(*)::float8 FROM outbox.history WHERE status = 'succeeded'`); n != tt.completed {
				t.Errorf("stored as succeeded: %v, want %v: the test proves nothing", n, tt.completed)
			}
		})
	}
}

// A row that stays locked must not delay the others, whatever places it has in the batches: more rows are locked than
// there are settlers.
func TestLockedRowsDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]struct {
		of      error
		settled string
	}{
		"succeeded": {nil, `SELECT count(*) >= $1 FROM outbox.history`},
		"failed":    {dispatcher.Discard(errBoom), `SELECT count(*) >= $1 FROM outbox.jobs WHERE status = 'failed'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			const jobs, locked = 60, 40
			ids := enqueueProbes(t, db, jobs, outbox.Options{})
			gate := make(chan struct{})
			d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
				<-gate
				return outcome.of
			}), quiet(nil))
			await(t, db, "all are running", `SELECT count(*) = $1 FROM outbox.jobs WHERE status = 'running'`, jobs)
			foreign := begin(t, db)
			exec(t, foreign, `SELECT FROM outbox.jobs WHERE id = ANY ($1) FOR UPDATE`, ids[:locked])
			began := time.Now()
			close(gate)
			await(t, db, "the others are settled while the rows are locked", outcome.settled, jobs-locked)
			if took := time.Since(began); took > 15*time.Second { // 40 lock timeouts are 84 s
				t.Errorf("the others had to wait for %s", took)
			}
			if err := foreign.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, db, "the locked ones are settled in the end", outcome.settled, jobs)
			d.stop(t)
		})
	}
}

// No process made today's partition: the dispatcher creates it, rather than lose outcomes.
func TestMissingPartitionIsMade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 20, outbox.Options{})
	exec(t, db, `
		DO $$ DECLARE part regclass; BEGIN
			FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass LOOP
				EXECUTE 'DROP TABLE ' || part;
			END LOOP;
		END $$`)
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitSucceeded(t, db, 20)
}

// The database refuses one outcome, whatever the reason: the others are stored.
func TestRefusedRowDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 30, outbox.Options{})
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$`)
	exec(t, db, `CREATE TRIGGER refuse BEFORE DELETE ON outbox.jobs FOR EACH ROW WHEN (OLD.payload = '{"n":0}') EXECUTE FUNCTION refuse()`)
	gate := make(chan struct{})
	var running atomic.Int64
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		running.Add(1)
		<-gate
		return nil
	}), quiet(nil))
	awaitThat(t, "all are running", func() bool { return running.Load() == 30 })
	close(gate)
	await(t, db, "the others succeed", `SELECT count(*) = 29 FROM outbox.history`)
	if got := state(t, db, ids[0]); !strings.HasPrefix(got, "running attempt=1 epoch=1") {
		t.Errorf("the refused job is %s", got)
	}
	exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	awaitSucceeded(t, db, 30)
	d.stop(t)
}

// alert creates a trigger that fails with the SQLSTATE for each job that becomes dead, as a user's may.
func alert(t *testing.T, db *pgxpool.Pool, code string) {
	t.Helper()
	does := `RAISE 'the alert is not stored' USING ERRCODE = '` + code + `'`
	if code == "42P01" {
		does = `INSERT INTO app.alerts VALUES (NEW.id)` // there is no such table any more
	}
	exec(t, db, `CREATE FUNCTION alert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+does+`; RETURN NULL; END $$`)
	exec(t, db, `CREATE TRIGGER alert AFTER UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.status = 'dead') EXECUTE FUNCTION alert()`)
}

// A trigger may report any error for one row, also one that otherwise concerns every statement: its own table is gone
// (42P01), it may not write there (42501), another server is away (08001), the system has a fault (58030, XX000). More
// outcomes are refused than there are settlers, and no other job waits for them.
func TestOtherJobsDoNotWaitForATriggerThatFails(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"42P01", "42501", "08001", "58030", "XX000"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			alert(t, db, code)
			dying := fourProbes(t, db)
			exec(t, db, `UPDATE outbox.jobs SET max_attempts = 1`)
			for range 20 {
				enqueue(t, db, probe{1}, outbox.Options{})
			}
			gate := make(chan struct{})
			d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				if job.Args.N == 0 {
					return errBoom
				}
				<-gate
				return nil
			}), quiet(nil))
			awaitThat(t, "outcomes are refused", func() bool { return strings.Contains(d.log.String(), code) })
			time.Sleep(time.Second) // each settler has met one
			close(gate)
			await(t, db, "the others succeed", `SELECT count(*) = 20 FROM outbox.history WHERE status = 'succeeded'`)
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running' AND attempt = 1`); n != 4 {
				t.Errorf("%d of the refused are running, want 4", n)
			}
			exec(t, db, `DROP TRIGGER alert ON outbox.jobs`)
			await(t, db, "the refused are dead in the end", `SELECT count(*) = 4 FROM outbox.jobs WHERE status = 'dead'`)
			d.stop(t)
			for _, id := range dying {
				wantState(t, db, id, "dead attempt=1 epoch=2 lost=0 error=error")
			}
		})
	}
}

// A table of ours is missing for a while: outcomes wait together for it, and none is set aside, which would make room
// for other jobs whose outcomes cannot be stored either.
func TestNoOutcomeIsSetAsideWhileEachStatementFails(t *testing.T) {
	t.Parallel()
	for table, ends := range map[string]error{"history": nil, "attempts": dispatcher.Discard(errBoom)} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ids := fourProbes(t, db)
			gate := make(chan struct{})
			d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { <-gate; return ends }), quiet(nil))
			await(t, db, "all are running", `SELECT count(*) = 4 FROM outbox.jobs WHERE status = 'running'`)
			exec(t, db, `ALTER TABLE outbox.`+table+` RENAME TO away`)
			close(gate)
			awaitThat(t, "they are not stored", func() bool { return strings.Contains(d.log.String(), "42P01") })
			time.Sleep(time.Second) // for tries of each alone
			if strings.Contains(d.log.String(), "not stored yet") {
				t.Error("an outcome is set aside")
			}
			exec(t, db, `ALTER TABLE outbox.away RENAME TO `+table)
			await(t, db, "all are stored", `SELECT count(*) = 0 FROM outbox.jobs WHERE status = 'running'`)
			d.stop(t)
			for _, id := range ids {
				if got := state(t, db, id); !strings.Contains(got, "attempt=1") || !strings.Contains(got, "lost=0") {
					t.Errorf("it is %s", got)
				}
			}
		})
	}
}

// An outcome that the database does not accept keeps its lease, even beyond the time that its handler might have taken:
// otherwise the reaper would take the job, and a finished job would run again.
func TestARefusedOutcomeKeepsItsLease(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"one": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id := enqueueProbes(t, db, 1, outbox.Options{})[0]
			exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$`)
			exec(t, db, `CREATE TRIGGER refuse BEFORE DELETE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION refuse()`)
			config, ttl := quiet(nil), 3*time.Second
			config.LeaseTTL = ttl
			mux := handle(func(context.Context, *outbox.Job[probe]) error { return nil }, dispatcher.KindConfig{Timeout: 100 * time.Millisecond})
			if batch {
				mux = new(dispatcher.Mux)
				dispatcher.HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[probe]) []error { return make([]error, len(jobs)) }, dispatcher.BatchConfig{Max: 10},
					dispatcher.KindConfig{Timeout: 100 * time.Millisecond})
			}
			start(t, db, mux, config)
			await(t, db, "it is claimed", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
			// A lease that is extended only until the timeout lapses at the latest after twice its time.
			for end := time.Now().Add(5 * ttl / 2); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if !ask[bool](t, db, `SELECT lease_expires_at > clock_timestamp() FROM outbox.jobs`) {
					t.Fatal("the lease of the finished job has lapsed")
				}
			}
			exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
			awaitSucceeded(t, db, 1)
			if got := state(t, db, id); !strings.HasPrefix(got, "succeeded attempt=1 epoch=1") {
				t.Errorf("it is %s", got)
			}
		})
	}
}

// Outcomes survive an outage of the database while they are being stored.
func TestOutcomesWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 20
	enqueueProbes(t, db, jobs, outbox.Options{})
	gate := make(chan struct{})
	var runs atomic.Int64
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		runs.Add(1)
		<-gate
		return nil
	}), quiet(nil))
	awaitThat(t, "all are running", func() bool { return runs.Load() == jobs })
	foreign := begin(t, db)
	exec(t, foreign, `LOCK TABLE outbox.jobs IN ACCESS EXCLUSIVE MODE`)
	close(gate)
	awaitThat(t, "a settlement fails", func() bool { return strings.Contains(d.log.String(), "settle failed") })
	// With the next extension: a settlement may only have met a locked row.
	awaitThat(t, "it says so", func() bool { return d.Ready() != nil })
	if err := foreign.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitSucceeded(t, db, jobs)
	if n := runs.Load(); n != jobs {
		t.Errorf("handlers ran %d times for %d jobs", n, jobs)
	}
	awaitThat(t, "the dispatcher is ready again", func() bool { return d.Ready() == nil })
}

// fourProbes stores a job of root and one of another tenant, each without a key and with one.
func fourProbes(t *testing.T, db *pgxpool.Pool) (ids []outbox.ID) {
	t.Helper()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		for _, key := range []string{"", "k"} {
			ids = append(ids, enqueue(t, db, probe{}, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}}))
		}
	}
	return ids
}

// What the database says of an outcome changes while it waits:
//
//	settler      store: locked               again: a constraint refuses it, for good
//	operator     holds a lock      lets go
//
// A success becomes failed then, and an error is spelled in ASCII, as if the database had said so at once: the job must
// not stay running for as long as the process lives.
func TestAnOutcomeThatWaitedForALockMayBeUnacceptable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trigger string // of the statement that stores the outcome
		ends    func(t *testing.T, job *outbox.Job[probe]) error
		want    string
	}{
		"a success with follow-ups": {
			`BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.kind = 'next')`,
			func(t *testing.T, job *outbox.Job[probe]) error { then(t, job); return nil },
			"failed attempt=1 epoch=2 lost=0 error=follow_ups_not_stored",
		},
		"an error": {
			`BEFORE UPDATE ON outbox.jobs FOR EACH ROW WHEN (NEW.last_error_message ~ '[^[:ascii:]]')`,
			func(*testing.T, *outbox.Job[probe]) error { return dispatcher.Discard(errors.New("caf\u00e9")) },
			"failed attempt=1 epoch=2 lost=0 error=error",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			exec(t, db, `CREATE TABLE refusal (code text); INSERT INTO refusal VALUES ('55P03');
				CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE why text; BEGIN
					SELECT code INTO why FROM public.refusal;
					RAISE EXCEPTION 'refused' USING ERRCODE = why;
				END $$`)
			exec(t, db, `CREATE TRIGGER refuse `+c.trigger+` EXECUTE FUNCTION refuse()`)
			ids := fourProbes(t, db)
			d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error { return c.ends(t, job) }), quiet(nil))
			awaitThat(t, "they wait for the lock", func() bool { return strings.Contains(d.log.String(), "outcome not stored yet") })
			await(t, db, "all are running", `SELECT count(*) = 4 FROM outbox.jobs WHERE status = 'running'`)
			exec(t, db, `UPDATE refusal SET code = '22P05'`)
			await(t, db, "all are settled", `SELECT count(*) = 4 FROM outbox.jobs WHERE status = 'failed'`)
			for _, id := range ids {
				wantState(t, db, id, c.want)
			}
			d.stop(t)
		})
	}
}

// The handler returns during a stop, and its outcome waits for a lock:
//
//	handler      succeeds
//	settler               store: locked …                      … stored
//	leases                extended       extended     extended
//
// If extensions ended with the last handler, the lease would lapse, and the job would run again.
func TestLeasesAreExtendedWhileOutcomesWaitAtAStop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'locked' USING ERRCODE = '55P03'; END $$`)
	exec(t, db, `CREATE TRIGGER refuse BEFORE DELETE ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION refuse()`)
	ids := fourProbes(t, db)
	config, ttl := quiet(nil), 2*time.Second
	config.LeaseTTL, config.GracePeriod = ttl, time.Minute
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), config)
	awaitThat(t, "they wait for the lock", func() bool { return strings.Contains(d.log.String(), "outcome not stored yet") })
	await(t, db, "all are running", `SELECT count(*) = 4 FROM outbox.jobs WHERE status = 'running'`)
	d.cancel()
	for end := time.Now().Add(3 * ttl / 2); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !ask[bool](t, db, `SELECT min(lease_expires_at) > clock_timestamp() FROM outbox.jobs`) {
			t.Error("the lease of a finished job has lapsed")
			break
		}
	}
	exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
	d.wait(t)
	for _, id := range ids {
		if got := state(t, db, id); !strings.HasPrefix(got, "succeeded attempt=1 epoch=1 lost=0") {
			t.Errorf("it is %s", got)
		}
	}
}
