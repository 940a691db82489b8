package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

func (p *program) createScheduleCommand() *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "create a schedule that no program declares, and print its first tick",
		ArgsUsage: "NAME",
		Description: `It needs --kind and one of --cron and --every. It stays until it is deleted, or until a
program declares a schedule of the same name, which replaces it.`,
		Flags:                     scheduleFields(),
		DisableSliceFlagSeparator: true, // a header's value may contain commas
		Action: func(ctx context.Context, c *cli.Command) error {
			return p.editSchedule(ctx, c, "created",
				func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string,
					e schedule.Edit,
				) (time.Time, error) {
					return o.CreateSchedule(ctx, newSchedule{e.New(tenant, name), tenant, e})
				})
		},
	}
}

// newSchedule is a schedule with the values that it was made from.
type newSchedule struct {
	schedule.Schedule
	tenant outbox.ID // as it was named; zero if it was not
	edit   schedule.Edit
}

func (p *program) changeScheduleCommand() *cli.Command {
	return &cli.Command{
		Name:      "change",
		Usage:     "change a schedule that no program declares, and print its next tick",
		ArgsUsage: "NAME",
		Description: `Fields that are not named keep their values. A number or duration of 0 restores the
default, and so does --unset. A new timing counts from now, every other change from the
next tick.`,
		Flags: append(scheduleFields(),
			&cli.StringSliceFlag{
				Name:  "unset",
				Usage: "restore the default of this `FLAG`'s field, like key or header; may be repeated",
			}),
		DisableSliceFlagSeparator: true,
		Action: func(ctx context.Context, c *cli.Command) error {
			return p.editSchedule(ctx, c, "changed",
				func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string,
					e schedule.Edit,
				) (time.Time, error) {
					return o.ChangeSchedule(ctx, tenant, name, e)
				})
		},
	}
}

func scheduleFields() []cli.Flag {
	return append(operatorFlags(), tenantFlag(), reasonFlag(),
		&cli.StringFlag{Name: "cron", Usage: "ticks at this `EXPRESSION`, like \"0 7 * * 1-5\""},
		&cli.StringFlag{Name: "zone", Usage: "`NAME` of the expression's time zone, like Europe/Berlin (default: UTC)"},
		&cli.StringFlag{Name: "every", Usage: "ticks at the multiples of this `DURATION` since 1970, 1s to 3650d"},
		&cli.StringFlag{
			Name:  "missed",
			Usage: "which missed ticks get a job, `once|skip|all`: the latest, none or all (default: once)",
		},
		&cli.IntFlag{Name: "missed-limit", Usage: "with --missed all: how many of the latest, `N` (default: 10)"},
		&cli.StringFlag{Name: "kind", Usage: "`KIND` of its jobs"},
		&cli.StringFlag{Name: "payload", Usage: "`PAYLOAD` of its jobs, @FILE, or - for standard input (default: {})"},
		&cli.StringFlag{Name: "content-type", Usage: "`TYPE` of the payload (default: application/json)"},
		queueFlag(),
		&cli.IntFlag{Name: "priority", Usage: "`N`: higher is more urgent"},
		&cli.IntFlag{Name: "max-attempts", Usage: "give up after `N` attempts (default: 25)"},
		&cli.StringFlag{Name: "timeout", Usage: "`DURATION` of one attempt (default: the worker's)"},
		&cli.StringFlag{
			Name:  "backoff",
			Usage: "`DURATIONS` to wait between attempts, like 5s,1m,10m; the last from then on (default: the worker's)",
		},
		&cli.StringFlag{Name: "deadline", Usage: "a job expires this `DURATION` after its tick (default: never)"},
		&cli.BoolFlag{Name: "hold", Usage: "do not run its jobs before they are released"},
		&cli.BoolFlag{Name: "streamed", Usage: "store each change of its jobs as an event, for relays to publish"},
		&cli.StringFlag{Name: "key", Usage: "`KEY` whose jobs are ordered or limited"},
		&cli.IntFlag{Name: "max-active", Usage: "`N` jobs of the key may run at once (default: 1)"},
		&cli.BoolFlag{Name: "ordered", Usage: "run after the ordered jobs of the key stored before it"},
		&cli.StringFlag{
			Name:  "on-death",
			Usage: "if one fails permanently, `skip|park`: skip it, or park the key (default: the jobs behind it wait)",
		},
		&cli.StringFlag{Name: "park-after", Usage: "with --on-death park: after this `DURATION`"},
		&cli.StringFlag{Name: "on-lapse", Usage: "if its worker dies, `fail-stale|block` (default: it is retried)"},
		&cli.StringSliceFlag{Name: "header", Usage: "`NAME=VALUE`, may be repeated: all of them"},
	)
}

