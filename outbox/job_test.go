package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// claim stores a job and leases it to worker "w".
func claim(t *testing.T, db *pgxpool.Pool) *Claimed {
	t.Helper()
	id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{Key: KeyRules{Name: "k"}, Headers: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	return lease(t, db, id)
}

func lease(t *testing.T, db *pgxpool.Pool, id ID) *Claimed {
	t.Helper()
	job := &Claimed{ID: id, Kind: "greet", Queue: "default", Worker: "w"}
	err := db.QueryRow(t.Context(), `
		UPDATE outbox.jobs
		SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = $2, lease_expires_at = now() + interval '1 minute', started_at = now()
		WHERE id = $1
		RETURNING epoch, attempt, headers`, id, job.Worker).Scan(&job.Epoch, &job.Attempt, &job.RawHeaders)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// giveBack is what an expired lease, a snooze and a cancel have in common.
const giveBack = `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`

// ways in which an attempt can lose its job, each as the attempt finds it.
var losses = map[string]func(*testing.T, *pgxpool.Pool, *Claimed){
	"the lease lapsed": func(t *testing.T, db *pgxpool.Pool, job *Claimed) { exec(t, db, giveBack, job.ID) },
	"another worker has it": func(t *testing.T, db *pgxpool.Pool, job *Claimed) {
		exec(t, db, giveBack, job.ID)
		exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'v', lease_expires_at = now() + interval '1 minute' WHERE id = $1`, job.ID)
	},
	"the same worker has it again": func(t *testing.T, db *pgxpool.Pool, job *Claimed) {
		exec(t, db, giveBack, job.ID)
		lease(t, db, job.ID)
	},
	"the same worker has it again with the same attempt": func(t *testing.T, db *pgxpool.Pool, job *Claimed) {
		exec(t, db, giveBack, job.ID)
		exec(t, db, `UPDATE outbox.jobs SET attempt = attempt - 1 WHERE id = $1`, job.ID)
		lease(t, db, job.ID)
	},
	"it was completed": func(t *testing.T, db *pgxpool.Pool, job *Claimed) {
		if err := (&Claimed{ID: job.ID, Epoch: job.Epoch}).Complete(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	},
	"it is gone": func(t *testing.T, db *pgxpool.Pool, job *Claimed) {
		exec(t, db, `DELETE FROM outbox.jobs WHERE id = $1`, job.ID)
	},
}

func TestAnAttemptThatLostItsJobCanNeitherCompleteNorGuardIt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			pgtest.Empty(t, db)
			job := claim(t, db)
			lose(t, db, job)
			before := everything(t, db)

			job.Result = []byte(`"zombie"`)
			for call, fenced := range map[string]func(context.Context, DB) error{"Complete": job.Complete, "Guard": job.Guard} {
				err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
					exec(t, tx, `CREATE TABLE effect ()`)
					return fenced(t.Context(), tx)
				})
				if !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), job.ID.String()) {
					t.Errorf("%s: %v, want %v with the id", call, err, ErrLeaseLost)
				}
			}
			if engine.InternalOf(job).Completed.Load() {
				t.Error("the job says that it was completed")
			}
			if diff := cmp.Diff(before, everything(t, db)); diff != "" {
				t.Errorf("the database changed (-before +after):\n%s", diff)
			}
		})
	}
}

// everything returns all rows of jobs and history, and whether the zombie had an effect.
func everything(t *testing.T, db DB) string {
	t.Helper()
	return ask[string](t, db, `
		SELECT concat(
			(SELECT jsonb_agg(to_jsonb(j)) FROM outbox.jobs AS j), E'\n',
			(SELECT jsonb_agg(to_jsonb(h)) FROM outbox.history AS h), E'\n', to_regclass('effect'))`)
}

func TestCompleteFinishesTheJobExactlyWhenTheTransactionCommits(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"commit": true, "rollback": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			job := claim(t, db)
			job.Result = []byte(`{"sent":true}`)
			before := everything(t, db)

			tx := begin(t, db, pgx.ReadCommitted)
			if err := job.Complete(t.Context(), tx); err != nil || !engine.InternalOf(job).Completed.Load() {
				t.Fatalf("completed = %t, %v", engine.InternalOf(job).Completed.Load(), err)
			}
			if got := everything(t, db); got != before {
				t.Error("others see it before the commit")
			}
			if !commit {
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, everything(t, db)); diff != "" {
					t.Errorf("the database changed (-before +after):\n%s", diff)
				}
				if err := job.Complete(t.Context(), db); err != nil {
					t.Errorf("it cannot be completed any more: %v", err)
				}
				return
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := countJobs(t, db); got != 0 {
				t.Errorf("%d jobs are open, want none", got)
			}
			if got := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded'`); got != 1 {
				t.Errorf("%d jobs are in the history, want 1", got)
			}
		})
	}
}

