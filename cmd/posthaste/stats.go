package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const statsDescription = `The cost hardly depends on the number of jobs. With more than some ten thousand open
jobs, waiting ones are counted on a sample; running ones and dead letters are counted in
full up to 10 000. "posthaste top" shows rates.`

type overviewer interface {
	Overview(context.Context) (operator.Overview, error)
}

var _ overviewer = (*operator.Operator)(nil)

func (p *program) statsCommand() *cli.Command {
	return &cli.Command{
		Name: "stats", Usage: "count jobs by status and show latencies", Description: statsDescription,
		Flags: append(operatorFlags(), outputFlag()), Action: p.stats,
	}
}

func (p *program) stats(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o overviewer) error {
		v, err := o.Overview(ctx)
		if err != nil {
			return err
		}
		return p.print(c, sumUp(v))
	})
}

// sumUp returns an Overview under names that scripts can rely on.
func sumUp(v operator.Overview) listing {
	l := listing{header: []string{"name", "value"}}
	l.add("open", v.Jobs(openStatuses()...))
	for _, s := range openStatuses() {
		l.add(string(s), v.Jobs(s))
	}
	l.add("dead_letters", v.Jobs(outbox.Failed, outbox.Dead))
	paused := 0
	for _, q := range v.Queues {
		if !q.PausedSince.IsZero() {
			paused++
		}
	}
	l.add("paused_queues", paused)
	if !v.NoOldest {
		age := time.Duration(0)
		if oldest := v.OldestDue(); !oldest.IsZero() {
			age = v.AsOf.Sub(oldest)
		}
		l.add("oldest_due_age_seconds", millis(age))
	}
	for _, r := range v.Recent[:min(1, len(v.Recent))] {
		l.add("recently_closed", r.Jobs)
		l.add("recently_unsuccessful", r.Unsuccessful)
		l.add("recent_wait_p99_seconds", millis(r.WaitP99))
		l.add("recent_run_p99_seconds", millis(r.RunP99))
	}
	l.add("estimated", v.Estimated)
	l.add("as_of", instant(v.AsOf))
	return l
}

// millis returns d in seconds, to the millisecond: a number in JSON, too.
func millis(d time.Duration) json.Number { return json.Number(fmt.Sprintf("%.3f", d.Seconds())) }
