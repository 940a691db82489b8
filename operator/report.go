package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A job's reports are kept as long as the job: while it is open, and then with the history. Epochs identify its
// attempts: see [Attempt].

// Progress is how far a job is, or was when it ended.
type Progress struct {
	Current, Total int64 // in the handler's unit; a Total of 0 means unknown
	Message        string
	ReportedAt     time.Time // zero if this job has reported none; an earlier attempt may have
}

// Checkpoint is where the next attempt of a job continues.
type Checkpoint struct {
	Data    json.RawMessage // nil if the job has none
	SavedAt time.Time
	Epoch   int64 // of the attempt that saved it
}

// LogLine is a line of a job's own log.
type LogLine struct {
	LogPosition
	At      time.Time
	Level   slog.Level
	Message string
}

// LogPosition is the place of a line in its job's log. The zero LogPosition is before the first.
type LogPosition struct {
	Epoch int64 // of the attempt that wrote it
	Line  int64 // within the attempt, from 1
}

// Step is a finished step of a job.
type Step struct {
	Name       string
	Epoch      int64 // of the attempt that ran it
	FinishedAt time.Time
	Took       time.Duration // by the worker's clock

	ResultBytes int
	Result      json.RawMessage // omitted by [Operator.Reports] and [Operator.StepsWithoutResults]
}

// Progress returns the newest progress of a job, or [ErrNotFound].
func (o *Operator) Progress(ctx context.Context, id outbox.ID) (Progress, error) {
	rows, err := listOf(ctx, o, id, "progress", func(ctx context.Context) ([]sqlgen.FindProgressRow, error) {
		return o.db.FindProgress(ctx, pgvalue.UUID(id))
	})
	if err != nil || len(rows) == 0 {
		return Progress{}, err
	}
	row := rows[0]
	return Progress{Current: row.Current, Total: row.Total, Message: row.Message, ReportedAt: row.ReportedAt.Time}, nil
}

// Checkpoint returns the newest checkpoint of a job, or [ErrNotFound].
func (o *Operator) Checkpoint(ctx context.Context, id outbox.ID) (Checkpoint, error) {
	rows, err := listOf(ctx, o, id, "the checkpoint", func(ctx context.Context) ([]sqlgen.FindCheckpointRow, error) {
		return o.db.FindCheckpoint(ctx, pgvalue.UUID(id))
	})
	if err != nil || len(rows) == 0 {
		return Checkpoint{}, err
	}
	return Checkpoint{Data: rows[0].Checkpoint, SavedAt: rows[0].CheckpointedAt.Time, Epoch: rows[0].Epoch}, nil
}

// Logs returns the lines of a job's log after the given position, oldest first, or [ErrNotFound]. A job's newest 200
// lines are kept, over all its attempts: a reader that is slower than the log grows misses lines, and can detect that
// by their numbers.
func (o *Operator) Logs(ctx context.Context, id outbox.ID, after LogPosition) ([]LogLine, error) {
	rows, err := listOf(ctx, o, id, "the log", func(ctx context.Context) ([]sqlgen.ListLogsRow, error) {
		return o.db.ListLogs(ctx, sqlgen.ListLogsParams{
			JobID: pgvalue.UUID(id), AfterEpoch: after.Epoch,
			AfterLine: after.Line - 1,
		})
	})
	return logLines(rows), err
}

func logLines(rows []sqlgen.ListLogsRow) []LogLine {
	lines := make([]LogLine, 0, len(rows))
	for _, row := range rows {
		line := LogLine{LogPosition: LogPosition{row.Epoch, row.Line + 1}, At: row.LoggedAt.Time, Message: row.Message}
		_ = line.Level.UnmarshalText([]byte(row.Level)) // as written by slog; INFO for any other text
		lines = append(lines, line)
	}
	return lines
}

// Steps returns the finished steps of a job, oldest first and a thousand at most, or [ErrNotFound]. All their results
// together may be 250 MiB.
func (o *Operator) Steps(ctx context.Context, id outbox.ID) ([]Step, error) {
	return o.steps(ctx, id, true)
}

// StepsWithoutResults returns steps as [Operator.Steps] does, without the results, but with their sizes.
func (o *Operator) StepsWithoutResults(ctx context.Context, id outbox.ID) ([]Step, error) {
	return o.steps(ctx, id, false)
}

func (o *Operator) steps(ctx context.Context, id outbox.ID, results bool) ([]Step, error) {
	rows, err := listOf(ctx, o, id, "the steps", func(ctx context.Context) ([]sqlgen.ListStepsRow, error) {
		return o.db.ListSteps(ctx, results, pgvalue.UUID(id))
	})
	return stepsOf(rows), err
}

func stepsOf(rows []sqlgen.ListStepsRow) []Step {
	steps := make([]Step, 0, len(rows))
	for _, row := range rows {
		steps = append(steps, Step{
			Name: row.Name, Epoch: row.Epoch, FinishedAt: row.FinishedAt.Time, Took: pgvalue.Duration(row.Took),
			ResultBytes: int(row.ResultBytes), Result: row.Result,
		})
	}
	return steps
}

// Reports is everything that a job has reported.
type Reports struct {
	Progress   Progress
	Checkpoint Checkpoint
	Log        []LogLine // the newest 200 lines, oldest first
	Steps      []Step    // without their results
}

// Reports returns everything that a job has reported, in one statement, or nothing for a job that does not exist.
func (o *Operator) Reports(ctx context.Context, id outbox.ID) (r Reports, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListReports(ctx, pgvalue.UUID(id))
	if err != nil {
		return r, fmt.Errorf("list what job %s has reported: %w", id, err)
	}
	var lines []sqlgen.ListLogsRow
	var steps []sqlgen.ListStepsRow
	for _, row := range rows {
		switch row.What {
		case "progress":
			r.Progress = Progress{Current: row.Current, Total: row.Total, Message: row.Message, ReportedAt: row.At.Time}
		case "checkpoint":
			r.Checkpoint = Checkpoint{Data: row.Data, SavedAt: row.At.Time, Epoch: row.Epoch}
		case "line":
			lines = append(lines, sqlgen.ListLogsRow{
				Epoch: row.Epoch, Line: row.Line, LoggedAt: row.At,
				Level: row.Name, Message: row.Message,
			})
		case "step":
			steps = append(steps, sqlgen.ListStepsRow{
				Name: row.Name, Epoch: row.Epoch, FinishedAt: row.At,
				Took: row.Took, ResultBytes: row.Current,
			})
		}
	}
	r.Log, r.Steps = logLines(lines), stepsOf(steps)
	return r, nil
}

// listOf runs a query about a job. Only if the answer is empty does it check whether the job exists.
func listOf[R any](ctx context.Context, o *Operator, id outbox.ID, what string,
	query func(context.Context) ([]R, error),
) ([]R, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := query(ctx)
	if err == nil && len(rows) == 0 {
		var exists bool
		if exists, err = o.db.JobExists(ctx, pgvalue.UUID(id)); err == nil && !exists {
			err = ErrNotFound
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find %s of job %s: %w", what, id, err)
	}
	return rows, nil
}
