package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func (p *program) publishCommand() *cli.Command {
	return &cli.Command{
		Name:        "publish",
		Usage:       "store an event for the relay and print its id",
		ArgsUsage:   "TOPIC [PAYLOAD|@FILE|-]",
		Description: payloadDescription,
		Flags: append(flags("database-url", "notify"),
			&cli.StringFlag{Name: "key", Usage: "`KEY` of the event: events of a key are published in order"},
			&cli.BoolFlag{
				Name:  "serial",
				Usage: "wait for other transactions that publish events of the key with --serial",
			},
			&cli.StringFlag{Name: "id", Usage: "`ID` by which consumers drop repeats (default: a new one)"},
			&cli.StringSliceFlag{Name: "header", Usage: "`NAME=VALUE`, may be repeated"},
			tenantFlag(),
			&cli.StringFlag{Name: "content-type", Usage: "`TYPE` of the payload (default: application/json)"},
		),
		DisableSliceFlagSeparator: true, // a header's value may contain commas
		Action:                    p.publish,
	}
}

func (p *program) publish(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 2); err != nil {
		return err
	}
	s, err := p.load(c, "database-url", "notify")
	if err != nil {
		return err
	}
	options := outbox.EventOptions{Key: c.String("key"), Serial: c.Bool("serial")}
	err = errors.Join(readID(c, "id", &options.ID), readTenant(c, &options.Tenant), readHeaders(c, &options.Headers))
	if err != nil {
		return &usageError{err}
	}
	if c.NArg() == 2 && c.Args().Get(1) == "" {
		return usagef("PAYLOAD is empty: leave it out for {}")
	}
	payload, err := p.payload(c.Args().Get(1))
	if err != nil {
		return err
	}
	event := outbox.Raw{KindName: c.Args().First(), Payload: payload, ContentType: c.String("content-type")}
	return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		producer := outbox.NewProducer(pool, s.notify)
		var id outbox.ID
		err := producer.InTx(ctx, func(tx pgx.Tx) (err error) {
			id, err = outbox.Publish(ctx, tx, event, options)
			return err
		})
		_ = producer.Flush(ctx) // if it fails, polling makes up for it
		if _, ok := errors.AsType[*outbox.InvalidError](err); ok {
			return usagef("%s", eventWords.Replace(err.Error()))
		} else if err != nil {
			return err
		}
		// A producer's login may not be allowed to read the sinks.
		if sinks, err := operator.New(pool).Sinks(ctx); err == nil && len(sinks) == 0 {
			p.note("there is no sink: nobody reads the event until a relay publishes it (posthaste docs operate/relay)")
		}
		_, err = fmt.Fprintln(p.stdout, id)
		return err
	})
}

// eventWords maps fields in the errors of package outbox to our flags.
var eventWords = strings.NewReplacer(
	"Event.Topic()", "TOPIC", "Raw.Payload", "PAYLOAD", "Raw.ContentType", "--content-type", "Event is", "PAYLOAD is",
	"EventOptions.Key", "--key", "EventOptions.Headers", "--header", "EventOptions.Serial", "--serial",
)

// readHeaders parses the values of --header.
func readHeaders(c *cli.Command, to *map[string]string) error {
	var errs []error
	for _, header := range c.StringSlice("header") {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			errs = append(errs, fmt.Errorf("--header is %q: want NAME=VALUE", header))
			continue
		}
		if *to == nil {
			*to = map[string]string{}
		}
		if _, twice := (*to)[name]; twice {
			errs = append(errs, fmt.Errorf("--header has %q twice", name))
		}
		(*to)[name] = value
	}
	return errors.Join(errs...)
}