func TestWhatTheHistoryKeepsOfAJob(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{
		Queue: "mail", Priority: 3, MaxAttempts: 4, Timeout: 1e9, Backoff: Backoff{1e9}, Key: KeyRules{Name: "k"}, Headers: map[string]string{"a": "b"}, Tenant: tenant,
	})
	if err != nil {
		t.Fatal(err)
	}
	job := lease(t, db, id)
	exec(t, db, `UPDATE outbox.jobs SET lost_leases = 1, last_error_code = 'c', last_error_message = 'm'`)
	// The rules of its key end with the job.
	const columns = `to_jsonb(j) - '{status, lease_owner, lease_expires_at, unavailable_since, failed_at, error_fingerprint, watched, max_active, slot, ordered, line_position, on_death, park_after, on_lapse}'::text[]`
	want := ask[string](t, db, `SELECT `+columns+` FROM outbox.jobs AS j`)
	job.Result = []byte(`{"sent": true}`)
	if err := job.Complete(t.Context(), db); err != nil {
		t.Fatal(err)
	}

	got := ask[string](t, db, `SELECT to_jsonb(j) - '{status, closed_from, worker, result, finished_at}'::text[] FROM outbox.history AS j`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns of both tables (-jobs +history):\n%s", diff)
	}
	got = ask[string](t, db, `
		SELECT concat_ws(' ', status, closed_from, worker, convert_from(result, 'UTF8'), finished_at >= started_at)
		FROM outbox.history`)
	if want := `succeeded running w {"sent": true} t`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheViewShowsEveryResult(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		result []byte
		want   *string
	}{
		"none":                        {nil, nil},
		"JSON, as it is":              {[]byte(`{"b": "\u0000",  "a":1}`), new(`{"b": "\u0000",  "a":1}`)},
		"bytes, escaped":              {[]byte("\xff\x00a"), new(`\377\000a`)},
		"text that is not quite JSON": {[]byte(`sent`), new(`sent`)},
	} {
		t.Run(name, func(t *testing.T) {
			job := claim(t, db)
			job.Result = c.result
			if err := job.Complete(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			got := ask[*string](t, db, `SELECT result FROM outbox.closed_jobs WHERE id = $1`, job.ID)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
	if got := ask[int](t, db, `SELECT count(*) FROM (SELECT * FROM outbox.closed_jobs OFFSET 0) AS every`); got != 4 {
		t.Errorf("the view shows %d jobs, want 4", got)
	}
}

func TestCompleteThroughDatabaseSQL(t *testing.T) {
	t.Parallel()
	db := openSQL(t)
	handle := FromSQL(db)
	id, err := Enqueue(t.Context(), handle, greet{"ada"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, handle, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w', lease_expires_at = now(), started_at = now()`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	job := &Claimed{ID: id, Epoch: 1}
	if err := errors.Join(job.Guard(t.Context(), FromSQL(tx)), job.Complete(t.Context(), FromSQL(tx)), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	if got := count(t, db); got != 0 {
		t.Errorf("%d jobs are open, want none", got)
	}
	if err := job.Complete(t.Context(), handle); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the second time: %v, want %v", err, ErrLeaseLost)
	}
}

func TestWhileATransactionGuardsAJobNobodyTakesIt(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(*Claimed) func(context.Context, DB) error{
		"Guard":    func(job *Claimed) func(context.Context, DB) error { return job.Guard },
		"Complete": func(job *Claimed) func(context.Context, DB) error { return job.Complete },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			job := claim(t, db)
			tx := begin(t, db, pgx.ReadCommitted)
			if err := hold(job)(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			other := begin(t, db, pgx.ReadCommitted)
			exec(t, other, `SET LOCAL lock_timeout = '50ms'`)
			if _, err := other.Exec(t.Context(), giveBack, job.ID); sqlState(err) != "55P03" {
				t.Errorf("another transaction took the job: %v", err)
			}
			if err := other.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			tag, err := db.Exec(t.Context(), giveBack, job.ID)
			if want := map[string]int64{"Guard": 1, "Complete": 0}[name]; err != nil || tag.RowsAffected() != want {
				t.Errorf("after it %d jobs could be taken, %v; want %d", tag.RowsAffected(), err, want)
			}
		})
	}
}

// A statement that waits for a lock of the reaper sees what it did, not what was
// before.
func TestAGuardThatWaitedSeesThatItLost(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*Claimed, context.Context, DB) error{"Guard": (*Claimed).Guard, "Complete": (*Claimed).Complete} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			job := claim(t, db)
			reaper := begin(t, db, pgx.ReadCommitted)
			exec(t, reaper, giveBack, job.ID)
			answer := make(chan error, 1)
			go func() { answer <- call(job, t.Context(), db) }()
			pgtest.AwaitLocks(t, db, 1)
			if err := reaper.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-answer; !errors.Is(err, ErrLeaseLost) {
				t.Errorf("got %v, want %v", err, ErrLeaseLost)
			}
		})
	}
}

