package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// withRelay returns the process with the relay as one more component, if it is configured.
func withRelay(s settings) (app.Config, error) {
	if s.relayConfig == nil || s.noRelay {
		return s.app, nil
	}
	if s.app.Registry == nil {
		s.app.Registry = prometheus.NewRegistry()
	}
	var err error
	if s.app, err = withBridges(s); err != nil || len(s.relayConfig.Sinks) == 0 {
		return s.app, err
	}
	pool, err := app.OpenPool(s.app, 2, 0)
	if err != nil {
		return s.app, err
	}
	sinks, err := s.relayConfig.sinks()
	if err != nil {
		return s.app, err
	}
	config := relay.Config{
		Sinks: sinks, Source: string(s.relayConfig.Source), Logger: s.app.Logger,
		Registerer: s.app.Registry,
	}
	heard := func(context.Context) error { return nil }
	if !s.noListen {
		wake := listener.NewSignal()
		l, err := listener.New(cmp.Or(s.app.ListenURL, s.app.DatabaseURL), relay.Channel, wake, listener.Config{
			AppName: "posthaste-relay", Pool: pool, Canary: pool,
			Logger: s.app.Logger.With(slog.String("component", "relay listener")),
		})
		if err != nil {
			return s.app, err
		}
		config.Wake, config.Listening, heard = wake, l.Listening, l.Run
	}
	r, err := relay.New(pool, config)
	if err != nil {
		return s.app, err
	}
	s.app.Components = append(s.app.Components, app.Component{
		Name: "relay", Ready: r.Ready, Pool: pool,
		NeedsSchema: true, Run: func(ctx context.Context) error {
			var listening sync.WaitGroup
			defer listening.Wait()
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			listening.Go(func() { _ = heard(ctx) }) // without it the relay polls
			return r.Run(ctx)
		},
	})
	return s.app, nil
}

type sinkActs interface {
	Sinks(context.Context) ([]operator.Sink, error)
	Bridges(context.Context) ([]operator.Bridge, error)
	PauseSink(ctx context.Context, sink string) error
	ResumeSink(ctx context.Context, sink string) error
	SkipEvent(ctx context.Context, sink string, event outbox.ID) error
	Held(ctx context.Context, sink string, after operator.HeldPlace, limit int) ([]operator.HeldMessage, error)
}

var (
	_ sinkActs = (*operator.Operator)(nil)
	_ sinkActs = (*remote)(nil)
)

const relayDescription = `The relay publishes events to brokers, and bridges turn brokers' messages into jobs. It
runs in "posthaste serve" and "posthaste dev" with a --relay-config, such as

  source: shop
  sinks:
    orders:
      nats: { url: "nats://127.0.0.1:4222" }
  routes:
    - { topics: ["order.*"], to: orders, destination: "shop.{topic}.{key|token}" }

Create the streams, topics and queues yourself; "relay check" lists those that are
missing. docs/guides/publish-events.md is a tutorial, docs/operate/relay.md the reference.`

const skipDescription = `A message that the broker has refused is usually a job by then, and waits no longer: see
"relay held", and remove it with "dlq dismiss".`

