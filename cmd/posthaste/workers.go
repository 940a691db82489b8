package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

type workerList interface {
	Workers(context.Context) ([]operator.Worker, error)
}

var _ workerList = (*operator.Operator)(nil)

func (p *program) workersCommand() *cli.Command {
	return &cli.Command{
		Name:  "workers",
		Usage: "list the dispatchers (worker processes)",
		Description: `Each dispatcher reports itself every minute. One that was killed stays in
the list as missing for an hour; its jobs run again when their leases lapse.`,
		Commands: []*cli.Command{{
			Name:   "list",
			Usage:  "list dispatchers: version, queues, kinds, what they are running, whether they receive notifications",
			Flags:  append(operatorFlags(), outputFlag()),
			Action: p.listWorkers,
		}},
	}
}

func (p *program) listWorkers(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o workerList) error {
		workers, err := o.Workers(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{
			"worker", "state", "version", "running", "listening", "queues", "kinds",
			"started_at", "seen_at",
		}}
		for _, w := range workers {
			state := "present"
			if w.Missing {
				state = "missing"
			}
			var queues []string
			for _, name := range slices.Sorted(maps.Keys(w.Queues)) {
				queues = append(queues, fmt.Sprintf("%s:%d", name, w.Queues[name]))
			}
			l.add(w.Name, state, w.Version, w.Running, w.Listening, strings.Join(queues, " "), strings.Join(w.Kinds, " "),
				instant(w.StartedAt), instant(w.SeenAt))
		}
		return p.print(c, l)
	})
}
