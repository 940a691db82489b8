package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

const tailEventsDescription = `Prints a line for every event of the log when sinks can read it, as soon as its
transaction has committed, until Ctrl-C. It starts at the end of the log; with --since at
a time in the past, and with SINK at the events that wait for that sink. It reads the log
itself: nothing is published, and no cursor moves. After an outage it continues where it
was.

Payloads may be confidential, so they are printed only with --payloads. -o json prints an
object per line, in which a payload that is not JSON is a string, base64 if it is not text.`

func (p *program) tailEventsCommand() *cli.Command {
	return &cli.Command{
		Name: "tail", Usage: "print events as they are published", Description: tailEventsDescription,
		ArgsUsage: "[SINK]",
		Flags: append(flags("database-url", "listen-url"), jsonOrText(),
			topicFlag(), onlyKeyFlag(), onlyTenantFlag(), sinceFlag("since", "stored"),
			&cli.BoolFlag{Name: "payloads", Usage: "print payloads as well"}),
		Action: p.tailEvents,
	}
}

// eventFilter selects the events to print; a zero field matches any.
type eventFilter struct {
	topics []string
	key    string
	tenant outbox.ID
}

func readEventFilter(c *cli.Command) (f eventFilter, err error) {
	f = eventFilter{topics: c.StringSlice("topic"), key: c.String("key")}
	for _, pattern := range f.topics {
		if bad := (relay.Route{Topics: []string{pattern}}).Validate(); bad != nil {
			err = errors.Join(err, fmt.Errorf("--topic is %q: want a topic, one that ends in .* or *", pattern))
		}
	}
	return f, errors.Join(err, readTenant(c, &f.tenant))
}

func (f eventFilter) has(e *relay.Event) bool {
	return (f.tenant.IsZero() || f.tenant == e.Tenant) && (f.key == "" || f.key == e.Key) &&
		(len(f.topics) == 0 || slices.ContainsFunc(f.topics, func(pattern string) bool {
			prefix, open := strings.CutSuffix(pattern, "*")
			return pattern == e.Topic || open && strings.HasPrefix(e.Topic, prefix)
		}))
}

func (p *program) tailEvents(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 1); err != nil {
		return err
	}
	filter, err := readEventFilter(c)
	config := relay.TailConfig{Sink: c.Args().First()}
	err = errors.Join(err, readMoment(c, "since", &config.Since))
	if config.Sink != "" && c.IsSet("since") {
		err = errors.Join(err, errors.New("SINK and --since: want one of them"))
	}
	if err != nil {
		return &usageError{err}
	}
	s, err := p.load(c, "database-url", "listen-url")
	if err != nil {
		return err
	}
	return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		wake := listener.NewSignal()
		l, err := listener.New(cmp.Or(s.app.ListenURL, s.app.DatabaseURL), relay.Channel, wake, listener.Config{
			AppName: "posthaste-tail", Pool: pool, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		var listening sync.WaitGroup
		defer listening.Wait()
		defer stop()
		listening.Go(func() { _ = l.Run(ctx) }) // without it the tail polls
		config.Wake, config.Failed = wake, func(err error) { p.comment(err.Error() + "; trying again") }
		for e, err := range relay.Tail(ctx, pool, config) {
			if err != nil {
				return err
			}
			if filter.has(&e) {
				if err := p.printEvent(c, &e); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (p *program) printEvent(c *cli.Command, e *relay.Event) error {
	if c.String("output") == "json" {
		l := listing{header: []string{"at", "position", "topic", "key", "tenant", "id", "content_type", "headers"}}
		row := []any{instant(e.At), e.Position, e.Topic, textOrNull(e.Key), e.Tenant, e.ID, e.ContentType, e.Headers}
		if c.Bool("payloads") {
			l.header, row = append(l.header, "payload"), append(row, payloadValue(e))
		}
		object, err := l.object(row)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "%s\n", object)
		return err
	}
	line := fmt.Sprintf("%s  %d  %s  %s  %s  %s", e.At.Local().Format(time.RFC3339Nano), e.Position, e.Topic,
		cmp.Or(e.Key, "-"), e.Tenant, e.ID)
	if c.Bool("payloads") {
		line += "  " + string(e.Payload)
	}
	_, err := fmt.Fprintln(p.stdout, oneLine(line))
	return err
}

// payloadValue returns a payload as a JSON value: unchanged, as a string, or in base64.
func payloadValue(e *relay.Event) any {
	switch {
	case json.Valid(e.Payload):
		return json.RawMessage(e.Payload)
	case utf8.Valid(e.Payload):
		return string(e.Payload)
	}
	return e.Payload
}
