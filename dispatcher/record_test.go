package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// report stores progress, a line, a checkpoint and a step as the recorder does.
func report(ctx context.Context, db sqlgen.DBTX, l lease, revision, current int64) (sqlgen.RecordReportsRow, error) {
	rows, err := sqlgen.New(db).RecordReports(ctx, sqlgen.RecordReportsParams{
		Ids: []pgtype.UUID{pgID(l.id)}, Epochs: []int64{l.epoch}, Starts: l.starts(), Revisions: []int64{revision},
		Currents: []int64{current}, Totals: []int64{100}, Messages: []string{"m"}, ProgressAges: []pgtype.Interval{interval(0)},
		Checkpoints: [][]byte{fmt.Append(nil, current)}, LogStarts: []int16{-1},
		LogLines: []string{fmt.Sprintf(`[{"line": %d, "age": "0", "level": "INFO", "message": "at %d"}]`, revision, current)},
		Steps:    []string{fmt.Sprintf(`[{"name": "at-%d", "took": "0", "result": "MQ=="}]`, current)},
	})
	if err != nil || len(rows) != 1 {
		return sqlgen.RecordReportsRow{}, fmt.Errorf("%d rows, %w", len(rows), err)
	}
	return rows[0], nil
}

// reported returns the progress of a job: current of total: message (by epoch).
func reported(t *testing.T, db outbox.DB, id outbox.ID) string {
	t.Helper()
	return ask[string](t, db, `SELECT coalesce((SELECT format('%s of %s: %s (%s)', current, total, message, epoch) FROM outbox.progress WHERE job_id = $1), 'none')`, id)
}

func logged(t *testing.T, db outbox.DB, id outbox.ID) []string {
	t.Helper()
	return ask[[]string](t, db, `SELECT coalesce(array_agg(level || ' ' || message ORDER BY epoch, line), '{}') FROM outbox.job_logs WHERE job_id = $1`, id)
}

// countWrites counts how often a row of outbox.progress is written.
func countWrites(t *testing.T, db outbox.DB) func() int {
	t.Helper()
	exec(t, db, `
		CREATE TABLE writes (job_id uuid, at timestamptz DEFAULT statement_timestamp());
		CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO writes VALUES (NEW.job_id); RETURN NEW; END $$;
		CREATE TRIGGER count_write AFTER INSERT OR UPDATE ON outbox.progress FOR EACH ROW EXECUTE FUNCTION count_write()`)
	return func() int { return ask[int](t, db, `SELECT count(*) FROM writes`) }
}

// A handler reports as fast as it can, and returns at once after the last report: that report is stored, before the
// outcome, with few writes.
func TestReportsAreCoalescedAndTheLastOneIsKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	writes := countWrites(t, db)
	const jobs, reports = 20, 2000
	ids := enqueueProbes(t, db, jobs, outbox.Options{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		for i := range int64(reports) {
			if err := errors.Join(job.Progress(ctx, i+1, reports, fmt.Sprint("at ", i+1)), job.Log(ctx, slog.LevelInfo, fmt.Sprint("line ", i+1))); err != nil {
				return err
			}
		}
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, jobs)
	d.stop(t)
	for _, id := range ids {
		if got, want := reported(t, db, id), "2000 of 2000: at 2000 (1)"; got != want {
			t.Errorf("progress = %q, want %q", got, want)
		}
		var want []string
		for i := reports - engine.MaxLogLines; i < reports; i++ {
			want = append(want, fmt.Sprint("INFO line ", i+1))
		}
		if diff := cmp.Diff(want, logged(t, db, id)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	}
	// Each job's first and last, and one each quarter of a second between.
	most := ask[float64](t, db, `SELECT max(n)::float8 FROM (SELECT count(*) - 2 - 4 * extract(epoch FROM max(at) - min(at)) AS n FROM writes GROUP BY job_id) AS each_job`)
	if most > 1 {
		t.Errorf("%d writes for %d jobs, for one of them %.1f too many", writes(), jobs, most)
	}
}

func TestAJobThatReportsNothingPaysNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	writes := countWrites(t, db)
	small := db.Config()
	enqueueProbes(t, db, 100, outbox.Options{})
	pool, err := pgxpool.NewWithConfig(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	start(t, pool, handle(func(ctx context.Context, job *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitSucceeded(t, db, 100)
	if n := writes(); n != 0 {
		t.Errorf("writes = %d, want none", n)
	}
}

// While the job runs its progress can be seen, also between two reports.
func TestProgressShowsWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	release := make(chan struct{})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		_ = job.Progress(ctx, 1, 0, "one")
		_ = job.Progress(ctx, 2, 0, "two")
		<-release
		return nil
	}), quiet(nil))
	await(t, db, "the progress is stored", `SELECT EXISTS (SELECT FROM outbox.progress JOIN outbox.jobs ON id = job_id WHERE current = 2 AND status = 'running')`)
	close(release)
	awaitSucceeded(t, db, 1)
	if got, want := reported(t, db, id), "2 of 0: two (1)"; got != want {
		t.Errorf("progress = %q, want %q", got, want)
	}
}

