package api

import (
	"context"
	"net/http"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// act is an act on one job.
type act func(*operator.Operator, context.Context, outbox.ID) error

// ForAudit is for acts whose body, if they have one, has no place for a reason.
type ForAudit struct {
	Reason string `query:"reason" maxLength:"2000" doc:"For the audit"`
}

type actInput struct {
	ID string `path:"id" format:"uuid" doc:"Id of the job"`
	ForAudit
}

func (s *server) retryJob(ctx context.Context, in *actInput) (*jobOutput, error) {
	return s.actOn(ctx, in, (*operator.Operator).Retry)
}

func (s *server) dismissJob(ctx context.Context, in *actInput) (*jobOutput, error) {
	return s.actOn(ctx, in, (*operator.Operator).Dismiss)
}

func (s *server) releaseJob(ctx context.Context, in *actInput) (*jobOutput, error) {
	return s.actOn(ctx, in, (*operator.Operator).Release)
}

// answerOutput is a job with the status of an act on it: 200 if it is done, 202 if it is requested.
type answerOutput struct {
	Status int
	Body   Job
}

// cancelJob cancels a job, or asks it to stop, and answers with it.
func (s *server) cancelJob(ctx context.Context, in *actInput) (*answerOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	became, err := s.by(ctx).Because(in.Reason).Cancel(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	if job, err = s.find(ctx, in.ID); err != nil {
		return nil, afterAct(err)
	}
	out := &answerOutput{Status: http.StatusOK, Body: view(principal(ctx), job)}
	if became == operator.CancelRequested {
		out.Status = http.StatusAccepted
	}
	return out, nil
}

// by returns an operator that acts for the request's principal; the audit records both.
func (s *server) by(ctx context.Context) *operator.Operator {
	return s.operator.As(operator.Actor{Name: principal(ctx).Name, RequestID: requestID(ctx)})
}

// actOn acts on a job and answers with its state afterwards. A job's tenant never changes, so checking it first leaves
// no gap.
func (s *server) actOn(ctx context.Context, in *actInput, do act) (*jobOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if err := do(s.by(ctx).Because(in.Reason), ctx, job.ID); err != nil {
		return nil, err
	}
	if job, err = s.find(ctx, in.ID); err != nil {
		return nil, afterAct(err)
	}
	return &jobOutput{Body: view(principal(ctx), job)}, nil
}
