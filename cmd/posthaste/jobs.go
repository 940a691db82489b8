package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (p *program) jobsCommand() *cli.Command {
	return &cli.Command{
		Name:  "jobs",
		Usage: "list, show, cancel, release, retry, dismiss and replay jobs",
		Commands: []*cli.Command{
			{
				Name:  "list",
				Usage: "list jobs, open and closed, newest first",
				Flags: append(jobFlags(), outputFlag(), fingerprintFlag(),
					&cli.StringFlag{Name: "worker", Usage: "only those that this `WORKER` holds, or has closed: its whole name, as \"posthaste workers list\" prints it"},
					errorCodeFlag(),
					&cli.IntFlag{Name: "min-attempt", Usage: "only those that have reached attempt `N`"},
					&cli.StringFlag{Name: "parent", Usage: "only follow-ups and hooks of the job with this `ID`"},
					&cli.StringFlag{Name: "id-prefix", Usage: "only those whose id begins with `HEX`"},
					&cli.StringFlag{
						Name:  "contains",
						Usage: "only those with this `TEXT` in the first 64 KiB of the payload, or in the headers",
					},
					sinceFlag("finished-since", "closed"), untilFlag("finished-until", "closed"),
					limitFlag("jobs"), beforeFlag("job"),
				),
				Action: p.listJobs,
			},
			{
				Name:      "show",
				Usage:     "print a job with its payload, its failed attempts and its reported progress",
				ArgsUsage: "ID",
				Flags:     append(operatorFlags(), outputFlag()),
				Action:    p.showJob,
			},
			p.whyCommand(),
			p.actCommand(cancelAct),
			p.actCommand(releaseAct),
			p.jobLogsCommand(),
			p.tailCommand(),
			p.actCommand(retryAct, fingerprintFlag()),
			p.actCommand(dismissAct, fingerprintFlag()),
			p.replayHistoryCommand(),
		},
	}
}

// These are the questions and acts of the commands about jobs.
type (
	jobList interface {
		Page(context.Context, operator.Filter) (operator.JobPage, error)
	}
	jobDetails interface {
		Job(context.Context, outbox.ID) (operator.Job, error)
		Progress(context.Context, outbox.ID) (operator.Progress, error)
		Steps(context.Context, outbox.ID) ([]operator.Step, error)
	}
	jobActs interface {
		All(context.Context, operator.Filter) iter.Seq2[operator.Job, error]
		Job(context.Context, outbox.ID) (operator.Job, error)
		Find(context.Context, []operator.Wanted) ([]operator.Job, error)
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

// jobFlags returns the filters that all commands about jobs have.
func jobFlags() []cli.Flag {
	return append(append(operatorFlags(), onlyFlags()...),
		&cli.StringSliceFlag{
			Name:  "status",
			Usage: "only of this `STATUS`, repeated or separated by commas; dead letters are failed,dead",
		},
		sinceFlag("created-since", "enqueued"), untilFlag("created-until", "enqueued"),
	)
}

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

func jobsFilter(c *cli.Command) (operator.Filter, error) {
	f, err := jobConditions(c)
	f.Worker, f.ErrorCode, f.MinAttempt, f.IDPrefix = c.String("worker"), c.String("error-code"), c.Int("min-attempt"),
		c.String("id-prefix")
	f.Contains = c.String("contains")
	_, bad := readLimit(c, 0)
	return f, errors.Join(err, bad, readID(c, "before", &f.Before), readID(c, "parent", &f.Parent),
		readMoment(c, "finished-since", &f.FinishedSince), readMoment(c, "finished-until", &f.FinishedUntil))
}

// jobConditions returns the filter given by the flags of jobFlags.
func jobConditions(c *cli.Command) (f operator.Filter, err error) {
	f = operator.Filter{
		Kind: c.String("kind"), Queue: c.String("queue"), Key: c.String("key"),
		Fingerprint: c.String("fingerprint"),
	}
	f.Statuses, err = readStatuses(c)
	return f, errors.Join(err, readTenant(c, &f.Tenant), readMoment(c, "created-since", &f.CreatedSince),
		readMoment(c, "created-until", &f.CreatedUntil))
}

func readStatuses(c *cli.Command) (statuses []outbox.Status, err error) {
	for _, text := range c.StringSlice("status") {
		status, bad := operator.ParseStatus(text)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("--status: %w", bad))
		}
		statuses = append(statuses, status)
	}
	return statuses, err
}

// collectJobs reads page after page until there are enough, each in bounded time.
func collectJobs(ctx context.Context, o jobList, f operator.Filter, limit int) ([]operator.Job, error) {
	var jobs []operator.Job
	for len(jobs) < limit {
		f.Limit = min(limit-len(jobs), operator.MaxLimit)
		page, err := o.Page(ctx, f)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, page.Jobs...)
		if page.Next.IsZero() {
			break
		}
		f.Before = page.Next
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
