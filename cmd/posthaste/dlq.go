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
					&cli.IntFlag{Name: "limit", Value: operator.DefaultLimit, Usage: "at most `N` of them"},
					&cli.StringFlag{Name: "before", Usage: "only older ones than the job with this `ID`: the next page begins with the last id of this one"}),
				Action: p.listLetters,
			},
			{
				Name: "groups", Usage: "count dead letters by error, the largest group first",
				Flags:  append(letterFlags(), outputFlag(), &cli.IntFlag{Name: "limit", Value: operator.DefaultLimit, Usage: fmt.Sprintf("at most `N` groups, %d at most", operator.MaxLimit)}),
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
					&cli.StringFlag{Name: "rate", Usage: "by filter, or --all: at most `N` jobs per second (default: no limit)"},
					&cli.StringFlag{Name: "payload", Usage: "replace the payload of the one job: `PAYLOAD`, @FILE, or - for standard input"},
					&cli.BoolFlag{Name: "forget", Usage: "with --payload: drop the checkpoint and the results of steps, so that every step runs again (default: they are kept)"}),
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
	DeadLetters(ctx context.Context, f operator.DeadLetterFilter, before outbox.ID, limit int) ([]operator.DeadLetter, error)
	DeadLetterGroups(ctx context.Context, f operator.DeadLetterFilter, limit int) ([]operator.DeadLetterGroup, error)
}

var _ letterList = (*operator.Operator)(nil)

const replayDescription = `Acts on the IDs, on the dead letters that match all of the filters, or on --all.

It may be interrupted at any time: the rest remain dead letters. To continue, repeat the
command with the --failed-until that it prints, so that jobs that fail again meanwhile are
not replayed a second time.`

// letterFlags returns the filters that all commands about dead letters have.
func letterFlags() []cli.Flag {
	return append(operatorFlags(),
		&cli.StringFlag{Name: "kind", Usage: "only of this `KIND`"},
		&cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"},
		&cli.StringFlag{Name: "status", Usage: "only `failed|dead`"},
		&cli.StringFlag{Name: "error-code", Usage: "only with this `CODE`"},
		&cli.StringFlag{Name: "fingerprint", Usage: "only of this group: a `FINGERPRINT` from \"dlq groups\""},
		&cli.StringFlag{Name: "key", Usage: "only with this `KEY`"},
		onlyTenantFlag(),
		&cli.StringFlag{Name: "created-since", Usage: "enqueued at or after this `TIME`, like 2027-01-31T09:00:00Z, or so long ago: 2h, 7d"},
		&cli.StringFlag{Name: "created-until", Usage: "enqueued before this `TIME`"},
		&cli.StringFlag{Name: "failed-since", Usage: "became a dead letter at or after this `TIME`"},
		&cli.StringFlag{Name: "failed-until", Usage: "became a dead letter before this `TIME`"},
	)
}

func letterFilter(c *cli.Command) (operator.DeadLetterFilter, error) {
	f := operator.DeadLetterFilter{
		Kind: c.String("kind"), Queue: c.String("queue"), Status: outbox.Status(c.String("status")), ErrorCode: c.String("error-code"),
		Fingerprint: c.String("fingerprint"), Key: c.String("key"),
	}
	var errs []error
	if f.Status != "" && f.Status != outbox.Failed && f.Status != outbox.Dead {
		errs = append(errs, fmt.Errorf("--status is %q: want failed or dead", f.Status))
	}
	errs = append(errs, readTenant(c, &f.Tenant))
	for flag, to := range map[string]*time.Time{
		"created-since": &f.CreatedSince, "created-until": &f.CreatedUntil, "failed-since": &f.FailedSince, "failed-until": &f.FailedUntil,
	} {
		errs = append(errs, readMoment(c, flag, to))
	}
	return f, errors.Join(errs...)
}

func onlyTenantFlag() cli.Flag {
	return &cli.StringFlag{Name: "tenant", Usage: "only of the tenant with this `ID`; through the API for tokens of all tenants"}
}

// readTenant refuses the id that means any tenant where one must be named.
func readTenant(c *cli.Command, to *outbox.ID) error {
	err := readID(c, "tenant", to)
	if err == nil && c.String("tenant") != "" && to.IsZero() {
		err = fmt.Errorf("--tenant: %s is no tenant's id", to)
	}
	return err
}

// readWhose reads --tenant where its absence means the root tenant, or through the API the token's own. --tenant
// "$TENANT" with TENANT unset means neither.
func readWhose(c *cli.Command, to *outbox.ID) error {
	if c.IsSet("tenant") && c.String("tenant") == "" {
		return errors.New("--tenant is empty: leave it out to mean the root tenant")
	}
	return readTenant(c, to)
}

func readID(c *cli.Command, flag string, to *outbox.ID) (err error) {
	if v := c.String(flag); v != "" {
		if *to, err = outbox.ParseID(v); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
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
	"error_message", "created_at", "started_at", "max_attempts", "lost_leases", "priority", "key", "epoch", "tenant", "content_type", "payload_bytes",
	"deadline", "parent",
}

func (p *program) listLetters(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	filter, err := letterFilter(c)
	var before outbox.ID
	limit := c.Int("limit")
	err = errors.Join(err, readID(c, "before", &before))
	if limit < 1 {
		err = errors.Join(err, fmt.Errorf("--limit is %d: want at least 1", limit))
	}
	if err != nil {
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
					j.ErrorMessage, instant(j.CreatedAt), instant(j.StartedAt), j.MaxAttempts, j.LostLeases, j.Priority, j.Key, j.Epoch, j.Tenant, textOrNull(j.ContentType), j.PayloadBytes,
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
	if n := c.Int("limit"); n < 1 || n > operator.MaxLimit {
		err = errors.Join(err, fmt.Errorf("--limit is %d: want 1 to %d", n, operator.MaxLimit))
	}
	if err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o letterList) error {
		groups, err := o.DeadLetterGroups(ctx, filter, c.Int("limit"))
		if err != nil {
			return err
		}
		l := listing{header: []string{"fingerprint", "jobs", "kind", "error_code", "oldest", "newest", "message", "example"}, onScreen: 7}
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
