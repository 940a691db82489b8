package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// OfOperation names an operation.
type OfOperation struct {
	Operation string `path:"operation" format:"uuid" doc:"Its id"`
}

// NewOperation is an act on many dead letters that outlives the request.
type NewOperation struct {
	Act           string           `json:"act" enum:"replay,dismiss"`
	Filter        DeadLetterFilter `json:"filter" doc:"At least one condition. With failedBefore of a dry run it is exactly what was counted, but for what has changed since"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty" minimum:"0.001" maximum:"100000" doc:"Of a replay: no more become due in a second, evenly spread; without a limit if left out"`
	Reason        string           `json:"reason,omitempty" maxLength:"2000" doc:"For the audit"`
}

// Operation is how far an act on many dead letters has come.
type Operation struct {
	ID            string           `json:"id" format:"uuid"`
	Tenant        string           `json:"tenant,omitempty" format:"uuid" doc:"Whose dead letters; left out: of all tenants"`
	Act           string           `json:"act"`
	State         string           `json:"state" enum:"running,stopped,done"`
	Filter        DeadLetterFilter `json:"filter"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty"`
	Matched       int64            `json:"matched" doc:"Dead letters at the beginning"`
	Done          int64            `json:"done"`
	Passed        int64            `json:"passed" doc:"Left alone: something else happened to them meanwhile, or their deadline has passed"`
	Actor         string           `json:"actor"`
	Reason        string           `json:"reason,omitempty"`
	AuditID       string           `json:"auditRequestId,omitempty" doc:"request_id of its entries in the audit"`
	StartedAt     time.Time        `json:"startedAt"`
	StoppedAt     time.Time        `json:"stoppedAt,omitzero"`
	FinishedAt    time.Time        `json:"finishedAt,omitzero"`
	Failure       string           `json:"failure,omitempty" doc:"Of the latest step, which is tried again"`
}

type (
	startOperationInput  struct{ Body NewOperation }
	operationOutput      struct{ Body Operation }
	switchOperationInput struct {
		OfOperation
		Reason string `query:"reason" maxLength:"2000" doc:"For the audit"`
	}
	operationsInput struct {
		OfTenant
		Limit  int    `query:"limit" minimum:"1" default:"50" doc:"Operations of a page; more than 200 are 200"`
		Before string `query:"before" format:"uuid" doc:"Only older ones: the next page begins with the last id of this one"`
	}
	operationsOutput struct {
		Body struct {
			Operations []Operation `json:"operations" nullable:"false" doc:"Newest first"`
		}
	}
)

func operationOf(o operator.Operation) Operation {
	f := o.Filter
	v := Operation{
		ID: o.ID.String(), Tenant: textOfID(o.Tenant), Act: string(o.Act), State: "running", RatePerSecond: o.PerSecond, Matched: o.Matched, Done: o.Done, Passed: o.Passed,
		Actor: o.Actor, Reason: o.Reason, AuditID: o.RequestID, StartedAt: utc(o.StartedAt), StoppedAt: utc(o.StoppedAt), FinishedAt: utc(o.FinishedAt), Failure: o.Failure,
		Filter: DeadLetterFilter{
			OfTenant: OfTenant{Tenant: textOfID(f.Tenant)}, Kind: f.Kind, Queue: f.Queue, Key: f.Key, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint,
			CreatedAfter: utc(f.CreatedSince), CreatedBefore: utc(f.CreatedUntil), FailedAfter: utc(f.FailedSince), FailedBefore: utc(f.FailedUntil),
		},
	}
	if f.Status != "" {
		v.Filter.Status = []string{string(f.Status)}
	}
	switch {
	case !o.FinishedAt.IsZero():
		v.State = "done"
	case !o.StoppedAt.IsZero():
		v.State = "stopped"
	}
	return v
}

func (s *server) startOperation(ctx context.Context, in *startOperationInput) (*operationOutput, error) {
	if in.Body.Filter.isZero() {
		return nil, invalidInput.because("", Fault{Pointer: "#/filter", Detail: "has no condition"})
	}
	filter, err := in.Body.Filter.operators(ctx, inFilter)
	if err != nil {
		return nil, err
	}
	started, err := s.by(ctx).Because(in.Body.Reason).StartOperation(ctx, operator.NewOperation{
		Act: operator.OperationAct(in.Body.Act), Filter: filter, PerSecond: in.Body.RatePerSecond,
	})
	if err != nil {
		return nil, err
	}
	return &operationOutput{operationOf(started)}, nil
}

func (s *server) listOperations(ctx context.Context, in *operationsInput) (*operationsOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	var before outbox.ID
	if in.Before != "" {
		if before, err = outbox.ParseID(in.Before); err != nil {
			return nil, invalidInput.because("", Fault{Parameter: "before", Detail: "is no operation's id"})
		}
	}
	list, err := s.operator.Operations(ctx, tenant, in.Limit, before)
	if err != nil {
		return nil, err
	}
	out := &operationsOutput{}
	out.Body.Operations = make([]Operation, len(list))
	for i, o := range list {
		out.Body.Operations[i] = operationOf(o)
	}
	return out, nil
}

func (s *server) getOperation(ctx context.Context, in *OfOperation) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation, s.operator.Operation)
}

func (s *server) stopOperation(ctx context.Context, in *switchOperationInput) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation, s.by(ctx).Because(in.Reason).StopOperation)
}

func (s *server) resumeOperation(ctx context.Context, in *switchOperationInput) (*operationOutput, error) {
	return s.onOperation(ctx, in.Operation, s.by(ctx).Because(in.Reason).ResumeOperation)
}

func (s *server) onOperation(ctx context.Context, text string, do func(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)) (*operationOutput, error) {
	id, err := outbox.ParseID(text)
	if err != nil {
		return nil, invalidInput.because("", Fault{Parameter: "operation", Detail: "is no operation's id"})
	}
	found, err := do(ctx, within(ctx), id)
	if err != nil {
		return nil, err
	}
	return &operationOutput{operationOf(found)}, nil
}
