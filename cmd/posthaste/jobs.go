package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (p *program) jobsCommand() *cli.Command {
	return &cli.Command{
		Name:  "jobs",
		Usage: "look at jobs; cancel, release, retry or dismiss them",
		Commands: []*cli.Command{
			{
				Name:  "list",
				Usage: "list jobs, open and closed, newest first",
				Flags: append(operatorFlags(), outputFlag(),
					&cli.StringFlag{Name: "kind", Usage: "only of this `KIND`"},
					&cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"},
					&cli.StringSliceFlag{Name: "status", Usage: "only of this `STATUS`, repeated or separated by commas; dead letters are failed,dead"},
					&cli.IntFlag{Name: "limit", Value: operator.DefaultLimit, Usage: "at most `N` jobs"},
					&cli.StringFlag{Name: "before", Usage: "only older ones than the job with this `ID`: the next page begins with the last id of this one"},
				),
				Action: p.listJobs,
			},
			{
				Name:      "show",
				Usage:     "print a job with its payload, its failed attempts and what it has reported",
				ArgsUsage: "ID",
				Flags:     append(operatorFlags(), outputFlag()),
				Action:    p.showJob,
			},
			p.cancelCommand(),
			p.actCommand("release", "let held jobs run", []outbox.Status{outbox.Created}, jobActs.Release),
			p.jobLogsCommand(),
			p.tailCommand(),
			p.actCommand("retry", "have dead letters run again with all their attempts, and waiting jobs at once",
				[]outbox.Status{outbox.Failed, outbox.Dead, outbox.Pending, outbox.Retrying}, jobActs.Retry),
			p.actCommand("dismiss", "put dead letters away: they move to the history", []outbox.Status{outbox.Failed, outbox.Dead}, jobActs.Dismiss),
		},
	}
}

// What the commands about jobs ask and do.
type (
	jobList interface {
		Jobs(context.Context, operator.Filter) ([]operator.Job, error)
	}
	jobDetails interface {
		Job(context.Context, outbox.ID) (operator.Job, error)
		Progress(context.Context, outbox.ID) (operator.Progress, error)
		Steps(context.Context, outbox.ID) ([]operator.Step, error)
	}
	jobActs interface {
		Job(context.Context, outbox.ID) (operator.Job, error)
		Cancel(context.Context, outbox.ID) (operator.Cancellation, error)
		Release(context.Context, outbox.ID) error
		Retry(context.Context, outbox.ID) error
		Dismiss(context.Context, outbox.ID) error
	}
)

var (
	_ jobList    = (*operator.Operator)(nil)
	_ jobDetails = (*operator.Operator)(nil)
	_ jobActs    = (*operator.Operator)(nil)
)

func (p *program) listJobs(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	filter, err := jobsFilter(c)
	if err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o jobList) error {
		jobs, err := collectJobs(ctx, o, filter, c.Int("limit"))
		if err != nil {
			return err
		}
		return p.print(c, listJobs(jobs))
	})
}

func jobsFilter(c *cli.Command) (f operator.Filter, err error) {
	f = operator.Filter{Kind: c.String("kind"), Queue: c.String("queue")}
	var errs []error
	if f.Statuses, err = readStatuses(c); err != nil {
		errs = append(errs, err)
	}
	if v := c.String("before"); v != "" {
		if f.Before, err = outbox.ParseID(v); err != nil {
			errs = append(errs, fmt.Errorf("--before: %w", err))
		}
	}
	if n := c.Int("limit"); n < 1 {
		errs = append(errs, fmt.Errorf("--limit is %d: want at least 1", n))
	}
	return f, errors.Join(errs...)
}

func readStatuses(c *cli.Command) (statuses []outbox.Status, err error) {
	for _, text := range c.StringSlice("status") {
		status, bad := outbox.ParseStatus(text)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("--status: %w", bad))
		}
		statuses = append(statuses, status)
	}
	return statuses, err
}

// collectJobs reads page after page until there are enough.
func collectJobs(ctx context.Context, o jobList, f operator.Filter, limit int) ([]operator.Job, error) {
	var jobs []operator.Job
	for len(jobs) < limit {
		f.Limit = min(limit-len(jobs), operator.MaxLimit)
		page, err := o.Jobs(ctx, f)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, page...)
		if len(page) < f.Limit {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	return jobs, nil
}

func (p *program) showJob(ctx context.Context, c *cli.Command) error {
	ids, err := jobIDs(c)
	if err != nil {
		return err
	}
	if len(ids) != 1 {
		return wantArgs(c, 1, 1)
	}
	return operate(ctx, p, c, func(ctx context.Context, o jobDetails) error {
		job, err := o.Job(ctx, ids[0])
		if err != nil {
			return err
		}
		reported, err := collectReports(ctx, o, job.ID)
		if err != nil {
			return err
		}
		return p.printJob(c, job, reported)
	})
}

func jobIDs(c *cli.Command) ([]outbox.ID, error) {
	if c.NArg() == 0 {
		return nil, wantArgs(c, 1, 1)
	}
	var ids []outbox.ID
	for _, text := range c.Args().Slice() {
		id, err := outbox.ParseID(text)
		if err != nil {
			return nil, &usageError{err}
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// actCommand does something to each of the jobs that are named. One that cannot
// be done does not keep the others from it.
func (p *program) actCommand(name, usage string, possible []outbox.Status, act func(jobActs, context.Context, outbox.ID) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "ID…",
		Flags: append(operatorFlags(),
			&cli.BoolFlag{Name: "dry-run", Usage: "only say which jobs it would be, as their statuses are now"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask before acting on more than one"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			ids, err := jobIDs(c)
			if err != nil {
				return err
			}
			return operate(ctx, p, c, func(ctx context.Context, o jobActs) error {
				if c.Bool("dry-run") {
					return p.onEach(ids, "would "+name+" ", func(id outbox.ID) error { return isPossible(ctx, o, name, possible, id) })
				}
				if len(ids) > 1 && !c.Bool("yes") && p.isInteractive() {
					if err := p.confirm(fmt.Sprintf("%s %d jobs?", name, len(ids))); err != nil {
						return err
					}
				}
				return p.onEach(ids, "", func(id outbox.ID) error { return act(o, ctx, id) })
			})
		},
	}
}

// onEach prints those for which do has no error, behind a word.
func (p *program) onEach(ids []outbox.ID, word string, do func(outbox.ID) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(id); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(p.stdout, "%s%s\n", word, id)
	}
	return errors.Join(errs...)
}

// isPossible says why an act on the job would be refused.
func isPossible(ctx context.Context, o jobActs, act string, possible []outbox.Status, id outbox.ID) error {
	job, err := o.Job(ctx, id)
	if err == nil && !slices.Contains(possible, job.Status) {
		return &operator.StatusError{ID: id, Status: job.Status, Act: act}
	}
	return err
}

// cancelCommand says of each job what became of the request: those that were
// running are not cancelled yet.
func (p *program) cancelCommand() *cli.Command {
	cancel := func(o jobActs, ctx context.Context, id outbox.ID) error {
		done, err := o.Cancel(ctx, id)
		if done == operator.CancelRequested {
			fmt.Fprintf(p.stderr, "%s is running: its handler has been asked to stop\n", id)
		}
		return err
	}
	return p.actCommand("cancel", "call jobs off: waiting ones at once, running ones by asking their handlers to stop",
		[]outbox.Status{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying, outbox.Running, outbox.Cancelled}, cancel)
}