func (p *program) relayCommand() *cli.Command {
	return &cli.Command{
		Name:        "relay",
		Description: relayDescription,
		Usage:       "list, check, pause, resume and move the sinks that events are published to, and follow the log of events",
		Commands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "list the sinks: the publishing process, the position, and what holds it up",
				Flags:  append(operatorFlags(), outputFlag()),
				Action: p.listSinks,
			},
			{
				Name:   "bridges",
				Usage:  "list the bridges, which turn brokers' messages into jobs: whether a process fetches, how many it has stored, how many remain, and what holds it up",
				Flags:  append(operatorFlags(), outputFlag()),
				Action: p.listBridges,
			},
			p.sinkCommand("pause", "publish nothing to a sink, in all processes, until it is resumed",
				sinkActs.PauseSink),
			p.sinkCommand("resume", "resume a sink", sinkActs.ResumeSink),
			{
				Name: "skip", Usage: "never publish an event that is waiting for a sink, such as one at which it is stuck", ArgsUsage: "SINK EVENT-ID",
				Description: skipDescription,
				Flags:       append(operatorFlags(), reasonFlag()),
				Action:      p.skipEvent,
			},
			{
				Name: "held", Usage: "list messages that a sink has refused, and those behind them of the same key, in the order of the log", ArgsUsage: "SINK",
				Description: heldDescription,
				Flags: append(operatorFlags(), outputFlag(), limitFlag("messages"),
					&cli.Int64Flag{
						Name:  "after-position",
						Usage: "only those behind this `POSITION`: the next page begins with the last one of this page",
					}),
				Action: p.listHeld,
			},
			p.tailEventsCommand(),
			p.seekCommand(),
			p.removeCommand(),
			p.replayCommand(),
			p.replaysCommand(),
			{
				Name:   "check",
				Usage:  "check that each broker of the relay-config accepts publishing and fetching, and which of its settings may lose messages",
				Flags:  append(flags("relay-config"), outputFlag()),
				Action: p.checkSinks,
			},
		},
	}
}

func (p *program) listSinks(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkActs) error {
		sinks, err := o.Sinks(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{
			"sink", "state", "published", "lag", "oldest", "moved", "holes", "held", "owner",
			"code", "reason",
		}}
		for _, s := range sinks {
			l.add(s.Name, s.State(), s.Published, s.Lag, instant(s.Oldest), instant(s.MovedAt), s.Holes, s.HeldMessages,
				s.Owner, s.AwayCode, s.AwayReason)
		}
		return p.print(c, l)
	})
}

func (p *program) listBridges(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkActs) error {
		bridges, err := o.Bridges(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{"bridge", "state", "stored", "lag", "moved", "away_since", "reason"}}
		for _, b := range bridges {
			var lag any
			if b.Lag != nil {
				lag = *b.Lag
			}
			l.add(b.Name, b.State(), b.Stored, lag, instant(b.MovedAt), instant(b.AwaySince), textOrNull(b.AwayReason))
		}
		return p.print(c, l)
	})
}

const heldDescription = `They are jobs of the kind and queue relay:SINK. "dlq replay ID" publishes a permanently
failed one again, with --payload under another payload; "dlq dismiss ID" gives it up.
Either way the messages of its key behind it follow.`

func (p *program) listHeld(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	sink := c.Args().First()
	limit, err := readLimit(c, 0)
	after := c.Int64("after-position")
	if after < 0 {
		err = errors.Join(err, fmt.Errorf("--after-position is %d: want a position", after))
	}
	if err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkActs) error {
		messages, err := collectHeld(ctx, o, sink, after, limit)
		if err != nil {
			return err
		}
		l := listing{header: []string{
			"position", "topic", "key", "status", "attempt", "error_code", "job", "event",
			"tenant", "at", "error_message",
		}, onScreen: 8}
		for _, m := range messages {
			l.add(m.Position, m.Topic, textOrNull(m.Key), string(m.Status), m.Attempt, textOrNull(m.ErrorCode),
				m.Job.ID, optional(m.Event), m.Tenant, instant(m.At), textOrNull(m.ErrorMessage))
		}
		return p.print(c, l)
	})
}

// collectHeld reads page after page until there are enough.
func collectHeld(ctx context.Context, o sinkActs, sink string, after int64,
	limit int,
) (messages []operator.HeldMessage, err error) {
	place := operator.HeldPlace{Position: after}
	if after > 0 {
		place.Job = outbox.ID(bytes.Repeat([]byte{0xff}, 16)) // behind every job at the position
	}
	for len(messages) < limit {
		want := min(limit-len(messages), operator.MaxLimit)
		page, err := o.Held(ctx, sink, place, want)
		if err != nil {
			return nil, err
		}
		messages = append(messages, page...)
		if len(page) < want {
			break
		}
		place = page[len(page)-1].Place()
	}
	return messages, nil
}

