package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const payloadDescription = `PAYLOAD is JSON, or what --content-type declares. Without PAYLOAD it is {}; @FILE reads it
from a file, and - from standard input. Write -- before a payload
that begins with a dash.`

func (p *program) enqueueCommand() *cli.Command {
	return &cli.Command{
		Name:      "enqueue",
		Usage:     "store a job and print its id",
		ArgsUsage: "KIND [PAYLOAD|@FILE|-]",
		Description: payloadDescription + `

Through the API (--api) the job belongs to the token's tenant, and its payload is JSON.`,
		Flags: append(append(operatorFlags(), flags("notify")...),
			queueFlag(),
			&cli.IntFlag{Name: "priority", Usage: "`N`: higher is more urgent"},
			&cli.StringFlag{Name: "delay", Usage: "due after this `DURATION`"},
			&cli.StringFlag{Name: "run-at", Usage: "due at this `TIME`, like 2027-01-31T09:00:00Z"},
			&cli.StringFlag{
				Name:  "deadline",
				Usage: "expires unless it is done by this `TIME`, like 2027-01-31T09:00:00Z",
			},
			&cli.BoolFlag{Name: "hold", Usage: "do not run it before it is released (posthaste jobs release)"},
			&cli.BoolFlag{Name: "streamed", Usage: "store each change of it as an event, for relays to publish"},
			&cli.IntFlag{Name: "max-attempts", Usage: "give up after `N` attempts (default: 25)"},
			&cli.StringFlag{Name: "timeout", Usage: "`DURATION` of one attempt (default: the worker's)"},
			&cli.StringFlag{
				Name:  "backoff",
				Usage: "`DURATIONS` to wait between attempts, like 5s,1m,10m; the last from then on (default: the worker's)",
			},
			&cli.StringFlag{Name: "key", Usage: "`KEY` whose jobs are ordered or limited"},
			&cli.IntFlag{Name: "max-active", Usage: "`N` jobs of the key may run at once (default: 1)"},
			&cli.BoolFlag{Name: "ordered", Usage: "run after the ordered jobs of the key stored before it"},
			&cli.Int64Flag{Name: "sequence", Usage: "position `N` in that order, from 1 (default: by commit)"},
			&cli.StringFlag{
				Name:  "on-death",
				Usage: "if it fails permanently, `skip|park`: skip it, or park the key (default: the jobs behind it wait)",
			},
			&cli.StringFlag{Name: "park-after", Usage: "with --on-death park: after this `DURATION`"},
			&cli.StringFlag{
				Name:  "on-lapse",
				Usage: "if its worker dies, `fail-stale|block` (default: it is retried)",
			},
			&cli.IntFlag{Name: "max-queued", Usage: "store it only if fewer than `N` jobs of the key are waiting"},
			&cli.StringFlag{
				Name:  "when-full",
				Usage: "what to do otherwise, `coalesce|replace-oldest` (default: reject it)",
			},
			&cli.StringFlag{
				Name:  "idempotency-key",
				Usage: "a repeat with the same `KEY` stores nothing and prints the first job's id",
			},
			&cli.StringSliceFlag{Name: "header", Usage: "`NAME=VALUE`, may be repeated"},
			tenantFlag(),
			&cli.StringFlag{Name: "content-type", Usage: "`TYPE` of the payload (default: application/json)"},
		),
		DisableSliceFlagSeparator: true, // a header's value may contain commas
		Action:                    p.enqueue,
	}
}