// editSchedule runs a command's act on the schedule that it names, with the changes given by its flags.
func (p *program) editSchedule(ctx context.Context, c *cli.Command, done string,
	act func(context.Context, scheduleActs, outbox.ID, string, schedule.Edit) (time.Time, error),
) error {
	edit, err := readEdit(c)
	if err != nil {
		return &usageError{err}
	}
	if c.IsSet("payload") {
		if edit.Payload, err = p.payload(c.String("payload")); err != nil {
			return err
		}
	}
	if c.Name == "change" && reflect.ValueOf(edit).IsZero() {
		return usagef("%s: nothing to change: want at least one of its flags (see %[1]s --help)", c.FullName())
	}
	return onSchedule(ctx, p, c, func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string) error {
		next, err := act(ctx, o, tenant, name, edit)
		if _, invalid := errors.AsType[*outbox.InvalidError](err); invalid {
			return usagef("%s", scheduleWords.Replace(err.Error()))
		}
		if err != nil {
			return err
		}
		zone := ""
		if edit.Zone != nil {
			zone = " (--zone " + *edit.Zone + ")"
		} else if edit.Cron != nil && c.Name == "create" {
			zone = " (--zone UTC, the default)"
		}
		_, err = fmt.Fprintf(p.stdout, "%s: %s, next tick at %s%s\n", done, name, next.UTC().Format(time.RFC3339), zone)
		return err
	})
}

// scheduleWords maps fields in the errors of package schedule to our flags.
var scheduleWords = strings.NewReplacer(
	"Args.Kind()", "--kind", "Raw.Payload", "--payload", "Raw.ContentType", "--content-type", "Args are",
	"--payload is",
	"expression.", "--cron ", "expression is", "--cron is", "zone is", "--zone is", "interval is", "--every is",
	"Options.Missed is", "--missed is",
	"Options.MissedLimit", "--missed-limit", "Options.Queue", "--queue", "Options.Priority", "--priority",
	"Options.Deadline", "--deadline",
	"Options.MaxAttempts", "--max-attempts", "Options.Timeout", "--timeout", "Options.Backoff", "--backoff",
	"Options.Key.MaxActive", "--max-active", "Options.Key.Ordered", "--ordered", "Options.Key.OnDeath", "--on-death",
	"Options.Key.ParkAfter", "--park-after", "Options.Key.OnLapse", "--on-lapse", "Options.Key", "--key",
	"Options.Headers", "--header", keyRules, keyRuleFlags,
	"and so is an interval", "and so is --every", `enqueue "": `, "",
)

func readEdit(c *cli.Command) (e schedule.Edit, err error) {
	e = schedule.Edit{
		Cron: textFlag[string](c, "cron"), Zone: textFlag[string](c, "zone"),
		Missed: textFlag[schedule.Missed](c, "missed"), MissedLimit: number(c, "missed-limit"),
		Kind: textFlag[string](c, "kind"), ContentType: textFlag[string](c, "content-type"),
		Queue:    textFlag[string](c, "queue"),
		Priority: number(c, "priority"), MaxAttempts: number(c, "max-attempts"), Hold: truth(c, "hold"),
		Streamed: truth(c, "streamed"),
		Key:      textFlag[string](c, "key"), MaxActive: number(c, "max-active"), Ordered: truth(c, "ordered"),
		OnDeath: textFlag[outbox.DeathPolicy](c, "on-death"), OnLapse: textFlag[outbox.LapsePolicy](c, "on-lapse"),
	}
	var errs []error
	for flag, to := range map[string]**time.Duration{
		"every": &e.Every, "timeout": &e.Timeout, "deadline": &e.Deadline,
		"park-after": &e.ParkAfter,
	} {
		if !c.IsSet(flag) {
			continue
		}
		d, err := parseDuration(c.String(flag), 0, 100*365*24*time.Hour)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s is %q: %w", flag, c.String(flag), err))
		}
		*to = &d
	}
	if c.IsSet("backoff") {
		waits, err := parseBackoff(c.String("backoff"))
		e.Backoff = append(outbox.Backoff{}, waits...)
		errs = append(errs, err)
	}
	errs = append(errs, readHeaders(c, &e.Headers))
	for _, flag := range c.StringSlice("unset") {
		if c.IsSet(flag) {
			errs = append(errs, fmt.Errorf("--%s is set and unset", flag))
		}
		errs = append(errs, unset(&e, flag))
	}
	return e, errors.Join(errs...)
}

