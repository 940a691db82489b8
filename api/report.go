package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/posthaste-dev/posthaste/access"
)

// Progress is how far a job is, or was when it ended.
type Progress struct {
	ID         string    `json:"id" format:"uuid"`
	Status     string    `json:"status"`
	Current    int64     `json:"current" doc:"Progress so far, in the handler's unit"`
	Total      int64     `json:"total,omitempty" doc:"Total; omitted if unknown"`
	Message    string    `json:"message,omitempty"`
	ReportedAt time.Time `json:"reportedAt,omitzero" doc:"When it was reported; omitted if the job has reported none"`
}

type progressOutput struct{ Body Progress }

func (s *server) getProgress(ctx context.Context, in *jobInput) (*progressOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	p, err := s.operator.Progress(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	return &progressOutput{Body: Progress{
		ID: job.ID.String(), Status: string(job.Status), Current: p.Current, Total: p.Total, Message: p.Message,
		ReportedAt: utc(p.ReportedAt),
	}}, nil
}

// LogLine is a line of a job's own log.
type LogLine struct {
	Line    int64     `json:"line" doc:"Number of the line, from 1 in each attempt. Only a job's newest 200 lines are kept, so that numbers may be missing"`
	At      time.Time `json:"at"`
	Level   string    `json:"level" example:"INFO"`
	Message string    `json:"message"`
}

type logsInput struct {
	ID     string `path:"id" format:"uuid" doc:"Id of the job"`
	Cursor string `query:"cursor" maxLength:"64" doc:"next of an earlier response: only lines after those of that response"`
}

type logsOutput struct {
	Body struct {
		Lines []LogLine `json:"lines" nullable:"false"`
		Next  string    `json:"next,omitempty" doc:"The cursor of the next request; also for later lines of a job that is still running"`
	}
}

// listLogs returns all lines at once, because the log is short.
func (s *server) listLogs(ctx context.Context, in *logsInput) (*logsOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	after, err := fromCursor(in.Cursor, readLogCursor)
	if err != nil {
		return nil, err
	}
	lines, err := s.operator.Logs(ctx, job.ID, after)
	if err != nil {
		return nil, err
	}
	out := &logsOutput{}
	out.Body.Lines, out.Body.Next = make([]LogLine, len(lines)), in.Cursor
	for i, l := range lines {
		out.Body.Lines[i] = LogLine{Line: l.Line, At: utc(l.At), Level: l.Level.String(), Message: l.Message}
		out.Body.Next = makeLogCursor(l.LogPosition)
	}
	return out, nil
}

// Step is a finished step of a job.
type Step struct {
	Name        string          `json:"name"`
	Epoch       int64           `json:"epoch" doc:"Epoch of the attempt that ran it"`
	FinishedAt  time.Time       `json:"finishedAt"`
	TookSeconds float64         `json:"tookSeconds"`
	Result      json.RawMessage `json:"result,omitempty" doc:"Only with payload.read"`
}

type stepsOutput struct {
	Body struct {
		Steps []Step `json:"steps" nullable:"false"`
	}
}

func (s *server) listSteps(ctx context.Context, in *jobInput) (*stepsOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	steps, err := s.operator.StepsWithoutResults(ctx, job.ID)
	if err == nil && len(steps) > 0 && principal(ctx).Can(access.PayloadRead) {
		total := 0
		for _, step := range steps {
			total += step.ResultBytes
		}
		if err = s.holdAnswer(ctx, total); err == nil {
			err = s.recordRead(ctx, "steps", job)
		}
		if err == nil {
			steps, err = s.operator.Steps(ctx, job.ID)
		}
	}
	if err != nil {
		return nil, err
	}
	out := &stepsOutput{}
	out.Body.Steps = make([]Step, len(steps))
	for i, step := range steps {
		out.Body.Steps[i] = Step{
			Name: step.Name, Epoch: step.Epoch, FinishedAt: utc(step.FinishedAt),
			TookSeconds: step.Took.Seconds(),
		}
		if json.Valid(step.Result) {
			out.Body.Steps[i].Result = step.Result
		}
	}
	return out, nil
}
