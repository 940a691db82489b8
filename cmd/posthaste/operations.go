package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type operationActs interface {
	Operations(ctx context.Context, tenant outbox.ID, limit int, before outbox.ID) ([]operator.Operation, error)
	Operation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
	StartOperation(context.Context, operator.NewOperation) (operator.Operation, error)
	StopOperation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
	ResumeOperation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
}

var (
	_ operationActs = (*operator.Operator)(nil)
	_ operationActs = (*remote)(nil)
)

func (p *program) operationsCommand() *cli.Command {
	reason := &cli.StringFlag{Name: "reason", Usage: "why, for the audit: `TEXT`"}
	one := func(name, usage string, do func(operationActs, context.Context, outbox.ID, outbox.ID) (operator.Operation, error), more ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: "ID", Flags: append(append(operatorFlags(), outputFlag()), more...),
			Action: func(ctx context.Context, c *cli.Command) error {
				ids, err := jobIDs(c)
				if err != nil {
					return err
				}
				if len(ids) != 1 {
					return wantArgs(c, 1, 1)
				}
				return operate(ctx, p, c, func(ctx context.Context, o operationActs) error {
					found, err := do(o, ctx, outbox.ID{}, ids[0])
					if err != nil {
						return err
					}
					return p.print(c, listOperations([]operator.Operation{found}))
				})
			},
		}
	}
	return &cli.Command{
		Name: "operations", Usage: "acts on many dead letters that go on by themselves: list, start, stop and resume them",
		Description: "The processes that serve the API do them, however many there are, and whatever becomes of one.",
		Commands: []*cli.Command{
			{
				Name: "list", Usage: "list operations, newest first", Action: p.listOperations,
				Flags: append(operatorFlags(), outputFlag(), onlyTenantFlag(), &cli.IntFlag{Name: "limit", Value: operator.DefaultLimit, Usage: "at most `N` operations"}),
			},
			one("show", "tell how far an operation has come", operationActs.Operation),
			one("stop", "stop an operation: when it returns, nothing more is done", operationActs.StopOperation, reason),
			one("resume", "let a stopped operation go on where it was", operationActs.ResumeOperation, reason),
		},
	}
}

func (p *program) listOperations(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o operationActs) error {
		list, err := o.Operations(ctx, tenant, c.Int("limit"), outbox.ID{})
		if err != nil {
			return err
		}
		return p.print(c, listOperations(list))
	})
}

func listOperations(list []operator.Operation) listing {
	l := listing{
		header:   []string{"id", "act", "state", "matched", "done", "passed", "per_second", "started_at", "finished_at", "actor", "reason", "kind", "queue", "fingerprint", "tenant", "stopped_at", "failure"},
		onScreen: 11,
	}
	for _, o := range list {
		state := "running"
		switch {
		case !o.FinishedAt.IsZero():
			state = "done"
		case !o.StoppedAt.IsZero():
			state = "stopped"
		}
		l.add(o.ID, o.Act, state, o.Matched, o.Done, o.Passed, o.PerSecond, instant(o.StartedAt), instant(o.FinishedAt), o.Actor, o.Reason,
			o.Filter.Kind, o.Filter.Queue, o.Filter.Fingerprint, textOf(o.Tenant), instant(o.StoppedAt), o.Failure)
	}
	return l
}

func (r *remote) StartOperation(ctx context.Context, n operator.NewOperation) (operator.Operation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	started, err := r.api.StartOperation(ctx, client.NewOperation{Act: string(n.Act), Filter: r.lettersAct(n.Filter).Filter, RatePerSecond: n.PerSecond, Reason: r.reason})
	if err != nil {
		return operator.Operation{}, fmt.Errorf("start an operation: %w", err)
	}
	return operationOf(started), nil
}

func (r *remote) Operations(ctx context.Context, tenant outbox.ID, limit int, before outbox.ID) ([]operator.Operation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Operations(ctx, textOf(tenant), limit, textOf(before))
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	list := make([]operator.Operation, len(found))
	for i, o := range found {
		list[i] = operationOf(o)
	}
	return list, nil
}

// The tenant is the token's.
func (r *remote) Operation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.Operation)
}

// StopOperation is for an operation of the token's tenant.
func (r *remote) StopOperation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.StopOperation)
}

// ResumeOperation is for an operation of the token's tenant.
func (r *remote) ResumeOperation(ctx context.Context, _, id outbox.ID) (operator.Operation, error) {
	return r.onOperation(ctx, id, r.api.ResumeOperation)
}

func (r *remote) onOperation(ctx context.Context, id outbox.ID, do func(context.Context, string) (client.Operation, error)) (operator.Operation, error) {
	ctx, cancel := patient(client.WithReason(ctx, r.reason))
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
		ID: idOf(o.ID), Tenant: idOf(o.Tenant), Act: operator.OperationAct(o.Act), PerSecond: o.RatePerSecond, Matched: o.Matched, Done: o.Done, Passed: o.Passed,
		Actor: o.Actor, Reason: o.Reason, RequestID: o.AuditID, StartedAt: o.StartedAt, StoppedAt: o.StoppedAt, FinishedAt: o.FinishedAt, Failure: o.Failure,
		Filter: operator.DeadLetterFilter{
			Kind: f.Kind, Queue: f.Queue, Key: f.Key, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, Tenant: idOf(f.Tenant),
			CreatedSince: f.CreatedAfter, CreatedUntil: f.CreatedBefore, FailedSince: f.FailedAfter, FailedUntil: f.FailedBefore,
		},
	}
	if len(f.Status) == 1 {
		op.Filter.Status = outbox.Status(f.Status[0])
	}
	return op
}
