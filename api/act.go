package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// act is something that is done to one job.
type act func(*operator.Operator, context.Context, outbox.ID) error

func (s *server) retryJob(ctx context.Context, in *jobInput) (*jobOutput, error) {
	return s.actOn(ctx, in.ID, (*operator.Operator).Retry)
}

func (s *server) dismissJob(ctx context.Context, in *jobInput) (*jobOutput, error) {
	return s.actOn(ctx, in.ID, (*operator.Operator).Dismiss)
}

// by is the operator who acts for whoever makes the request: the audit names them.
func (s *server) by(ctx context.Context) *operator.Operator {
	return s.operator.As(operator.Actor{Name: principal(ctx).Name, RequestID: requestID(ctx)})
}

// actOn answers with the job as it is afterwards. A job's tenant never changes, so
// that looking first leaves no gap.
func (s *server) actOn(ctx context.Context, text string, do act) (*jobOutput, error) {
	job, err := s.find(ctx, text)
	if err != nil {
		return nil, err
	}
	if err := do(s.by(ctx), ctx, job.ID); err != nil {
		return nil, err
	}
	if job, err = s.find(ctx, text); err != nil {
		return nil, err
	}
	return &jobOutput{Body: view(principal(ctx), job)}, nil
}

// maxBulk is how many jobs one request acts on.
const maxBulk = 1000

// Bulk says which jobs to act on: by their ids or by a filter.
type Bulk struct {
	IDs    []string `json:"ids,omitempty" maxItems:"1000" nullable:"false" format:"uuid"`
	Filter *Filter  `json:"filter,omitempty" doc:"At least one condition. Without a status: dead letters"`
	DryRun bool     `json:"dryRun,omitempty" doc:"Only tell which jobs it would be"`
}

type bulkInput struct{ Body Bulk }

// BulkResult is what became of each job.
type BulkResult struct {
	Done    int       `json:"done" doc:"Jobs that were acted on, or would be"`
	Refused int       `json:"refused"`
	Jobs    []Outcome `json:"jobs" nullable:"false"`
	More    bool      `json:"more" doc:"There were more than 1 000: ask again"`
}

// Outcome is what became of one.
type Outcome struct {
	ID   string `json:"id" format:"uuid"`
	Code string `json:"code,omitempty" doc:"Why nothing was done: job_not_found or job_status_conflict" example:"job_status_conflict"`
}

type bulkOutput struct{ Body BulkResult }

func (s *server) retryJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, retryable, (*operator.Operator).Retry)
}

func (s *server) dismissJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, deadLetter, (*operator.Operator).Dismiss)
}

func deadLetter(s outbox.Status) bool { return s == outbox.Failed || s == outbox.Dead }

func retryable(s outbox.Status) bool {
	return deadLetter(s) || s == outbox.Pending || s == outbox.Retrying
}

// actOnMany acts on one job after the other, each in a transaction of its own: what
// is done stays done if the request ends early.
func (s *server) actOnMany(ctx context.Context, b Bulk, possible func(outbox.Status) bool, do act) (*bulkOutput, error) {
	jobs, more, err := s.chosen(ctx, b)
	if err != nil {
		return nil, err
	}
	out := &bulkOutput{Body: BulkResult{Jobs: make([]Outcome, len(jobs)), More: more}}
	for i, job := range jobs {
		err := operator.ErrNotFound
		switch {
		case job.found && b.DryRun && !possible(job.status):
			err = &operator.StatusError{ID: job.id, Status: job.status}
		case job.found && b.DryRun:
			err = nil
		case job.found:
			err = do(s.by(ctx), ctx, job.id)
		}
		out.Body.Jobs[i].ID = job.id.String()
		switch _, conflict := errors.AsType[*operator.StatusError](err); {
		case err == nil:
			out.Body.Done++
			continue
		case conflict, errors.Is(err, operator.ErrNotFound), errors.Is(err, operator.ErrPastDeadline):
			out.Body.Refused++
			out.Body.Jobs[i].Code = problemOf(err).Code
		default:
			return nil, err
		}
	}
	return out, nil
}

type candidate struct {
	id     outbox.ID
	status outbox.Status
	found  bool
}

// chosen are the jobs that the principal means, up to the maximum.
func (s *server) chosen(ctx context.Context, b Bulk) (jobs []candidate, more bool, err error) {
	switch {
	case (len(b.IDs) == 0) == (b.Filter == nil):
		return nil, false, invalidInput.because("", Fault{Pointer: "#", Detail: "wants ids or filter, one of them"})
	case b.Filter == nil:
		jobs, err = s.byID(ctx, b.IDs)
		return jobs, false, err
	case b.Filter.isZero():
		return nil, false, invalidInput.because("", Fault{Pointer: "#/filter", Detail: "has no condition"})
	}
	return s.byFilter(ctx, *b.Filter)
}

func (s *server) byID(ctx context.Context, texts []string) ([]candidate, error) {
	wanted := make([]operator.Wanted, len(texts))
	jobs := make([]candidate, len(texts))
	for i, text := range texts {
		id, err := outbox.ParseID(text)
		if err != nil {
			return nil, invalidInput.because("", Fault{Pointer: fmt.Sprintf("#/ids/%d", i), Detail: "is no id"})
		}
		wanted[i] = operator.Wanted{ID: id, Tenant: within(ctx)}
		jobs[i].id = id
	}
	found, err := s.operator.Find(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for i, job := range found {
		jobs[i].found, jobs[i].status = !job.ID.IsZero(), job.Status
	}
	return jobs, nil
}

func (s *server) byFilter(ctx context.Context, f Filter) (jobs []candidate, more bool, err error) {
	filter := f.operators(ctx)
	if len(filter.Statuses) == 0 {
		filter.Statuses = []outbox.Status{outbox.Failed, outbox.Dead}
	}
	filter.Limit = operator.MaxLimit
	for {
		page, err := s.operator.Jobs(ctx, filter)
		if err != nil {
			return nil, false, err
		}
		for _, job := range page {
			if len(jobs) == maxBulk {
				return jobs, true, nil
			}
			jobs = append(jobs, candidate{job.ID, job.Status, true})
			filter.Before = job.ID
		}
		if len(page) < operator.MaxLimit {
			return jobs, false, nil
		}
	}
}