func TestHeadersAreWhatTheProducerGave(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if diff := cmp.Diff(map[string]string{"a": "b"}, claim(t, db).Headers()); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	for name, raw := range map[string]string{"none": "", "null": "null", "not an object": `[1]`} {
		if got := (&Claimed{RawHeaders: []byte(raw)}).Headers(); len(got) != 0 {
			t.Errorf("%s: got %v, want none", name, got)
		}
	}
}

func TestLogsLeaveThePayloadOut(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	job := &Claimed{ID: RootTenant, Kind: "greet", Queue: "mail", Attempt: 2, Epoch: 3, Payload: []byte("secret"), RawHeaders: []byte("secret"), Key: "secret"}
	slog.New(slog.NewTextHandler(&log, nil)).Info("job settled", "job", job)
	if got := log.String(); strings.Contains(got, "secret") || !strings.Contains(got, "job.kind=greet job.queue=mail job.attempt=2 job.epoch=3") {
		t.Errorf("logged %s", got)
	}
}

// What counts is what is stored: a claim check leaves a reference of a large result. A Complete after one that failed
// seals the same result again.
func TestCompleteMeasuresTheSealedResult(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	job := claim(t, db)
	job.Result = make([]byte, engine.MaxResultBytes+1)
	engine.InternalOf(job).Seal = func(_ context.Context, result []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%d bytes", len(result)), nil
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := job.Complete(t.Context(), tx); err != nil {
		t.Errorf("a large result with a small reference: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := job.Complete(t.Context(), db); err != nil {
		t.Errorf("after a rollback: %v", err)
	}
	var stored string
	if err := db.QueryRow(t.Context(), `SELECT convert_from(result, 'UTF8') FROM outbox.history`).Scan(&stored); err != nil ||
		stored != "4194305 bytes" {
		t.Errorf("stored %q, %v", stored, err)
	}

	job.Result = nil
	engine.InternalOf(job).Seal = func(context.Context, []byte) ([]byte, error) {
		return make([]byte, engine.MaxResultBytes+1), nil
	}
	want := []InvalidError{{"Claimed.Result", "is 4194305 bytes, want at most 4194304"}}
	if diff := cmp.Diff(want, mistakes(job.Complete(t.Context(), untouched{t: t}))); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}

func TestCompleteRefusesAResultThatIsTooLarge(t *testing.T) {
	t.Parallel()
	job := &Claimed{Epoch: 1, Result: make([]byte, engine.MaxResultBytes+1)}
	want := []InvalidError{{"Claimed.Result", "is 4194305 bytes, want at most 4194304"}}
	if diff := cmp.Diff(want, mistakes(job.Complete(t.Context(), untouched{t: t}))); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
	if engine.InternalOf(job).Completed.Load() {
		t.Error("the job counts as completed")
	}

	db := pgtest.New(t)
	job = claim(t, db)
	job.Result = make([]byte, engine.MaxResultBytes)
	if err := job.Complete(t.Context(), db); err != nil {
		t.Errorf("the largest result: %v", err)
	}
}
