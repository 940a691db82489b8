package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

const kindsDescription = `It knows the kinds that a dispatcher handles, present or missing for less than an hour, and
those of the jobs that have closed in the last minutes. Times are in seconds: how long
those jobs waited and ran. Through the API it takes a token of all tenants.`

func (p *program) kindsCommand() *cli.Command {
	return &cli.Command{
		Name: "kinds", Usage: "list the kinds of jobs", Description: kindsDescription,
		Commands: []*cli.Command{{
			Name:   "list",
			Usage:  "list kinds by name: how many dispatchers handle them, and how their latest jobs have ended",
			Flags:  append(operatorFlags(), outputFlag()),
			Action: p.listKinds,
		}},
	}
}

func (p *program) listKinds(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o topView) error {
		workers, err := o.Workers(ctx)
		if err != nil {
			return err
		}
		v, err := o.Overview(ctx)
		if err != nil {
			return err
		}
		return p.print(c, listKinds(workers, v.Recent))
	})
}

func listKinds(workers []operator.Worker, recent []operator.Recent) listing {
	present, queues, closed := map[string]int{}, map[string][]string{}, map[string]operator.Recent{}
	for _, w := range workers {
		for _, kind := range w.Kinds {
			present[kind] += map[bool]int{true: 0, false: 1}[w.Missing]
			for queue := range w.Queues {
				if !slices.Contains(queues[kind], queue) {
					queues[kind] = append(queues[kind], queue)
				}
			}
		}
	}
	for _, r := range recent {
		if r.Kind != "" { // "" is all of them together
			present[r.Kind] += 0
			closed[r.Kind] = r
		}
	}
	l := listing{header: []string{
		"kind", "dispatchers", "queues", "recently_closed", "recently_unsuccessful",
		"wait_p50", "wait_p99", "run_p50", "run_p99",
	}}
	for _, kind := range slices.Sorted(maps.Keys(present)) {
		slices.Sort(queues[kind])
		r, ended := closed[kind]
		l.add(kind, present[kind], strings.Join(queues[kind], " "), r.Jobs, r.Unsuccessful,
			orNull(ended, millis(r.WaitP50)), orNull(ended, millis(r.WaitP99)), orNull(ended, millis(r.RunP50)),
			orNull(ended, millis(r.RunP99)))
	}
	return l
}
