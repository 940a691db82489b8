package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type operationActs interface {
	Operations(ctx context.Context, tenant, before outbox.ID, limit int) ([]operator.Operation, error)
	Operation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
	MatchOpenJobs(context.Context, operator.OperationAct, operator.OpenFilter) (operator.OpenMatch, error)
	StartOperation(context.Context, operator.OperationSpec) (operator.Operation, error)
	StopOperation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
	ResumeOperation(ctx context.Context, tenant, id outbox.ID) (operator.Operation, error)
}

var (
	_ operationActs = (*operator.Operator)(nil)
	_ operationActs = (*remote)(nil)
)

func (p *program) operationsCommand() *cli.Command {
	one := func(name, usage string,
		do func(operationActs, context.Context, outbox.ID, outbox.ID) (operator.Operation, error),
		more ...cli.Flag,
	) *cli.Command {
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
		Name: "operations", Usage: "list, start, stop and resume acts on many jobs that run on the server",
		Description: "The processes that serve the API execute operations; if one process dies, another\ncontinues. \"dlq replay\" and \"dlq dismiss\" with --detach start those on dead letters.",
		Commands: []*cli.Command{
			p.startCommand(),
			{
				Name: "list", Usage: "list operations, newest first", Action: p.listOperations,
				Flags: append(operatorFlags(), outputFlag(), onlyTenantFlag(), limitFlag("operations"),
					beforeFlag("operation")),
			},
			one("show", "show the progress of an operation", operationActs.Operation),
			one("stop", "stop an operation; it has stopped when the command returns", operationActs.StopOperation,
				reasonFlag()),
			one("resume", "continue a stopped operation", operationActs.ResumeOperation, reasonFlag()),
		},
	}
}

func (p *program) listOperations(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var tenant, before outbox.ID
	limit, err := readLimit(c, 0)
	if err = errors.Join(err, readTenant(c, &tenant), readID(c, "before", &before)); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o operationActs) error {
		var list []operator.Operation
		for len(list) < limit {
			want := min(limit-len(list), operator.MaxLimit)
			page, err := o.Operations(ctx, tenant, before, want)
			if err != nil {
				return err
			}
			list = append(list, page...)
			if len(page) < want {
				break
			}
			before = page[len(page)-1].ID
		}
		return p.print(c, listOperations(list))
	})
}

func listOperations(list []operator.Operation) listing {
	l := listing{
		header: []string{
			"id", "act", "state", "matched", "collected", "done", "passed", "per_second", "started_at", "finished_at",
			"actor", "reason", "kind", "queue", "fingerprint", "tenant", "stopped_at", "failure", "edit",
		},
		onScreen: 12,
	}
	for _, o := range list {
		state := "running"
		switch {
		case !o.FinishedAt.IsZero():
			state = "done"
		case !o.StoppedAt.IsZero():
			state = "stopped"
		}
		var collected any // of jobs, before it acts on the first
		if o.Collecting {
			collected = o.Collected
		}
		l.add(o.ID, o.Act, state, o.Matched, collected, o.Done, o.Passed, o.PerSecond, instant(o.StartedAt),
			instant(o.FinishedAt), o.Actor, o.Reason,
			o.Filter.Kind+o.Jobs.Kind, o.Filter.Queue+o.Jobs.Queue, o.Filter.Fingerprint, textOf(o.Tenant),
			instant(o.StoppedAt), o.Failure, o.Edit)
	}
	return l
}
