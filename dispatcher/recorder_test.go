package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The network swallows everything while handlers report, save checkpoints and return. No report that can still be read
// is lost, and nothing piles up.
func TestReportsWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	var hole blackHole
	ids := enqueueProbes(t, good, 3, outbox.Options{})
	config := quiet(nil)
	config.LeaseTTL = time.Hour
	var begun sync.WaitGroup
	begun.Add(3)
	away := make(chan struct{})
	saved := make(chan error, 2)
	d := start(t, hole.pool(t, good), handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		begun.Done()
		<-away
		for i := range int64(5000) {
			_ = job.Log(ctx, slog.LevelInfo, fmt.Sprint("line ", i))
			_ = job.Progress(ctx, i, 0, "while it was away")
		}
		switch job.Args.N {
		case 0: // returns at once
			return nil
		case 1:
			saved <- outbox.SaveCheckpoint(ctx, job.Claimed, "checkpoint")
			if got, found, err := outbox.LoadCheckpoint[string](ctx, job.Claimed); got != "checkpoint" || !found || err != nil {
				t.Errorf("loaded %q, %v, %v", got, found, err)
			}
			return nil
		default: // is not patient
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			saved <- outbox.SaveCheckpoint(ctx, job.Claimed, "checkpoint")
			return nil
		}
	}), config)
	begun.Wait()
	hole.open.Store(true)
	close(away)
	if err := receive(t, saved, "the answer to the handler that is not patient"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("SaveCheckpoint = %v, want %v", err, context.DeadlineExceeded)
	}
	awaitThat(t, "it is said that reports are not stored", func() bool { return strings.Contains(d.log.String(), "reports not stored") })
	hole.open.Store(false)
	if err := receive(t, saved, "the answer to the patient one"); err != nil {
		t.Errorf("SaveCheckpoint = %v, want that it is stored", err)
	}
	awaitSucceeded(t, good, 3)
	for n, id := range ids {
		if got, want := reported(t, good, id), "4999 of 0: while it was away (1)"; got != want {
			t.Errorf("job %d: progress = %q, want %q", n, got, want)
		}
		if lines := logged(t, good, id); len(lines) != 200 || lines[0] != "INFO line 4800" || lines[199] != "INFO line 4999" {
			t.Errorf("job %d has %d lines, %q", n, len(lines), lines)
		}
	}
	if n := ask[int](t, good, `SELECT count(*) FROM outbox.progress WHERE convert_from(checkpoint, 'UTF8') = '"checkpoint"'`); n != 2 {
		t.Errorf("checkpoints = %d, want 2: that of the handler that gave up, too", n)
	}
}

// A table is locked for longer than a statement waits: the reports of all jobs wait, and none is given up.
func TestReportsWaitForALockedTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 5, outbox.Options{})
	var begun sync.WaitGroup
	begun.Add(5)
	proceed := make(chan struct{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		begun.Done()
		<-proceed
		_ = job.Progress(ctx, 1, 1, "")
		return nil
	}), quiet(nil))
	begun.Wait()
	foreign := begin(t, db)
	exec(t, foreign, `LOCK TABLE outbox.progress IN ACCESS EXCLUSIVE MODE`)
	close(proceed)
	awaitThat(t, "it is said", func() bool { return strings.Contains(d.log.String(), "reports not stored") })
	if err := foreign.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitSucceeded(t, db, 5)
	for _, id := range ids {
		if got, want := reported(t, db, id), "1 of 1:  (1)"; got != want {
			t.Errorf("progress = %q, want %q", got, want)
		}
	}
}

// The database refuses one job's reports: its handler learns that from its checkpoint, its outcome is stored all the
// same, and other jobs are not affected.
func TestRefusedReportsDoNotFailTheJobNorTheOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poisoned'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON outbox.progress FOR EACH ROW WHEN (NEW.message = 'poison') EXECUTE FUNCTION refuse()`)
	ids := enqueueProbes(t, db, 10, outbox.Options{})
	var begun sync.WaitGroup
	begun.Add(10)
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		message := "fine"
		if job.Args.N == 0 {
			message = "poison"
		}
		begun.Done()
		begun.Wait() // so that they come in one statement
		_ = job.Progress(ctx, 1, 1, message)
		err := outbox.SaveCheckpoint(ctx, job.Claimed, 1)
		if refused := err != nil && strings.Contains(err.Error(), "poisoned"); refused != (job.Args.N == 0) {
			t.Errorf("job %d: SaveCheckpoint = %v", job.Args.N, err)
		}
		_ = job.Progress(ctx, 1, 1, message)
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 10)
	if got := reported(t, db, ids[0]); got != "none" {
		t.Errorf("progress of the refused one = %q", got)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.progress WHERE checkpoint IS NOT NULL AND message = 'fine'`); n != 9 {
		t.Errorf("others stored = %d, want 9", n)
	}
	if !strings.Contains(d.log.String(), "reports refused") {
		t.Error("nobody is told")
	}
}

// A shutdown cuts a handler off, which finally reports how far it has come.
func TestTheLastWordsOfAHandlerThatIsCutOffAreStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{}, outbox.Options{})
	config := quiet(nil)
	config.GracePeriod = -1
	begun := make(chan struct{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		close(begun)
		<-ctx.Done()
		_ = outbox.SaveCheckpoint(context.WithoutCancel(ctx), job.Claimed, "here")
		return job.Progress(ctx, 7, 9, "cut off")
	}), config)
	receive(t, begun, "the handler")
	d.stop(t)
	if got, want := reported(t, db, id), "7 of 9: cut off (1)"; got != want {
		t.Errorf("progress = %q, want %q", got, want)
	}
	wantState(t, db, id, "pending attempt=0 epoch=2 lost=0 error=")
	got := make(chan string, 1)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		checkpoint, _, err := outbox.LoadCheckpoint[string](ctx, job.Claimed)
		got <- checkpoint
		return err
	}), quiet(nil))
	if checkpoint := receive(t, got, "the next attempt"); checkpoint != "here" {
		t.Errorf("checkpoint = %q, want here", checkpoint)
	}
	awaitSucceeded(t, db, 1)
}

// A goroutine that a handler leaves running when it returns cannot report any more.
func TestNothingIsReportedAfterTheHandlerHasReturned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 2, outbox.Options{})
	jobs := make(chan *outbox.Job[probe], 2)
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == 1 {
			_ = job.Progress(ctx, 1, 1, "")
		}
		jobs <- job
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, 2)
	for range 2 {
		job := receive(t, jobs, "a job")
		for what, err := range map[string]error{
			"Progress": job.Progress(t.Context(), 2, 2, ""), "Log": job.Log(t.Context(), 0, ""), "SaveCheckpoint": outbox.SaveCheckpoint(t.Context(), job.Claimed, 1),
		} {
			if err == nil || !strings.Contains(err.Error(), "the attempt is over") {
				t.Errorf("%s = %v, want that the attempt is over", what, err)
			}
		}
	}
	if n := ask[int](t, db, `SELECT coalesce(sum(current), 0) FROM outbox.progress`); n != 1 {
		t.Errorf("progress = %d, want what was reported in time, 1", n)
	}
}