// Each attempt continues from the checkpoint of the one before, and its lines follow the earlier ones in the ring.
func TestTheNextAttemptGetsTheCheckpoint(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	type position struct{ Row int }
	const perAttempt = 90
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		at, found, err := outbox.LoadCheckpoint[position](ctx, job.Claimed)
		if err != nil || found != (job.Attempt > 1) || at.Row != (job.Attempt-1)*perAttempt {
			t.Errorf("attempt %d begins at %+v, %v, %v", job.Attempt, at, found, err)
		}
		for range perAttempt {
			at.Row++
			_ = job.Log(ctx, slog.LevelWarn, fmt.Sprint("row ", at.Row))
		}
		if err := outbox.SaveCheckpoint(ctx, job.Claimed, at); err != nil {
			t.Errorf("save: %v", err)
		}
		if again, found, err := outbox.LoadCheckpoint[position](ctx, job.Claimed); again != at || !found || err != nil {
			t.Errorf("loaded %+v, %v, %v; want what was saved, %+v", again, found, err, at)
		}
		if job.Attempt < 5 {
			return errBoom
		}
		return nil
	}, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)}), quiet(nil))
	awaitSucceeded(t, db, 1)
	var want []string
	for row := 5*perAttempt - engine.MaxLogLines; row < 5*perAttempt; row++ {
		want = append(want, fmt.Sprint("WARN row ", row+1))
	}
	if diff := cmp.Diff(want, logged(t, db, id)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// A statement that was sent first and arrives last, after its client stopped waiting, changes nothing.
func TestALateStatementChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	enqueue(t, db, probe{}, outbox.Options{})
	l := claim(t, db, "worker")
	for _, r := range []int64{2, 1, 2} {
		if row, err := report(t.Context(), db, l, r, r*10); !row.Recorded || err != nil {
			t.Fatalf("revision %d: %+v, %v", r, row, err)
		}
		if got, want := reported(t, db, l.id), "20 of 100: m (1)"; got != want {
			t.Errorf("after revision %d the progress is %q, want %q", r, got, want)
		}
		if got := ask[string](t, db, `SELECT convert_from(checkpoint, 'UTF8') FROM outbox.progress`); got != "20" {
			t.Errorf("after revision %d the checkpoint is %q, want 20", r, got)
		}
	}
}

