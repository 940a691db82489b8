package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type sinkReplays interface {
	WouldReplayEvents(ctx context.Context, sink string, r operator.EventReplay) (operator.ReplayPlan, error)
	ReplayEvents(ctx context.Context, sink string, r operator.EventReplay) (operator.Replay, error)
	Replays(ctx context.Context, sink string, tenant outbox.ID) ([]operator.Replay, error)
	Replay(ctx context.Context, sink string, tenant, id outbox.ID) (operator.Replay, error)
	StopReplay(ctx context.Context, sink string, tenant, id outbox.ID) error
}

var (
	_ sinkReplays = (*operator.Operator)(nil)
	_ sinkReplays = (*remote)(nil)
)

const replayEventsDescription = `The process that publishes to the sink also replays, alongside new events and without
delaying them, and continues after a crash: at least once. Messages have the header
posthaste-replay. They keep their original ids, by which brokers and consumers drop
repeats; with --again the ids are ID/REPLAY. --dry-run reports how many of them the
broker would drop because it remembers their ids. With --stop-live no new message comes
between them: the sink publishes the events stored up to the last of them, then the
replay, and only then newer events.

Without --until it replays what was stored before now. Messages that the sink refuses are
counted and skipped. Without --detach the command waits for the end and shows the
progress; Ctrl-C ends the command, not the replay: see "relay replays".`

func (p *program) replayCommand() *cli.Command {
	return &cli.Command{
		Name: "replay", Usage: "publish events of the past to a sink again", ArgsUsage: "SINK",
		Description: replayEventsDescription,
		Flags: append(replayFlags("events", "stored"), topicFlag(), dryRunFlag("show what it would publish"),
			&cli.BoolFlag{Name: "again", Usage: "under new ids, which are not dropped as repeats"},
			&cli.BoolFlag{Name: "stop-live", Usage: "publish no new events to the sink while the replay runs"},
			&cli.BoolFlag{Name: "detach", Usage: "do not wait for the end"},
		),
		Action: p.replayEvents,
	}
}

func (p *program) replayEvents(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	r, err := readReplay(c, "events")
	if err != nil {
		return &usageError{err}
	}
	r.Topics, r.StopLive = c.StringSlice("topic"), c.Bool("stop-live")
	sink := c.Args().First()
	return operate(ctx, p, c, func(ctx context.Context, o sinkReplays) error {
		plan, err := o.WouldReplayEvents(ctx, sink, r)
		if err != nil {
			return inFlagWords(err)
		}
		if c.Bool("dry-run") {
			_, err := fmt.Fprint(p.stdout, planText(plan))
			return err
		}
		if plan.Dropped > 0 {
			p.comment(droppedText(plan))
		}
		if err := p.sure(ctx, c, "publish again", int(plan.Events), "events"); err != nil {
			return err
		}
		r.Until = plan.Until
		started, err := o.ReplayEvents(ctx, sink, r)
		if err != nil {
			return inFlagWords(err)
		}
		if c.Bool("detach") {
			_, err := fmt.Fprintln(p.stdout, started.ID)
			return err
		}
		return p.awaitReplay(ctx, o, started)
	})
}

func planText(plan operator.ReplayPlan) string {
	if plan.Events == 0 {
		return "would publish 0 events\n"
	}
	text := fmt.Sprintf("would publish %d events, stored from %s to %s", plan.Events,
		plan.Oldest.Local().Format(time.RFC3339), plan.Newest.Local().Format(time.RFC3339))
	if plan.Takes > 0 {
		text += fmt.Sprintf(", in about %s", short(plan.Takes.Round(time.Second)))
	}
	if plan.Dropped > 0 {
		text += "\n" + droppedText(plan)
	}
	return text + "\n"
}

func droppedText(plan operator.ReplayPlan) string {
	return fmt.Sprintf("about %d of them are younger than %s, for which the broker remembers ids, and would be dropped: use --again", plan.Dropped, short(plan.Remembers))
}

// replayLook is the time between two looks at a replay in progress.
const replayLook = 500 * time.Millisecond

// awaitReplay shows the progress of a replay, and finally its result.
func (p *program) awaitReplay(ctx context.Context, o sinkReplays, r operator.Replay) error {
	bar := isTerminal(p.stderr)
	said := ""
	goesOn := fmt.Errorf(
		"replay %s goes on; posthaste relay replays %s shows it, and relay replays stop %[2]s %[1]s ends it", r.ID,
		r.Sink)
	for r.EndedAt.IsZero() {
		if bar {
			fmt.Fprintf(p.stderr, "\r%s",
				progressBar(operator.BulkProgress{Matched: r.Events, Done: r.Published, Passed: r.Refused}))
		}
		if r.Failure != "" && r.Failure != said {
			said = r.Failure
			p.comment("it waits: " + said)
		}
		select {
		case <-ctx.Done():
			return goesOn
		case <-time.After(replayLook):
		}
		now, err := o.Replay(ctx, r.Sink, r.Tenant, r.ID)
		if err == nil {
			r = now
		} else if ctx.Err() == nil {
			return fmt.Errorf("%w: %w", goesOn, err)
		}
	}
	if bar {
		fmt.Fprintln(p.stderr)
	}
	_, err := fmt.Fprintf(p.stdout,
		"%s: %d published, of which the broker dropped %d as repeats; %d refused and skipped\n", r.State(),
		r.Published, r.Repeated, r.Refused)
	if err == nil && r.Stopped {
		return cli.Exit("the replay was stopped", exitFailed)
	}
	return err
}

func (p *program) replaysCommand() *cli.Command {
	return &cli.Command{
		Name: "replays", Usage: "list the replays of a sink, newest first", ArgsUsage: "SINK",
		Flags: append(operatorFlags(), outputFlag(), onlyTenantFlag()),
		Commands: []*cli.Command{{
			Name: "stop", Usage: "end a running replay", ArgsUsage: "SINK REPLAY-ID",
			Flags:  append(operatorFlags(), reasonFlag()),
			Action: p.stopReplay,
		}},
		Action: p.listReplays,
	}
}

func (p *program) listReplays(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkReplays) error {
		replays, err := o.Replays(ctx, c.Args().First(), tenant)
		if err != nil {
			return err
		}
		l := listing{
			header: []string{
				"id", "state", "events", "published", "repeated", "refused", "started_at", "ended_at",
				"waits_for", "actor", "reason", "topics", "key", "tenant", "since", "until", "rate", "again",
				"stop_live",
			},
			onScreen: 9,
		}
		for _, r := range replays {
			l.add(r.ID, r.State(), r.Events, r.Published, r.Repeated, r.Refused, instant(r.StartedAt),
				instant(r.EndedAt), textOrNull(r.Failure), r.Actor, r.Reason,
				strings.Join(r.Topics, ","), textOrNull(r.Key), optional(r.Tenant), instant(r.Since), instant(r.Until),
				r.PerSecond, r.Again, r.StopLive)
		}
		return p.print(c, l)
	})
}

func (p *program) stopReplay(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	id, err := outbox.ParseID(c.Args().Get(1))
	if err != nil {
		return usagef("replay id: %w", err)
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkReplays) error {
		if err := o.StopReplay(ctx, c.Args().First(), outbox.ID{}, id); err != nil {
			return err
		}
		ended, err := o.Replay(ctx, c.Args().First(), outbox.ID{}, id)
		if err != nil {
			return err
		}
		word := "stopped"
		if !ended.Stopped {
			word = "had finished"
		}
		_, err = fmt.Fprintf(p.stdout, "%s: %s\n", word, id)
		return err
	})
}
