package main

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (r *remote) StartOperation(ctx context.Context, n operator.OperationSpec) (operator.Operation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	what := client.NewOperation{
		Act: string(n.Act), RatePerSecond: n.PerSecond, Reason: r.reason,
		Edit: client.JobEdit{Queue: n.Edit.Queue, Priority: n.Edit.Priority, RunAt: n.Edit.RunAt},
	}
	if n.Act.OnOpenJobs() {
		what.Jobs = openJobsOf(n.Act, n.Jobs)
	} else {
		what.Filter = r.lettersAct(n.Filter).Filter
	}
	started, err := r.api.StartOperation(ctx, what)
	if err != nil {
		return operator.Operation{}, fmt.Errorf("start an operation: %w", err)
	}
	return operationOf(started), nil
}

func (r *remote) MatchOpenJobs(ctx context.Context, act operator.OperationAct,
	f operator.OpenFilter,
) (operator.OpenMatch, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	counted, err := r.api.PreviewOperation(ctx, client.NewOperation{Act: string(act), Jobs: openJobsOf(act, f)})
	if err != nil {
		return operator.OpenMatch{}, fmt.Errorf("count open jobs: %w", err)
	}
	match := operator.OpenMatch{
		Matched: counted.Matched, Keyed: counted.Keyed, AsOf: counted.AsOf,
		ByStatus: map[outbox.Status]int64{},
	}
	for status, n := range counted.ByStatus {
		match.ByStatus[outbox.Status(status)] = n
	}
	return match, nil
}

// openJobsOf returns a filter for the API, which refuses one without any condition; --all means each status.
func openJobsOf(act operator.OperationAct, f operator.OpenFilter) client.OpenJobsFilter {
	of := client.OpenJobsFilter{
		Tenant: textOf(f.Tenant), Kind: f.Kind, Queue: f.Queue, Key: f.Key,
		CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil, AsOf: f.AsOf,
	}
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = act.Possible()
	}
	for _, s := range statuses {
		of.Status = append(of.Status, string(s))
	}
	return of
}

func (r *remote) Operations(ctx context.Context, tenant, older outbox.ID, limit int) ([]operator.Operation, error) {
	found, err := before(r.cursors, textOf(older), limit,
		func(limit int, cursor string) ([]client.Operation, string, error) {
			ctx, cancel := patient(ctx)
			defer cancel()
			page, err := r.api.OperationPage(ctx, textOf(tenant), limit, cursor)
			return page.Operations, page.Next, err
		}, func(o client.Operation) string { return o.ID })
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	list := make([]operator.Operation, len(found))
	for i, o := range found {
		list[i] = operationOf(o)
	}
	return list, nil
}

// Operation ignores the tenant, which is the token's.
func (r *remote) Operation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.Operation)
}

// StopOperation stops an operation of the token's tenant.
func (r *remote) StopOperation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.StopOperation)
}

// ResumeOperation resumes an operation of the token's tenant.
func (r *remote) ResumeOperation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.ResumeOperation)
}

func (r *remote) onOperation(ctx context.Context, id outbox.ID,
	do func(context.Context, string) (client.Operation, error),
) (operator.Operation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := do(ctx, id.String())
	if err != nil {
		return operator.Operation{}, fmt.Errorf("operation %s: %w", id, err)
	}
	return operationOf(found), nil
}

func operationOf(o client.Operation) operator.Operation {
	f := o.Filter
	op := operator.Operation{
		ID: idOf(o.ID), Tenant: idOf(o.Tenant), Act: operator.OperationAct(o.Act), PerSecond: o.RatePerSecond,
		Matched: o.Matched, Collecting: o.Collecting, Collected: o.Collected, Done: o.Done, Passed: o.Passed,
		Actor: o.Actor, Reason: o.Reason, RequestID: o.AuditID, StartedAt: o.StartedAt, StoppedAt: o.StoppedAt,
		FinishedAt: o.FinishedAt, Failure: o.Failure,
		Filter: operator.DeadLetterFilter{
			Kind: f.Kind, Queue: f.Queue, Key: f.Key, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint,
			Tenant:       idOf(f.Tenant),
			CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil, FailedSince: f.FailedSince,
			FailedUntil: f.FailedUntil,
		},
	}
	if len(f.Status) == 1 {
		op.Filter.Status = outbox.Status(f.Status[0])
	}
	op.Edit = operator.JobEdit{Queue: o.Edit.Queue, Priority: o.Edit.Priority, RunAt: o.Edit.RunAt}
	j := o.Jobs
	op.Jobs = operator.OpenFilter{
		Kind: j.Kind, Queue: j.Queue, Key: j.Key, Tenant: idOf(j.Tenant),
		CreatedSince: j.CreatedSince, CreatedUntil: j.CreatedUntil,
	}
	for _, s := range j.Status {
		op.Jobs.Statuses = append(op.Jobs.Statuses, outbox.Status(s))
	}
	return op
}
