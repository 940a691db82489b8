package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

const problemsDescription = `The worst first, each with its remedy: dead letters that failed alike, kinds without a
handler, late, full and paused queues, parked keys, overdue schedules, silent workers, and
what doctor finds of the installation, which is included only without a tenant. A
problem means that jobs do not run, or will not; the others are warnings. It is what the
console shows as Problems, and it changes nothing.

Exit status: 0 nothing worse than a warning, 1 a problem, 2 the command line is wrong.`

func (p *program) problemsCommand() *cli.Command {
	return &cli.Command{
		Name: "problems", Usage: "list what is wrong now, and the remedies", Description: problemsDescription,
		Flags: append(operatorFlags(), outputFlag(), onlyTenantFlag()), Action: p.listProblems,
	}
}

func (p *program) listProblems(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	found, err := p.findProblems(ctx, c, tenant)
	if err != nil {
		return err
	}
	if c.String("output") == "table" {
		p.tellProblems(found.Problems)
	} else if err := p.print(c, listProblems(found.Problems)); err != nil {
		return err
	}
	bad := 0
	for _, f := range found.Problems {
		if f.Severity == doctor.Problem {
			bad++
		}
	}
	if bad > 0 {
		return cli.Exit(doctor.Count(bad, "problem"), exitFailed)
	}
	return nil
}

// findProblems asks the API for what it has found in the last seconds, or searches the database.
func (p *program) findProblems(ctx context.Context, c *cli.Command,
	tenant outbox.ID,
) (found watch.Findings, err error) {
	s, err := p.load(c, "database-url", "api", "token")
	if err != nil {
		return found, err
	}
	viaAPI, err := wantsAPI(c, s)
	if err != nil {
		return found, err
	}
	if viaAPI {
		err = p.throughAPI(ctx, c, s, func(ctx context.Context, r *remote) (err error) {
			found, err = r.problems(ctx, tenant)
			return err
		})
		return found, err
	}
	err = withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		found, err = watch.NewProblems(operator.New(pool), watch.NewExaminations(pool), nil).Look(ctx, tenant)
		return err
	})
	return found, err
}

// tellProblems prints problems for people: a sentence per paragraph, with the remedy below.
func (p *program) tellProblems(problems []watch.Problem) {
	if len(problems) == 0 {
		fmt.Fprintln(p.stdout, "nothing is wrong")
	}
	for _, f := range problems {
		fmt.Fprintf(p.stdout, "%s: %s\n", f.Severity, oneLine(f.Sentence))
		if f.Do != "" {
			fmt.Fprintf(p.stdout, "  %s\n", oneLine(f.Do))
		}
		if f.Act.Command != "" {
			fmt.Fprintf(p.stdout, "  $ %s\n", oneLine(f.Act.Command))
		}
	}
}

func listProblems(problems []watch.Problem) listing {
	l := listing{header: []string{
		"severity", "kind", "sentence", "since", "what_to_do", "act", "jobs", "job_kind", "queue", "key", "fingerprint",
		"error_code", "error_message",
		"job", "schedule", "worker", "tenant",
	}}
	for _, f := range problems {
		l.add(string(f.Severity), f.Kind, f.Sentence, instant(f.Since), textOrNull(f.Do), textOrNull(f.Act.Command),
			f.Jobs, textOrNull(f.JobKind),
			textOrNull(f.Queue), textOrNull(f.Key), textOrNull(f.Fingerprint), textOrNull(f.ErrorCode),
			textOrNull(f.Message),
			optional(f.Job), textOrNull(f.Schedule), textOrNull(f.Worker), optional(f.Tenant))
	}
	return l
}

func (r *remote) problems(ctx context.Context, tenant outbox.ID) (watch.Findings, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Problems(ctx, textOf(tenant))
	if err != nil {
		return watch.Findings{}, err
	}
	f := watch.Findings{AsOf: found.AsOf, Problems: make([]watch.Problem, len(found.Problems))}
	for i, p := range found.Problems {
		f.Problems[i] = watch.Problem{
			Kind: p.Kind, Severity: doctor.Severity(p.Severity), Sentence: p.Sentence, Since: p.Since, Do: p.Do,
			Act: actOf(p.Act),
			Evidence: watch.Evidence{
				Tenant: idOf(p.Tenant), Queue: p.Queue, JobKind: p.JobKind, Key: p.Key, Fingerprint: p.Fingerprint,
				ErrorCode: p.ErrorCode, Message: p.Message,
				Job: idOf(p.Job), Schedule: p.Schedule, Worker: p.Worker, Jobs: p.Jobs,
			},
		}
	}
	return f, nil
}

func actOf(a *client.WhyAct) operator.Act {
	if a == nil {
		return operator.Act{}
	}
	return operator.Act{Command: a.Command, Method: a.Method, Path: a.Path}
}
