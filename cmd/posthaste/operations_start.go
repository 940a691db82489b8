package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

const startDescription = `Acts on the jobs that match all of the filters, or on --all, if they are
%s, and prints the id of the operation.

It acts on the jobs that it has counted, each if its status is still one of these when
its turn comes. It does not touch later jobs, or jobs changed since the count. --dry-run
counts them and prints the --as-of that restricts a later command to exactly these jobs.`

// startCommand starts acts on open jobs.
func (p *program) startCommand() *cli.Command {
	start := func(act operator.OperationAct, usage string, more ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: string(act), Usage: usage, Description: fmt.Sprintf(startDescription, oneOf(act.Possible())),
			Flags: append(append(jobFlags(), more...),
				&cli.BoolFlag{Name: "all", Usage: "all open jobs"},
				&cli.StringFlag{Name: "as-of", Usage: "only jobs unchanged since the dry run that printed this `TEXT`"},
				rateFlag("jobs"),
				reasonFlag(),
				dryRunFlag("count the jobs it would act on, as they are now"),
				yesFlag()),
			Action: func(ctx context.Context, c *cli.Command) error {
				n, err := newOperation(c, act)
				if err != nil {
					return err
				}
				return operate(ctx, p, c, func(ctx context.Context, o operationActs) error {
					return p.startOperation(ctx, c, o, n)
				})
			},
		}
	}
	return &cli.Command{
		Name: "start", Usage: "start an act on all open jobs that match",
		Commands: []*cli.Command{
			start(operator.CancelJobs,
				"cancel jobs: waiting ones at once, running ones by asking their handlers to stop"),
			start(operator.ReleaseJobs, "let held jobs run"),
			start(operator.RetryJobs, "run waiting jobs at once"),
			start(operator.EditJobs, "give waiting jobs another queue, priority or time",
				&cli.StringFlag{Name: "set-queue", Usage: "move them to this `QUEUE`; jobs with a key are left alone"},
				&cli.StringFlag{Name: "set-priority", Usage: "`N`, -32768 to 32767; higher is more urgent"},
				&cli.StringFlag{
					Name:  "set-run-at",
					Usage: "due at this `TIME`, like 2027-01-31T09:00:00Z; one that has passed means now",
				}),
		},
	}
}

func newOperation(c *cli.Command, act operator.OperationAct) (n operator.OperationSpec, err error) {
	if err := wantArgs(c, 0, 0); err != nil {
		return n, err
	}
	f, err := jobConditions(c)
	for _, s := range f.Statuses {
		if !slices.Contains(act.Possible(), s) {
			err = errors.Join(err, fmt.Errorf("--status is %s: want %s, or there is nothing to %s", s,
				oneOf(act.Possible()), act))
		}
	}
	n = operator.OperationSpec{Act: act, Jobs: operator.OpenFilter{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Tenant: f.Tenant, Statuses: f.Statuses, CreatedSince: f.CreatedSince,
		CreatedUntil: f.CreatedUntil, AsOf: c.String("as-of"),
	}}
	err = errors.Join(err, readRate(c, "jobs", &n.PerSecond))
	if act == operator.EditJobs {
		var bad error
		n.Edit, bad = jobEdit(c)
		err = errors.Join(err, bad)
	}
	filtered := !f.Tenant.IsZero() || f.Kind != "" || f.Queue != "" || f.Key != "" || len(f.Statuses) > 0 ||
		!f.CreatedSince.IsZero() || !f.CreatedUntil.IsZero()
	if err == nil && filtered == c.Bool("all") {
		err = fmt.Errorf("no jobs selected: want filters, or --all (see %s --help)", c.FullName())
	}
	if err != nil {
		return n, &usageError{err}
	}
	return n, nil
}

func jobEdit(c *cli.Command) (e operator.JobEdit, err error) {
	e.Queue = c.String("set-queue")
	if c.IsSet("set-queue") && !isName(e.Queue) {
		err = fmt.Errorf("--set-queue is %q, which is no queue's name", e.Queue)
	}
	if c.IsSet("set-priority") {
		n, bad := strconv.ParseInt(c.String("set-priority"), 10, 16)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("--set-priority is %q: want -32768 to 32767", c.String("set-priority")))
		}
		e.Priority = new(int(n))
	}
	if c.IsSet("set-run-at") {
		var bad error
		if e.RunAt, bad = parseInstant(c.String("set-run-at")); bad != nil {
			err = errors.Join(err, fmt.Errorf("--set-run-at is %q: %w", c.String("set-run-at"), bad))
		}
	}
	switch {
	case err != nil:
	case e == operator.JobEdit{}:
		err = errors.New("nothing to edit: want --set-queue, --set-priority or --set-run-at")
	case e.Queue != "" && c.IsSet("key"):
		err = errors.New("--set-queue is not for jobs of a key: its limit and its order hold within a queue")
	}
	return e, err
}

// startOperation starts an operation on what was counted, so that nobody confirms less than what happens.
func (p *program) startOperation(ctx context.Context, c *cli.Command, o operationActs, n operator.OperationSpec) error {
	counted, err := o.MatchOpenJobs(ctx, n.Act, n.Jobs)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if err := p.dryRun(string(n.Act), counted.Matched); err != nil {
			return err
		}
		for _, s := range n.Act.Possible() {
			if counted.ByStatus[s] > 0 {
				fmt.Fprintf(p.stdout, "  %d %s\n", counted.ByStatus[s], s)
			}
		}
		if n.Edit.Queue != "" && counted.Keyed > 0 {
			fmt.Fprintf(p.stdout, "  %d have a key, and are left alone\n", counted.Keyed)
		}
		_, err = fmt.Fprintf(p.stdout, "exactly these: --as-of %s\n", counted.AsOf)
		return err
	}
	if err := p.sure(ctx, c, string(n.Act), int(counted.Matched), "jobs"); err != nil {
		return err
	}
	n.Jobs.AsOf = counted.AsOf
	started, err := o.StartOperation(ctx, n)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s\n", started.ID)
	return err
}
