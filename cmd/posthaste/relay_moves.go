package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
)

type sinkMoves interface {
	WouldSeekSink(ctx context.Context, sink string, to operator.SinkTarget) (operator.SinkMove, error)
	MoveSink(ctx context.Context, sink string, move operator.SinkMove) (operator.SinkMove, error)
	Sink(ctx context.Context, name string) (operator.Sink, error)
	RemoveSink(ctx context.Context, sink string, giveUp bool) error
}

var _ sinkMoves = (*operator.Operator)(nil)

const seekDescription = `Forward: the events in between are never published to the sink, except those of
transactions that are still open. Back: they are published again with the same ids, so
that consumers receive older events of a key again before newer ones. See also "relay
replay", which publishes a selection again alongside new events.`

func (p *program) seekCommand() *cli.Command {
	return &cli.Command{
		Name: "seek", Usage: "move a sink's position in the log", ArgsUsage: "SINK", Description: seekDescription,
		Flags: append(operatorFlags(), reasonFlag(),
			&cli.Int64Flag{Name: "to", Usage: "continue after this `POSITION`; 0 is before the first event"},
			&cli.BoolFlag{Name: "to-end", Usage: "continue after the last event: skip all that are waiting"},
			sinceFlag("since", "continue with the first event that was stored"),
			dryRunFlag("show the effect"),
			yesFlag(),
		),
		Action: p.seekSink,
	}
}

func readTarget(c *cli.Command) (to operator.SinkTarget, err error) {
	n := 0
	for _, flag := range []string{"to", "to-end", "since"} {
		if c.IsSet(flag) {
			n++
		}
	}
	if n != 1 {
		return to, errors.New("no destination: want one of --to, --to-end and --since")
	}
	to.End = c.Bool("to-end")
	if c.IsSet("to") {
		to.Position = new(c.Int64("to"))
	}
	return to, readMoment(c, "since", &to.Since)
}

func (p *program) seekSink(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	to, err := readTarget(c)
	if err != nil {
		return &usageError{err}
	}
	sink := c.Args().First()
	return operate(ctx, p, c, func(ctx context.Context, o sinkMoves) error {
		move, err := o.WouldSeekSink(ctx, sink, to)
		if err != nil {
			return inFlagWords(err)
		}
		if c.Bool("dry-run") {
			_, err := fmt.Fprintf(p.stdout, "would go from %d to %d: %s\n", move.From, move.To, moveText(move))
			return err
		}
		verb := "publish again"
		if move.To > move.From {
			verb = "skip"
		}
		if err := p.sure(ctx, c, verb, int(move.Events), "events"); err != nil {
			return err
		}
		if move, err = o.MoveSink(ctx, sink, move); err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "%s goes on behind %d, from %d: %s\n", sink, move.To, move.From, moveText(move))
		return err
	})
}

func moveText(m operator.SinkMove) string {
	if m.To > m.From {
		return fmt.Sprintf("%d events are not published", m.Events)
	}
	return fmt.Sprintf("%d events are published again", m.Events)
}

func (p *program) removeCommand() *cli.Command {
	return &cli.Command{
		Name: "remove", Usage: "remove a sink that is no longer in use", ArgsUsage: "SINK",
		Description: `First delete it from every relay.yaml and stop the processes that publish to it. The
command asks if the sink has not published all events. It is refused while a process
publishes to the sink, for a minute after one was killed, and while messages that the
sink has refused are jobs ("relay held"); --force gives those up. A sink retains the days
of the log that it has not read.`,
		Flags: append(operatorFlags(), reasonFlag(),
			&cli.BoolFlag{Name: "force", Usage: "cancel and dismiss messages that are jobs: they are never published"},
			yesFlag(),
		),
		Action: p.removeSink,
	}
}

func (p *program) removeSink(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	sink, force := c.Args().First(), c.Bool("force")
	return operate(ctx, p, c, func(ctx context.Context, o sinkMoves) error {
		s, err := o.Sink(ctx, sink)
		if err != nil {
			return err
		}
		unpublished := unread(ctx, o, s)
		if force {
			unpublished += s.HeldMessages
		}
		if refused := s.Owner != "" || s.HeldMessages > 0 && !force; !refused {
			if err := p.sure(ctx, c, "give up", int(unpublished), "events that it has not published"); err != nil {
				return err
			}
		}
		if err := o.RemoveSink(ctx, sink, force); err != nil {
			return err
		}
		if unpublished > 0 {
			sink += fmt.Sprintf(" (events that it has not published: %d)", unpublished)
		}
		_, err = fmt.Fprintf(p.stdout, "removed: %s\n", sink)
		return err
	})
}

// unread returns how many events lie ahead of a sink: of positions, if there are too many to count.
func unread(ctx context.Context, o sinkMoves, s operator.Sink) int64 {
	if s.Lag == 0 {
		return 0
	}
	all, err := o.WouldSeekSink(ctx, s.Name, operator.SinkTarget{End: true})
	if err != nil {
		return s.Lag // also for an error of the connection, which the next statement returns
	}
	return all.Events
}