func (p *program) enqueue(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 2); err != nil {
		return err
	}
	s, err := p.load(c, "database-url", "api", "token", "notify")
	if err != nil {
		return err
	}
	options, err := enqueueOptions(c)
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
	job := outbox.Raw{KindName: c.Args().First(), Payload: payload, ContentType: c.String("content-type")}
	viaAPI, err := wantsAPI(c, s)
	if err != nil {
		return err
	}
	if viaAPI {
		return p.throughAPI(ctx, c, s, func(ctx context.Context, r *remote) error {
			id, err := r.enqueue(ctx, job, options)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.stdout, id)
			return err
		})
	}
	return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		producer := outbox.NewProducer(pool, s.notify)
		var id outbox.ID
		err := producer.InTx(ctx, func(tx pgx.Tx) (err error) {
			id, err = outbox.Enqueue(ctx, tx, job, options)
			return err
		})
		_ = producer.Flush(ctx) // if it fails, polling makes up for it
		if err != nil {
			return inFlagWords(err)
		}
		if workers, err := operator.New(pool).Workers(ctx); err == nil { // a producer's login may have no right to it
			p.note(unworkedNote(workers, job.KindName, cmp.Or(options.Queue, engine.DefaultQueue)))
		}
		_, err = fmt.Fprintln(p.stdout, id)
		return err
	})
}

// unworkedNote returns a note for a person whose job no present dispatcher would run: that is right before the first of
// them starts, and otherwise a typing error. "" means no note.
func unworkedNote(workers []operator.Worker, kind, queue string) string {
	var kinds, queues []string
	for _, w := range workers {
		if w.Missing {
			continue
		}
		kinds = append(kinds, w.Kinds...)
		if slices.Contains(w.Kinds, kind) {
			queues = append(queues, slices.Collect(maps.Keys(w.Queues))...)
		}
	}
	switch {
	case len(queues) == 0:
		return fmt.Sprintf("no dispatcher that is running handles the kind %s%s", kind, didYouMean(kind, kinds))
	case !slices.Contains(queues, queue):
		return fmt.Sprintf("no dispatcher that is running handles the kind %s in queue %s%s", kind, queue,
			didYouMean(queue, queues))
	}
	return ""
}

