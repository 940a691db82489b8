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

func (p *program) dlqCommand() *cli.Command {
	return &cli.Command{
		Name:  "dlq",
		Usage: "list, group, replay and dismiss dead letters",
		Commands: []*cli.Command{
			{
				Name: "list", Usage: "list dead letters, newest first",
				Flags: append(letterFlags(), outputFlag(),
					limitFlag("dead letters"), beforeFlag("job")),
				Action: p.listLetters,
			},
			{
				Name: "groups", Usage: "count dead letters by error, the largest group first",
				Flags: append(letterFlags(), outputFlag(),
					limitFlag(fmt.Sprintf("groups, %d at most", operator.MaxLimit))),
				Action: p.listGroups,
			},
			{
				Name: "show", Usage: "print a dead letter with its payload and its failed attempts", ArgsUsage: "ID",
				Flags: append(operatorFlags(), outputFlag()), Action: p.showJob,
			},
			{
				Name: "replay", Usage: "run dead letters again with all their attempts", ArgsUsage: "[ID…]",
				Description: replayDescription,
				Flags: append(append(actOnLettersFlags(), flags("api-schemas")...),
					rateFlag("jobs"),
					&cli.StringFlag{
						Name:  "payload",
						Usage: "replace the payload of the one job: `PAYLOAD`, @FILE, or - for standard input",
					},
					&cli.BoolFlag{
						Name:  "forget",
						Usage: "with --payload: drop the checkpoint and the results of steps, so that every step runs again (default: they are kept)",
					}),
				Action: p.replayLetters,
			},
			{
				Name: "dismiss", Usage: "dismiss dead letters: they move to the history", ArgsUsage: "[ID…]",
				Flags: actOnLettersFlags(), Action: p.dismissLetters,
			},
		},
	}
}

type letterList interface {
	DeadLetters(ctx context.Context, f operator.DeadLetterFilter, before outbox.ID, limit int) ([]operator.DeadLetter,
		error)
	DeadLetterGroups(ctx context.Context, f operator.DeadLetterFilter, limit int) ([]operator.DeadLetterGroup, error)
}

var _ letterList = (*operator.Operator)(nil)

const replayDescription = `Acts on the IDs, on the dead letters that match all of the filters, or on --all.

It may be interrupted at any time: the rest remain dead letters. To continue, repeat the
command with the --failed-until that it prints, so that jobs that fail again meanwhile are
not replayed a second time.`

// letterFlags returns the filters that all commands about dead letters have.
func letterFlags() []cli.Flag {
	return append(append(operatorFlags(), onlyFlags()...),
		&cli.StringFlag{Name: "status", Usage: "only `failed|dead`"}, errorCodeFlag(), fingerprintFlag(),
		sinceFlag("created-since", "enqueued"), untilFlag("created-until", "enqueued"),
		sinceFlag("failed-since", "became a dead letter"), untilFlag("failed-until", "became a dead letter"),
	)
}

func letterFilter(c *cli.Command) (operator.DeadLetterFilter, error) {
	f := operator.DeadLetterFilter{
		Kind: c.String("kind"), Queue: c.String("queue"), Status: outbox.Status(c.String("status")),
		ErrorCode:   c.String("error-code"),
		Fingerprint: c.String("fingerprint"), Key: c.String("key"),
	}
	var errs []error
	if f.Status != "" && f.Status != outbox.Failed && f.Status != outbox.Dead {
		errs = append(errs, fmt.Errorf("--status is %q: want failed or dead", f.Status))
	}
	errs = append(errs, readTenant(c, &f.Tenant))
	for flag, to := range map[string]*time.Time{
		"created-since": &f.CreatedSince, "created-until": &f.CreatedUntil, "failed-since": &f.FailedSince,
		"failed-until": &f.FailedUntil,
	} {
		errs = append(errs, readMoment(c, flag, to))
	}
	return f, errors.Join(errs...)
}

func readTenant(c *cli.Command, to *outbox.ID) error { return readIDOf(c, "tenant", "tenant's id", to) }

func readID(c *cli.Command, flag string, to *outbox.ID) error { return readIDOf(c, flag, "id", to) }

// readIDOf reads an id. It refuses the zero id, which means any, or none, to those who get it: a flag names one.
func readIDOf(c *cli.Command, flag, what string, to *outbox.ID) (err error) {
	v := c.String(flag)
	if v == "" {
		return nil
	}
	if *to, err = outbox.ParseID(v); err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	if to.IsZero() {
		return fmt.Errorf("--%s: %s is no %s", flag, to, what)
	}
	return nil
}

// readMoment parses a time, or how long ago it was by this machine's clock.
func readMoment(c *cli.Command, flag string, to *time.Time) (err error) {
	v := c.String(flag)
	if v == "" {
		return nil
	}
	if *to, err = parseInstant(v); err == nil {
		return nil
	}
	ago, err := parseDuration(v, 0, 100*365*24*time.Hour)
	if err != nil {
		return fmt.Errorf("--%s is %q: want a time like 2027-01-31T09:00:00Z, a date (its midnight in UTC), or how long ago: 90m, 7d", flag, v)
	}
	*to = time.Now().Add(-ago)
	return nil
}

var letterColumns = []string{
	"id", "status", "kind", "queue", "attempt", "failed_at", "error_code", "fingerprint",
	"error_message", "created_at", "started_at", "max_attempts", "lost_leases", "priority", "key", "epoch", "tenant",
	"content_type", "payload_bytes",
	"deadline", "parent",
}

func (p *program) listLetters(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	filter, err := letterFilter(c)
	var before outbox.ID
	limit, bad := readLimit(c, 0)
	if err = errors.Join(err, bad, readID(c, "before", &before)); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o letterList) error {
		l := listing{header: letterColumns, onScreen: 8}
		for len(l.rows) < limit {
			want := min(limit-len(l.rows), operator.MaxLimit)
			page, err := o.DeadLetters(ctx, filter, before, want)
			if err != nil {
				return err
			}
			for _, j := range page {
				l.add(j.ID, j.Status, j.Kind, j.Queue, j.Attempt, instant(j.FailedAt), j.ErrorCode, j.Fingerprint,
					j.ErrorMessage, instant(j.CreatedAt), instant(j.StartedAt), j.MaxAttempts, j.LostLeases, j.Priority,
					j.Key, j.Epoch, j.Tenant, textOrNull(j.ContentType), j.PayloadBytes,
					instant(j.Deadline), parentOf(j.Job))
				before = j.ID
			}
			if len(page) < want {
				break
			}
		}
		return p.print(c, l)
	})
}

func (p *program) listGroups(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	filter, err := letterFilter(c)
	limit, bad := readLimit(c, operator.MaxLimit)
	if err = errors.Join(err, bad); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o letterList) error {
		groups, err := o.DeadLetterGroups(ctx, filter, limit)
		if err != nil {
			return err
		}
		l := listing{header: []string{
			"fingerprint", "jobs", "kind", "error_code", "oldest", "newest", "message",
			"example",
		}, onScreen: 7}
		for _, g := range groups {
			message := g.Message
			if c.String("output") == "table" {
				message = shortened(message, 60)
			}
			l.add(g.Fingerprint, g.Jobs, g.Kind, g.ErrorCode, instant(g.Oldest), instant(g.Newest), message, g.Example)
		}
		return p.print(c, l)
	})
}

// shortened returns the beginning of a text.
func shortened(s string, runes int) string {
	n := 0
	for i := range s {
		if n++; n > runes {
			return s[:i] + "…"
		}
	}
	return s
}
