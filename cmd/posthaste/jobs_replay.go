package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type historyReplays interface {
	WouldReplayHistory(ctx context.Context, r operator.JobReplay) (operator.HistoryPlan, error)
	ReplayHistory(ctx context.Context, r operator.JobReplay) (outbox.ID, operator.HistoryPlan, error)
}

var (
	_ historyReplays = (*operator.Operator)(nil)
	_ historyReplays = (*remote)(nil)
)

const replayHistoryDescription = `It enqueues copies of the jobs, all of them or none. Without --until these are the jobs that
succeeded before now. At a --rate they become due one after the other.

Copies have the header posthaste-replay and, without --again, also posthaste-original-id.
That is the id of the first job: if a sink publishes the job's message, consumers know the
message by it and drop the repeat. Dead letters have not succeeded: "dlq replay" is for them.`

func (p *program) replayHistoryCommand() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "enqueue jobs again that have succeeded", Description: replayHistoryDescription,
		Flags: append(replayFlags("jobs", "succeeded"), onlyKindFlag(), dryRunFlag("show what it would enqueue"),
			&cli.BoolFlag{Name: "again", Usage: "under new ids, which are not dropped as repeats"}),
		Action: p.replayHistory,
	}
}

func (p *program) replayHistory(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	e, err := readReplay(c, "jobs")
	if !c.IsSet("kind") {
		err = errors.Join(err, errors.New("--kind is required"))
	}
	if err != nil {
		return &usageError{err}
	}
	r := operator.JobReplay{
		Kind: c.String("kind"), Since: e.Since, Until: e.Until, Key: e.Key, Tenant: e.Tenant, PerSecond: e.PerSecond,
		Again: e.Again,
	}
	return operate(ctx, p, c, func(ctx context.Context, o historyReplays) error {
		plan, err := o.WouldReplayHistory(ctx, r)
		if err != nil {
			return inFlagWords(err)
		}
		if c.Bool("dry-run") || plan.Jobs == 0 {
			_, err := fmt.Fprint(p.stdout, historyPlanText(plan))
			return err
		}
		if err := p.sure(ctx, c, "enqueue again", int(plan.Jobs), "jobs"); err != nil {
			return err
		}
		r.Until = plan.Until
		id, done, err := o.ReplayHistory(ctx, r)
		if err != nil {
			return inFlagWords(err)
		}
		_, err = fmt.Fprintf(p.stdout, "enqueued %d jobs: replay %s\n", done.Jobs, id)
		return err
	})
}

func historyPlanText(plan operator.HistoryPlan) string {
	if plan.Jobs == 0 {
		return "would enqueue 0 jobs\n"
	}
	text := fmt.Sprintf("would enqueue %d jobs, which succeeded from %s to %s", plan.Jobs,
		plan.Oldest.Local().Format(time.RFC3339), plan.Newest.Local().Format(time.RFC3339))
	if plan.Takes > 0 {
		text += fmt.Sprintf("; the last is due in about %s", short(plan.Takes.Round(time.Second)))
	}
	return text + "\n"
}