func unset(e *schedule.Edit, flag string) error {
	switch flag {
	case "queue":
		e.Queue = new("")
	case "payload":
		if e.Payload = []byte("{}"); e.ContentType == nil {
			e.ContentType = new("")
		}
	case "backoff":
		e.Backoff = outbox.Backoff{}
	case "header":
		e.Headers = map[string]string{}
	case "key":
		e.Key = new("")
	case "on-death":
		e.OnDeath = new(outbox.DeathPolicy(""))
	case "on-lapse":
		e.OnLapse = new(outbox.LapsePolicy(""))
	default:
		return fmt.Errorf("--unset is %q: want queue, payload, backoff, header, key, on-death or on-lapse", flag)
	}
	return nil
}

// textFlag returns nil for an absent flag.
func textFlag[T ~string](c *cli.Command, flag string) *T {
	if !c.IsSet(flag) {
		return nil
	}
	return new(T(c.String(flag)))
}

func number(c *cli.Command, flag string) *int {
	if !c.IsSet(flag) {
		return nil
	}
	return new(c.Int(flag))
}

func truth(c *cli.Command, flag string) *bool {
	if !c.IsSet(flag) {
		return nil
	}
	return new(c.Bool(flag))
}

// CreateSchedule converts what the command parsed into the API's types.
func (r *remote) CreateSchedule(ctx context.Context, s operator.ScheduleSpec) (time.Time, error) {
	made := s.(newSchedule) // createScheduleCommand
	fields, err := fieldsOf(made.edit)
	if err != nil {
		return time.Time{}, err
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	next, err := r.api.CreateSchedule(ctx, client.ScheduleName{Tenant: textOf(made.tenant), Name: made.Name()}, fields)
	return next.NextAt, err
}

func (r *remote) ChangeSchedule(ctx context.Context, tenant outbox.ID, name string,
	e operator.ScheduleEdit,
) (time.Time, error) {
	edit := e.(schedule.Edit) // changeScheduleCommand
	fields, err := fieldsOf(edit)
	if err != nil {
		return time.Time{}, err
	}
	if edit.ContentType != nil && edit.Payload == nil {
		return time.Time{}, usagef("--content-type: the API sets it with a payload only")
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	next, err := r.api.ChangeSchedule(ctx, client.ScheduleName{Tenant: textOf(tenant), Name: name}, fields)
	return next.NextAt, err
}

func fieldsOf(e schedule.Edit) (f client.ScheduleFields, err error) {
	if e.ContentType != nil && *e.ContentType != "" && *e.ContentType != "application/json" {
		return f, usagef("--content-type: the API takes JSON")
	}
	f = client.ScheduleFields{
		Cron: e.Cron, TimeZone: e.Zone, EverySeconds: secondsOf(e.Every), Missed: (*string)(e.Missed),
		MissedLimit: e.MissedLimit,
		Kind:        e.Kind, Payload: e.Payload, Queue: e.Queue, Priority: e.Priority, MaxAttempts: e.MaxAttempts,
		TimeoutSeconds:  secondsOf(e.Timeout),
		DeadlineSeconds: secondsOf(e.Deadline), Hold: e.Hold, Streamed: e.Streamed, Headers: e.Headers,
		Key: e.Key, MaxActive: e.MaxActive, Ordered: e.Ordered, OnDeath: (*string)(e.OnDeath),
		ParkAfterSeconds: secondsOf(e.ParkAfter),
		OnLapse:          (*string)(e.OnLapse),
	}
	if e.Backoff != nil {
		f.BackoffSeconds = []float64{}
	}
	for _, wait := range e.Backoff {
		f.BackoffSeconds = append(f.BackoffSeconds, wait.Seconds())
	}
	return f, nil
}

func secondsOf(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	return new(d.Seconds())
}
