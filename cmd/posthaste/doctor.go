package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/relay"
)

func (p *program) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check the installation and show how to fix what is wrong",
		Description: `It checks that the schema exists, that commits are durable, that a NOTIFY reaches the
connection on which dispatchers listen, whether a pooler is in between, which sessions
hold back vacuum, the state of autovacuum and partitions, the dispatchers, the jobs that
wait for a handler or a decision, and the publication of events. With --relay-config it
connects to each broker as well, and names settings by which messages may be lost, as
relay check does. It changes nothing.

Through the API (--api) it is the server that examines, over its own connections and at
most once a minute, for tokens of all tenants.

Exit status: 0 nothing worse than a warning, 1 a problem, 2 the command line is wrong.`,
		Flags:  append(flags("database-url", "listen-url", "relay-config", "api", "token"), outputFlag()),
		Action: p.examine,
	}
}

func (p *program) examine(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	s, err := p.load(c, "database-url", "listen-url", "relay-config", "api", "token")
	if err != nil {
		return err
	}
	findings, err := p.findings(ctx, c, s)
	if err != nil {
		return err
	}
	problems := 0
	l := listing{header: []string{"question", "severity", "finding", "what_to_do"}}
	for _, f := range findings {
		if f.Severity == doctor.Problem {
			problems++
		}
		l.add(f.Question, string(f.Severity), f.What, f.Do)
	}
	if err := p.print(c, l); err != nil {
		return err
	}
	if problems > 0 {
		return cli.Exit(doctor.Count(problems, "problem"), exitFailed)
	}
	return nil
}

// findings examines the installation, or asks the API what its server has found.
func (p *program) findings(ctx context.Context, c *cli.Command, s settings) (findings []doctor.Finding, err error) {
	viaAPI, err := wantsAPI(c, s)
	switch {
	case err != nil:
		return nil, err
	case viaAPI && c.IsSet("listen-url"):
		return nil, usagef("--api and --listen-url: the server examines its own connections")
	case viaAPI && c.IsSet("relay-config"):
		return nil, usagef("--api and --relay-config: brokers are examined from here, without --api")
	case viaAPI:
		err = p.throughAPI(ctx, c, s, func(ctx context.Context, r *remote) error {
			found, err := r.api.Doctor(ctx)
			for _, a := range found.Answers {
				findings = append(findings, doctor.Finding{
					Question: a.Question, Severity: doctor.Severity(a.Severity),
					What: a.What, Do: a.Do,
				})
			}
			return err
		})
		return findings, err
	}
	target := doctor.Target{}
	if s.app.ListenURL != "" {
		listen, err := pgxpool.ParseConfig(s.app.ListenURL)
		if err != nil {
			return nil, usagef("listen URL: it is malformed")
		}
		target.Listen = listen.ConnConfig
	}
	err = withAnyPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		target.Pool = pool
		findings, err = doctor.Examine(ctx, target)
		return err
	})
	if err != nil || s.relayConfig == nil {
		return findings, err
	}
	brokers, err := s.relayConfig.check(ctx)
	for _, f := range brokers {
		severity := doctor.Severity(f.Severity) // problem and warning are words of both
		if f.Severity == relay.SeverityNote {
			severity = doctor.OK
		}
		findings = append(findings, doctor.Finding{Question: "broker of " + f.of, Severity: severity, What: f.What, Do: f.Remedy})
	}
	return findings, err
}
