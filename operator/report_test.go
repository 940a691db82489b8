package operator_test

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// report stores what a dispatcher stores of a running job.
func report(t *testing.T, db *pgxpool.Pool, id outbox.ID, epoch, revision int64, lines, steps string) {
	t.Helper()
	rows, err := sqlgen.New(db).RecordReports(t.Context(), sqlgen.RecordReportsParams{
		Ids: []pgtype.UUID{{Bytes: id, Valid: true}}, Epochs: []int64{epoch}, Revisions: []int64{revision},
		Currents: []int64{revision}, Totals: []int64{10}, Messages: []string{"reading"}, ProgressAges: []pgtype.Interval{{Valid: true}},
		Checkpoints: [][]byte{[]byte(`{"row": 7}`)}, LogStarts: []int16{-1}, LogLines: []string{lines}, Steps: []string{steps},
	})
	if err != nil || len(rows) != 1 || !rows[0].Recorded {
		t.Fatalf("reports = %+v, %v", rows, err)
	}
}

func TestReportsAreFoundWhileTheJobIsOpenAndWhenItIsClosed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	id, epoch := reach(t, db, outbox.Running)
	report(t, db, id, epoch, 1, `[{"line": 0, "age": "2 s", "level": "INFO", "message": "one"}, {"line": 1, "age": "1 s", "level": "ERROR+2", "message": "two"}]`,
		`[{"name": "fetch", "took": "1500 ms", "result": "eyJuIjogMX0="}]`)
	check := func(when string) {
		t.Helper()
		progress, err := o.Progress(t.Context(), id)
		if err != nil || progress.Current != 1 || progress.Total != 10 || progress.Message != "reading" || progress.ReportedAt.IsZero() {
			t.Errorf("%s: progress = %+v, %v", when, progress, err)
		}
		checkpoint, err := o.Checkpoint(t.Context(), id)
		if err != nil || string(checkpoint.Data) != `{"row": 7}` || checkpoint.Epoch != epoch || checkpoint.SavedAt.IsZero() {
			t.Errorf("%s: checkpoint = %+v, %v", when, checkpoint, err)
		}
		lines, err := o.Logs(t.Context(), id, operator.LogPosition{})
		if err != nil || len(lines) != 2 || lines[0].Message != "one" || lines[1].Level != slog.LevelError+2 || lines[1].At.Sub(lines[0].At).Seconds() != 1 ||
			lines[0].LogPosition != (operator.LogPosition{Epoch: epoch, Line: 1}) {
			t.Errorf("%s: lines = %+v, %v", when, lines, err)
		}
		rest, err := o.Logs(t.Context(), id, lines[0].LogPosition)
		if err != nil || !slices.Equal(rest, lines[1:]) {
			t.Errorf("%s: lines after the first = %+v, %v", when, rest, err)
		}
		steps, err := o.Steps(t.Context(), id)
		if err != nil || len(steps) != 1 || steps[0].Name != "fetch" || steps[0].Took.Seconds() != 1.5 || string(steps[0].Result) != `{"n": 1}` ||
			steps[0].Epoch != epoch || steps[0].FinishedAt.IsZero() {
			t.Errorf("%s: steps = %+v, %v", when, steps, err)
		}
		without, err := o.StepsWithoutResults(t.Context(), id)
		reports, err2 := o.Reports(t.Context(), id)
		if err := errors.Join(err, err2); err != nil || !reflect.DeepEqual(reports.Steps, without) {
			t.Fatalf("%s: of all reports %+v, of the steps %+v, %v", when, reports.Steps, without, err)
		}
		if steps[0].Result = nil; !reflect.DeepEqual(without, steps) || steps[0].ResultBytes != 8 {
			t.Errorf("%s: without results %+v, want %+v", when, without, steps)
		}
	}
	check("running")
	if !settle(t, db, id, epoch, outbox.Succeeded) {
		t.Fatal("not settled")
	}
	check("succeeded")
}

func TestReportsOfAJobWithoutAny(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	succeeded, _ := reach(t, db, outbox.Succeeded)
	ask := func(id outbox.ID) map[string]error {
		progress, err1 := o.Progress(t.Context(), id)
		checkpoint, err2 := o.Checkpoint(t.Context(), id)
		lines, err3 := o.Logs(t.Context(), id, operator.LogPosition{})
		steps, err4 := o.Steps(t.Context(), id)
		if !progress.ReportedAt.IsZero() || checkpoint.Data != nil || len(lines)+len(steps) != 0 {
			t.Errorf("job %s has reported %v, %v, %v, %v", id, progress, checkpoint, lines, steps)
		}
		return map[string]error{"progress": err1, "checkpoint": err2, "logs": err3, "steps": err4}
	}
	for _, id := range []outbox.ID{enqueue(t, db, "mail", outbox.Options{}), succeeded} {
		for what, err := range ask(id) {
			if err != nil {
				t.Errorf("%s of job %s: %v, want none", what, id, err)
			}
		}
	}
	for what, err := range ask(outbox.NewID()) {
		if !errors.Is(err, operator.ErrNotFound) {
			t.Errorf("%s of no job: %v, want %v", what, err, operator.ErrNotFound)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Progress(ctx, succeeded); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}
