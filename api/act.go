package api

import (
	"context"
	"net/http"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// act is something that is done to one job.
type act func(*operator.Operator, context.Context, outbox.ID) error

// ForAudit is for acts whose body, if they have one, has no place for it.
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

// answerOutput is a job and whether the act on it is done, 200, or asked for, 202.
type answerOutput struct {
	Status int
	Body   Job
}

// cancelJob answers with the job, which is cancelled, or asked to stop.
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

// by is the operator who acts for the request's principal: the audit names both.
func (s *server) by(ctx context.Context) *operator.Operator {
	return s.operator.As(operator.Actor{Name: principal(ctx).Name, RequestID: requestID(ctx)})
}

// actOn answers with the job as it is afterwards. A job's tenant never changes, so
// that looking first leaves no gap.
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