func (r *remote) enqueue(ctx context.Context, job outbox.Raw, o outbox.Options) (id string, err error) {
	switch {
	case job.ContentType != "" && job.ContentType != "application/json":
		return "", usagef("--content-type: the API takes JSON")
	case !o.Tenant.IsZero():
		return "", usagef("--tenant: the API stores jobs of the token's tenant")
	case !json.Valid(job.Payload):
		return "", usagef("PAYLOAD is not valid JSON")
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	var backoff []float64
	for _, wait := range o.Backoff {
		backoff = append(backoff, wait.Seconds())
	}
	accepted, err := r.api.Enqueue(ctx, client.NewJob{
		Kind: job.KindName, Payload: json.RawMessage(job.Payload), Queue: o.Queue, Priority: o.Priority,
		DelaySeconds: o.Delay.Seconds(), RunAt: o.RunAt,
		MaxAttempts: o.MaxAttempts, TimeoutSeconds: o.Timeout.Seconds(), BackoffSeconds: backoff, Deadline: o.Deadline,
		Hold: o.Hold, Streamed: o.Streamed, Key: o.Key.Name, IdempotencyKey: o.IdempotencyKey, Headers: o.Headers,
		KeyRules: client.KeyRules{
			MaxActive: o.Key.MaxActive, Ordered: o.Key.Ordered, Sequence: o.Key.Sequence,
			OnDeath: string(o.Key.OnDeath), ParkAfterSeconds: o.Key.ParkAfter.Seconds(),
			OnLapse: string(o.Key.OnLapse), MaxQueued: o.Key.MaxQueued, WhenFull: string(o.Key.WhenFull),
		},
	})
	return accepted.ID, err
}

func enqueueOptions(c *cli.Command) (o outbox.Options, err error) {
	o = outbox.Options{
		Queue: c.String("queue"), Priority: c.Int("priority"), MaxAttempts: c.Int("max-attempts"),
		IdempotencyKey: c.String("idempotency-key"), Hold: c.Bool("hold"), Streamed: c.Bool("streamed"),
		Key: outbox.KeyRules{
			Name: c.String("key"), MaxActive: c.Int("max-active"), Ordered: c.Bool("ordered"),
			Sequence: c.Int64("sequence"),
			OnDeath:  outbox.DeathPolicy(c.String("on-death")), OnLapse: outbox.LapsePolicy(c.String("on-lapse")),
			MaxQueued: c.Int("max-queued"), WhenFull: outbox.DepthPolicy(c.String("when-full")),
		},
	}
	var errs []error
	if c.IsSet("max-attempts") && o.MaxAttempts == 0 { // it means the default in the options
		errs = append(errs, errors.New("--max-attempts is 0: want at least 1"))
	}
	for flag, to := range map[string]*time.Duration{
		"delay": &o.Delay, "timeout": &o.Timeout,
		"park-after": &o.Key.ParkAfter,
	} {
		if v := c.String(flag); v != "" {
			if *to, err = parseDuration(v, 0, 100*365*24*time.Hour); err != nil {
				errs = append(errs, fmt.Errorf("--%s is %q: %w", flag, v, err))
			}
		}
	}
	if o.Backoff, err = parseBackoff(c.String("backoff")); err != nil {
		errs = append(errs, err)
	}
	for flag, to := range map[string]*time.Time{"run-at": &o.RunAt, "deadline": &o.Deadline} {
		if v := c.String(flag); v != "" {
			if *to, err = parseInstant(v); err != nil {
				errs = append(errs, fmt.Errorf("--%s is %q: %w", flag, v, err))
			}
		}
	}
	errs = append(errs, readTenant(c, &o.Tenant), readHeaders(c, &o.Headers))
	return o, errors.Join(errs...)
}

func parseBackoff(list string) (b outbox.Backoff, err error) {
	if list == "" {
		return nil, nil
	}
	for v := range strings.SplitSeq(list, ",") {
		wait, err := parseDuration(strings.TrimSpace(v), 0, 100*365*24*time.Hour)
		if err != nil {
			return nil, fmt.Errorf("--backoff has %q: %w", v, err)
		}
		b = append(b, wait)
	}
	return b, nil
}

// payload returns the payload that the argument gives: from standard input, from a file, or literally.
func (p *program) payload(argument string) ([]byte, error) {
	path, isFile := strings.CutPrefix(argument, "@")
	from := p.stdin
	switch {
	case argument == "":
		return []byte("{}"), nil
	case isFile:
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
		defer file.Close()
		from = file
	case argument != "-":
		return []byte(argument), nil
	}
	b, err := io.ReadAll(io.LimitReader(from, engine.MaxPayloadBytes+1)) // one more byte, for outbox to detect
	if err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	return b, nil
}

// flagWords maps fields in the errors of package outbox to our flags.
var flagWords = strings.NewReplacer(
	"Args.Kind()", "KIND", "Raw.Payload", "PAYLOAD", "Raw.ContentType", "--content-type", "Args are", "PAYLOAD is",
	"Args/", "PAYLOAD/",
	"Options.Queue", "--queue", "Options.Priority", "--priority", "Options.Delay", "--delay", "Options.RunAt",
	"--run-at",
	"Options.Deadline", "--deadline", "Options.Hold", "--hold",
	"Options.MaxAttempts", "--max-attempts", "Options.Timeout", "--timeout", "Options.Backoff", "--backoff",
	"Options.IdempotencyKey", "--idempotency-key",
	"Options.Key.MaxActive", "--max-active", "Options.Key.Ordered", "--ordered", "Options.Key.Sequence", "--sequence",
	"Options.Key.OnDeath", "--on-death",
	"Options.Key.ParkAfter", "--park-after", "Options.Key.OnLapse", "--on-lapse", "Options.Key.MaxQueued",
	"--max-queued", "Options.Key.WhenFull", "--when-full",
	"Options.Key", "--key", "Options.Headers", "--header", "Options.Tenant", "--tenant", keyRules, keyRuleFlags,
)

// These are a sentence of package outbox about the rules of a key, and its wording with flags.
const (
	keyRules     = "MaxActive, Ordered, OnLapse and MaxQueued are"
	keyRuleFlags = "--max-active, --ordered, --on-lapse and --max-queued are"
)