func (p *program) sinkCommand(name, usage string, act func(sinkActs, context.Context, string) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "SINK", Flags: append(operatorFlags(), reasonFlag()),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 1, 1); err != nil {
				return err
			}
			sink := c.Args().First()
			return operate(ctx, p, c, func(ctx context.Context, o sinkActs) error {
				if err := act(o, ctx, sink); err != nil {
					return err
				}
				_, err := fmt.Fprintf(p.stdout, "%sd: %s\n", name, sink)
				return err
			})
		},
	}
}

func (p *program) skipEvent(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 2, 2); err != nil {
		return err
	}
	sink := c.Args().First()
	event, err := outbox.ParseID(c.Args().Get(1))
	if err != nil {
		return usagef("event id: %w", err)
	}
	return operate(ctx, p, c, func(ctx context.Context, o sinkActs) error {
		if err := o.SkipEvent(ctx, sink, event); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.stdout, "skipped: %s for %s\n", event, sink)
		return err
	})
}

// probeTimeout is how long check waits for a broker.
const probeTimeout = 10 * time.Second

func (p *program) checkSinks(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	s, err := p.load(c, "relay-config")
	if err != nil {
		return err
	}
	if s.relayConfig == nil {
		return usagef("%s: want --relay-config FILE", c.FullName())
	}
	checked, err := s.relayConfig.check(ctx)
	if err != nil {
		return err
	}
	problems := 0
	l := listing{header: []string{"sink", "severity", "finding", "what_to_do"}}
	for _, f := range checked {
		if f.Severity == relay.SeverityProblem {
			problems++
		}
		l.add(f.of, string(f.Severity), f.What, f.Remedy)
	}
	if err := p.print(c, l); err != nil {
		return err
	}
	if problems > 0 {
		return cli.Exit(fmt.Sprintf("problems: %d", problems), exitFailed)
	}
	return nil
}

// brokerFinding is a finding about a sink, or about a bridge.
type brokerFinding struct {
	of string
	relay.Finding
}

// check connects to the broker of each sink and bridge, and returns at least one finding about each.
func (c *relayConfig) check(ctx context.Context) (all []brokerFinding, err error) {
	sinks, err := c.sinks()
	if err != nil {
		return nil, &usageError{err}
	}
	bridges, err := c.bridges()
	if err != nil {
		return nil, &usageError{err}
	}
	add := func(name string, findings []relay.Finding) {
		for _, f := range findings {
			all = append(all, brokerFinding{name, f})
		}
	}
	all = slices.Concat(c.sharedStreams(), c.sharedNames(), c.sharedKeys())
	for _, sink := range sinks {
		add(sink.Name, checkSink(ctx, sink, plain(c.Topics)))
	}
	for _, b := range bridges {
		add("bridge "+b.Name, checkBridge(ctx, b))
	}
	return all, nil
}

// checkSink returns the findings about a sink, or one that there are none.
func checkSink(ctx context.Context, s relay.SinkConfig, topics []string) []relay.Finding {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := s.Sink.Probe(ctx)
	var findings []relay.Finding
	if err == nil {
		findings, err = s.Sink.Check(ctx, relay.DestinationsOf(s.Routes, topics))
	}
	findings = append(findings, relay.CheckRoutes(s.Routes)...)
	err = errors.Join(err, s.Sink.Close())
	if err != nil {
		findings = append(findings, relay.Finding{
			Severity: relay.SeverityProblem, What: err.Error(),
			Remedy: "check address, credentials and network",
		})
	}
	if len(findings) == 0 {
		findings = []relay.Finding{{Severity: relay.SeverityNote, What: "it can be published to"}}
	}
	return findings
}