// While a report is being stored nobody can take the job, and vice versa: a statement that could take it waits or
// passes by. An extension does neither.
func TestNobodyTakesAJobWhileItsReportIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, outbox.Options{})
	l := claim(t, db, "worker")
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second'`)
	tx := begin(t, db)
	if row, err := report(t.Context(), tx, l, 1, 50); !row.Recorded || err != nil {
		t.Fatalf("report: %+v, %v", row, err)
	}
	if lapsed, err := expireLapsed(t.Context(), db); err != nil || lapsed[0].ID.Valid {
		t.Errorf("expired %+v, %v; want nothing", lapsed, err)
	}
	if took, err := workerWrites["extend"](t.Context(), db, l); !took || err != nil {
		t.Errorf("extended = %v, %v; want that it is", took, err)
	}
	// If the row were given back all the same, no claim could take it.
	exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL`)
	if rows, err := sqlgen.New(db).ClaimJobs(t.Context(), claimParams("successor", 1)); err != nil || len(rows) != 0 {
		t.Errorf("claimed %d jobs, %v; want none while the report is stored", len(rows), err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took, err := workerWrites["report"](t.Context(), db, l); took || err != nil {
		t.Errorf("a report after that took effect = %v, %v", took, err)
	}
	claim(t, db, "successor")
}

// One handler keeps its row locked; the reports of the others do not wait for it. Its own durable writes are refused
// meanwhile, with a reason.
func TestALockedRowHoldsUpOnlyItsOwnReports(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 3, outbox.Options{})
	locked, release := make(chan struct{}), make(chan struct{})
	refused := make(chan error, 1)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Args.N > 0 {
			<-locked
			if err := outbox.SaveCheckpoint(ctx, job.Claimed, job.Args.N); err != nil {
				t.Errorf("job %d: %v", job.Args.N, err)
			}
			<-release
			return nil
		}
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := job.Guard(ctx, tx); err != nil {
				return err
			}
			close(locked)
			_ = job.Progress(ctx, 7, 0, "locked")
			refused <- outbox.SaveCheckpoint(ctx, job.Claimed, 0)
			<-release
			return job.Complete(ctx, tx)
		})
	}), quiet(nil))
	await(t, db, "the other two have checkpoints", `SELECT count(*) = 2 FROM outbox.progress WHERE checkpoint IS NOT NULL`)
	if err := receive(t, refused, "the answer"); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("the checkpoint of the locked job: %v, want that it says so", err)
	}
	close(release)
	awaitSucceeded(t, db, 3)
	if got, want := reported(t, db, ids[0]), "7 of 0: locked (1)"; got != want {
		t.Errorf("progress = %q, want %q: what was reported before Complete is stored with it", got, want)
	}
}

// The handler also learns from its reports that the job is no longer its own.
func TestAZombieLearnsFromItsReports(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	taken := make(chan struct{})
	type answers struct{ checkpoint, progress, cause error }
	got := make(chan answers, 1)
	config := quiet(nil)
	config.LeaseTTL = time.Hour // no extension tells it
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		_ = job.Progress(ctx, 1, 0, "zombie")
		<-taken
		_ = job.Progress(ctx, 2, 0, "zombie")
		var a answers
		a.checkpoint = outbox.SaveCheckpoint(context.WithoutCancel(ctx), job.Claimed, "zombie")
		a.progress = job.Progress(ctx, 3, 0, "zombie")
		<-ctx.Done()
		a.cause = context.Cause(ctx)
		got <- a
		return nil
	}), config)
	await(t, db, "the job has reported", `SELECT count(*) = 1 FROM outbox.progress`)
	tx := begin(t, db)
	exec(t, tx, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 second'`)
	if _, err := expireLapsed(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	again, err := sqlgen.New(tx).ClaimJobs(t.Context(), claimParams(d.Worker(), 1))
	if err != nil || len(again) != 1 {
		t.Fatalf("claimed %d, %v", len(again), err)
	}
	if row, err := report(t.Context(), tx, lease{id, again[0].Epoch, again[0].StartedAt.Time}, 1, 50); !row.Recorded || err != nil {
		t.Fatalf("report: %+v, %v", row, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(taken)
	a := receive(t, got, "the handler's answers")
	for what, err := range map[string]error{"checkpoint": a.checkpoint, "progress": a.progress, "cause": a.cause} {
		if !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("%s = %v, want %v", what, err, outbox.ErrLeaseLost)
		}
	}
	awaitThat(t, "the outcome is refused", func() bool { return d.metric(t, "outbox_dispatcher_leases_lost_total") == 1 })
	d.stop(t)
	if got, want := reported(t, db, id), "50 of 100: m (3)"; got != want {
		t.Errorf("progress = %q, want the successor's, %q", got, want)
	}
	if got := logged(t, db, id); !slices.Equal(got, []string{"INFO at 50"}) {
		t.Errorf("log = %q, want the successor's", got)
	}
}

// Complete stores the reports with it, in whatever transaction it is given; and if that is rolled back, the recorder
// stores them all the same.
func TestCompleteStoresWhatWasReported(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	sqlDB := stdlib.OpenDBFromPool(db)
	t.Cleanup(func() { _ = sqlDB.Close() })
	ids := enqueueProbes(t, db, 2, outbox.Options{MaxAttempts: 1})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		tx, err := sqlDB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := job.Guard(ctx, outbox.FromSQL(tx)); err != nil { // nobody else can store it now
			return err
		}
		_ = errors.Join(job.Progress(ctx, 3, 4, "completing"), job.Log(ctx, slog.LevelInfo, "completing"))
		if err := job.Complete(ctx, outbox.FromSQL(tx)); err != nil {
			return err
		}
		if job.Args.N == 1 {
			return errBoom
		}
		return tx.Commit()
	}), quiet(nil))
	await(t, db, "one is done and one is dead", `SELECT (SELECT count(*) FROM outbox.history) = 1 AND (SELECT count(*) FROM outbox.jobs WHERE status = 'dead') = 1`)
	for _, id := range ids {
		if got, want := reported(t, db, id), "3 of 4: completing (1)"; got != want {
			t.Errorf("progress = %q, want %q", got, want)
		}
		if got := logged(t, db, id); !slices.Equal(got, []string{"INFO completing"}) {
			t.Errorf("log = %q", got)
		}
	}
}
