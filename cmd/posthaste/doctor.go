package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/doctor"
)

func (p *program) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check the installation and show how to fix what is wrong",
		Description: `It checks that the schema exists, that commits are durable, that a NOTIFY reaches the
connection on which dispatchers listen, whether a pooler is in between, which sessions
hold back vacuum, the state of autovacuum and partitions, the dispatchers, the jobs that
wait for a handler or a decision, and the publication of events. It changes nothing.

Exit status: 0 nothing worse than a warning, 1 a problem, 2 the command line is wrong.`,
		Flags:  append(flags("database-url", "listen-url"), outputFlag()),
		Action: p.examine,
	}
}

func (p *program) examine(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	s, err := p.load(c, "database-url", "listen-url")
	if err != nil {
		return err
	}
	patient := doctor.Patient{}
	if s.app.ListenURL != "" {
		listen, err := pgxpool.ParseConfig(s.app.ListenURL)
		if err != nil {
			return usagef("listen URL: it is malformed")
		}
		patient.Listen = listen.ConnConfig
	}
	var problems int
	err = withAnyPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		patient.Pool = pool
		findings, err := doctor.Examine(ctx, patient)
		if err != nil {
			return err
		}
		l := listing{header: []string{"question", "severity", "finding", "what_to_do"}}
		for _, f := range findings {
			if f.Severity == doctor.Problem {
				problems++
			}
			l.add(f.Question, string(f.Severity), f.What, f.Do)
		}
		return p.print(c, l)
	})
	if err == nil && problems > 0 {
		return cli.Exit(doctor.Count(problems, "problem"), exitFailed)
	}
	return err
}
