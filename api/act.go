package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

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

func (s *server) releaseJob(ctx context.Context, in *jobInput) (*jobOutput, error) {
	return s.actOn(ctx, in.ID, (*operator.Operator).Release)
}

// answerOutput is a job and whether the act on it is done, 200, or asked for, 202.
type answerOutput struct {
	Status int
	Body   Job
}

// cancelJob answers with the job, which is cancelled, or asked to stop.
func (s *server) cancelJob(ctx context.Context, in *jobInput) (*answerOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	became, err := s.by(ctx).Cancel(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	if job, err = s.find(ctx, in.ID); err != nil {
		return nil, err
	}
	out := &answerOutput{Status: http.StatusOK, Body: view(principal(ctx), job)}
	if became == operator.CancelRequested {
		out.Status = http.StatusAccepted
	}
	return out, nil
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
	Filter *Filter  `json:"filter,omitempty" doc:"At least one condition. Without a status: dead letters to retry or dismiss, held jobs to release, and to cancel whatever waits or runs"`
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
	// Requested is of cancellations.
	Requested bool `json:"requested,omitempty" doc:"The job is running and was asked to stop, or would be"`
}

type bulkOutput struct{ Body BulkResult }

func (s *server) retryJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, bulkAct{retryable, deadLetters, outright((*operator.Operator).Retry)})
}

func (s *server) dismissJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, bulkAct{deadLetter, deadLetters, outright((*operator.Operator).Dismiss)})
}

func (s *server) releaseJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	held := func(s outbox.Status) bool { return s == outbox.Created }
	return s.actOnMany(ctx, in.Body, bulkAct{held, []outbox.Status{outbox.Created}, outright((*operator.Operator).Release)})
}

func (s *server) cancelJobs(ctx context.Context, in *bulkInput) (*bulkOutput, error) {
	return s.actOnMany(ctx, in.Body, bulkAct{cancellable, stoppable, func(o *operator.Operator, ctx context.Context, id outbox.ID) (bool, error) {
		became, err := o.Cancel(ctx, id)
		return became == operator.CancelRequested, err
	}})
}

// bulkAct is what is done to many jobs.
type bulkAct struct {
	possible func(outbox.Status) bool
	unless   []outbox.Status // are meant by a filter that names none
	do       func(*operator.Operator, context.Context, outbox.ID) (requested bool, err error)
}

// outright is an act that is done when it returns.
func outright(do act) func(*operator.Operator, context.Context, outbox.ID) (bool, error) {
	return func(o *operator.Operator, ctx context.Context, id outbox.ID) (bool, error) {
		return false, do(o, ctx, id)
	}
}

var (
	deadLetters = []outbox.Status{outbox.Failed, outbox.Dead}
	stoppable   = []outbox.Status{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying}
)

// cancellable also is what is cancelled already: to repeat it is harmless.
func cancellable(s outbox.Status) bool { return slices.Contains(stoppable, s) || s == outbox.Cancelled }

func deadLetter(s outbox.Status) bool { return s == outbox.Failed || s == outbox.Dead }

func retryable(s outbox.Status) bool {
	return deadLetter(s) || s == outbox.Pending || s == outbox.Retrying
}

// actOnMany acts on one job after the other, each in a transaction of its own: what
// is done stays done if the request ends early.
func (s *server) actOnMany(ctx context.Context, b Bulk, act bulkAct) (*bulkOutput, error) {
	jobs, more, err := s.chosen(ctx, b, act.unless)
	if err != nil {
		return nil, err
	}
	out := &bulkOutput{Body: BulkResult{Jobs: make([]Outcome, len(jobs)), More: more}}
	for i, job := range jobs {
		requested, err := false, operator.ErrNotFound
		switch {
		case job.found && b.DryRun && !act.possible(job.status):
			err = &operator.StatusError{ID: job.id, Status: job.status}
		case job.found && b.DryRun:
			requested, err = job.status == outbox.Running, nil // only a cancellation is possible then
		case job.found:
			requested, err = act.do(s.by(ctx), ctx, job.id)
		}
		out.Body.Jobs[i].ID = job.id.String()
		switch _, conflict := errors.AsType[*operator.StatusError](err); {
		case err == nil:
			out.Body.Done++
			out.Body.Jobs[i].Requested = requested
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
func (s *server) chosen(ctx context.Context, b Bulk, unless []outbox.Status) (jobs []candidate, more bool, err error) {
	switch {
	case (len(b.IDs) == 0) == (b.Filter == nil):
		return nil, false, invalidInput.because("", Fault{Pointer: "#", Detail: "wants ids or filter, one of them"})
	case b.Filter == nil:
		jobs, err = s.byID(ctx, b.IDs)
		return jobs, false, err
	case b.Filter.isZero():
		return nil, false, invalidInput.because("", Fault{Pointer: "#/filter", Detail: "has no condition"})
	}
	return s.byFilter(ctx, *b.Filter, unless)
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

func (s *server) byFilter(ctx context.Context, f Filter, unless []outbox.Status) (jobs []candidate, more bool, err error) {
	filter, err := f.operators(ctx, inFilter)
	if err != nil {
		return nil, false, err
	}
	if len(filter.Statuses) == 0 {
		filter.Statuses = unless
	}
	for job, err := range s.operator.All(ctx, filter) {
		if err != nil {
			return nil, false, err
		}
		if len(jobs) == maxBulk {
			return jobs, true, nil
		}
		jobs = append(jobs, candidate{job.ID, job.Status, true})
	}
	return jobs, false, nil
}
