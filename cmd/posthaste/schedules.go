package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type scheduleActs interface {
	Schedules(context.Context) ([]operator.Schedule, error)
	SchedulesOf(ctx context.Context, tenant outbox.ID) ([]operator.Schedule, error)
	PauseSchedule(ctx context.Context, tenant outbox.ID, name string) error
	ResumeSchedule(ctx context.Context, tenant outbox.ID, name string) error
	RunSchedule(ctx context.Context, tenant outbox.ID, name string) (outbox.ID, outbox.Status, error)
	DeleteSchedule(ctx context.Context, tenant outbox.ID, name string) error
	CreateSchedule(ctx context.Context, s operator.ScheduleSpec) (next time.Time, err error)
	ChangeSchedule(ctx context.Context, tenant outbox.ID, name string, e operator.ScheduleEdit) (next time.Time,
		err error)
}

var _ scheduleActs = (*operator.Operator)(nil)

func (p *program) schedulesCommand() *cli.Command {
	return &cli.Command{
		Name:  "schedules",
		Usage: "list, create, change, pause, resume, run and delete schedules",
		Commands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "list schedules with their next and last run times",
				Flags:  append(operatorFlags(), outputFlag(), onlyTenantFlag()),
				Action: p.listSchedules,
			},
			p.createScheduleCommand(),
			p.changeScheduleCommand(),
			scheduleCommand(p, "pause", "stop the ticks of a schedule; its jobs continue", "paused: ",
				scheduleActs.PauseSchedule),
			scheduleCommand(p, "resume", "resume a schedule with its next tick", "resumed: ",
				scheduleActs.ResumeSchedule),
			p.deleteScheduleCommand(),
			{
				Name:      "run",
				Usage:     "enqueue a schedule's job now, also while it is paused, and print the job's id",
				ArgsUsage: "NAME",
				Flags:     append(operatorFlags(), tenantFlag(), reasonFlag()),
				Action: func(ctx context.Context, c *cli.Command) error {
					return onSchedule(ctx, p, c,
						func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string) error {
							id, _, err := o.RunSchedule(ctx, tenant, name)
							if err != nil {
								return err
							}
							_, err = fmt.Fprintln(p.stdout, id)
							return err
						})
				},
			},
		},
	}
}

func (p *program) listSchedules(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o scheduleActs) error {
		schedules, err := o.SchedulesOf(ctx, tenant)
		if err != nil {
			return err
		}
		l := listing{
			header: []string{
				"name", "timing", "zone", "kind", "queue", "next_at", "last_at", "paused_since",
				"streamed", "missed", "missed_limit", "generation", "updated_at", "created_at", "tenant", "set_by",
			},
			onScreen: 9,
		}
		for _, s := range schedules {
			timing := s.Expression
			if timing == "" {
				timing = "every " + short(s.Every)
			}
			l.add(s.Name, timing, s.Zone, s.Kind, s.Queue, instant(s.NextAt), instant(s.LastAt), instant(s.PausedSince),
				s.Streamed, s.Missed, s.MissedLimit, known(s.Generation), instant(s.UpdatedAt), instant(s.CreatedAt),
				s.Tenant, orNull(s.SetBy != "", s.SetBy))
		}
		return p.print(c, l)
	})
}

// known returns nil for an unknown number: the API omits generations of schedules and epochs of lines.
func known(n int64) any { return orNull(n != 0, n) }

func scheduleCommand(p *program, name, usage, done string,
	act func(scheduleActs, context.Context, outbox.ID, string) error,
) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "NAME", Flags: append(operatorFlags(), tenantFlag(), reasonFlag()),
		Action: func(ctx context.Context, c *cli.Command) error {
			return onSchedule(ctx, p, c,
				func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string) error {
					if err := act(o, ctx, tenant, name); err != nil {
						return err
					}
					_, err := fmt.Fprintf(p.stdout, "%s%s\n", done, name)
					return err
				})
		},
	}
}

func (p *program) deleteScheduleCommand() *cli.Command {
	command := scheduleCommand(p, "delete",
		"delete a schedule; a program that declares it creates it again when it starts", "deleted: ",
		scheduleActs.DeleteSchedule)
	command.Flags = append(command.Flags, dryRunFlag("report whether it exists"))
	remove := command.Action
	command.Action = func(ctx context.Context, c *cli.Command) error {
		if !c.Bool("dry-run") {
			return remove(ctx, c)
		}
		return onSchedule(ctx, p, c, func(ctx context.Context, o scheduleActs, tenant outbox.ID, name string) error {
			if err := findSchedule(ctx, o, tenant, name); err != nil {
				return err
			}
			_, err := fmt.Fprintln(p.stdout, "would delete:", name)
			return err
		})
	}
	return command
}

// findSchedule searches where the act would: without a tenant that is the root tenant or, through the API, the token's
// own.
func findSchedule(ctx context.Context, o scheduleActs, tenant outbox.ID, name string) error {
	whose := tenant
	if tenant.IsZero() {
		whose = outbox.RootTenant
	}
	schedules, err := o.SchedulesOf(ctx, whose)
	if tenant.IsZero() && isProblem(err, client.CodeForbidden) {
		schedules, err = o.SchedulesOf(ctx, tenant) // all that the token may see belong to its tenant
	}
	if err == nil && !slices.ContainsFunc(schedules, func(s operator.Schedule) bool { return s.Name == name }) {
		err = fmt.Errorf("schedule %s: %w", name, operator.ErrScheduleNotFound)
	}
	return err
}

// onSchedule runs a command's act on the schedule that it names.
func onSchedule(ctx context.Context, p *program, c *cli.Command,
	act func(context.Context, scheduleActs, outbox.ID, string) error,
) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	name := c.Args().First()
	if !isName(name) {
		return usagef("%q is not a schedule's name", name)
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o scheduleActs) error { return act(ctx, o, tenant, name) })
}
