package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type queueActs interface {
	Queues(context.Context) ([]operator.Queue, error)
	Pause(ctx context.Context, queue string) error
	Resume(ctx context.Context, queue string) error
}

var _ queueActs = (*operator.Operator)(nil)

func (p *program) queuesCommand() *cli.Command {
	return &cli.Command{
		Name:  "queues",
		Usage: "look at queues; pause and resume them",
		Commands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "list the queues with open jobs and those that are paused",
				Flags:  append(operatorFlags(), outputFlag()),
				Action: p.listQueues,
			},
			p.queueCommand("pause", "stop claims of a queue in all processes; running jobs go on", queueActs.Pause),
			p.queueCommand("resume", "let claims of a queue go on", queueActs.Resume),
		},
	}
}

func (p *program) listQueues(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o queueActs) error {
		queues, err := o.Queues(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{"queue", "paused_since"}}
		for _, s := range openStatuses() {
			l.header = append(l.header, s.String())
		}
		for _, q := range queues {
			row := []any{q.Name, instant(q.PausedSince)}
			for _, s := range openStatuses() {
				row = append(row, q.Jobs[s])
			}
			l.add(row...)
		}
		return p.print(c, l)
	})
}

func openStatuses() (open []outbox.Status) {
	for _, s := range outbox.Statuses() {
		if !s.Closed() {
			open = append(open, s)
		}
	}
	return open
}

func (p *program) queueCommand(name, usage string, act func(queueActs, context.Context, string) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "QUEUE", Flags: operatorFlags(),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 1, 1); err != nil {
				return err
			}
			queue := c.Args().First()
			if !namePattern.MatchString(queue) {
				return usagef("%q is not a queue's name", queue)
			}
			return operate(ctx, p, c, func(ctx context.Context, o queueActs) error {
				if err := act(o, ctx, queue); err != nil {
					return err
				}
				_, err := fmt.Fprintf(p.stdout, "%sd: %s\n", name, queue)
				return err
			})
		},
	}
}
