package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/migrations"
)

func (p *program) migrateCommand() *cli.Command {
	onDatabase := func(name, usage string, act func(context.Context, *cli.Command, *pgxpool.Pool) error) *cli.Command {
		c := &cli.Command{Name: name, Usage: usage, Flags: flags("database-url")}
		c.Action = func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 0, 0); err != nil {
				return err
			}
			s, err := p.load(c, "database-url")
			if err != nil {
				return err
			}
			return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error { return act(ctx, c, pool) })
		}
		return c
	}
	status := onDatabase("status", "list the migrations and whether the database has them", p.migrateStatus)
	status.Flags = append(status.Flags, outputFlag())
	return &cli.Command{
		Name:  "migrate",
		Usage: "bring the schema \"outbox\" up to date, or look at it",
		Commands: []*cli.Command{
			onDatabase("up", "apply what is missing; safe to run many times at once", p.migrateUp),
			onDatabase("down", "take back the newest migration; DELETES what it made", p.migrateDown),
			status,
			p.migrateSQLCommand(),
		},
	}
}

func (p *program) migrateUp(ctx context.Context, _ *cli.Command, pool *pgxpool.Pool) error {
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	list, err := migrations.List(ctx, pool)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "the schema is up to date: %s\n", list[len(list)-1].Name)
	return nil
}

func (p *program) migrateDown(ctx context.Context, _ *cli.Command, pool *pgxpool.Pool) error {
	newest, err := newestApplied(ctx, pool)
	if err != nil {
		return err
	}
	if newest == "" {
		fmt.Fprintln(p.stdout, "there is nothing to take back")
		return nil
	}
	if err := migrations.Down(ctx, pool); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "taken back: %s\n", newest)
	return nil
}

func newestApplied(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	list, err := migrations.List(ctx, pool)
	newest := ""
	for _, m := range list {
		if m.Applied {
			newest = m.Name
		}
	}
	return newest, err
}

func (p *program) migrateStatus(ctx context.Context, c *cli.Command, pool *pgxpool.Pool) error {
	list, err := migrations.List(ctx, pool)
	if err != nil {
		return err
	}
	t := listing{header: []string{"version", "name", "applied"}}
	for _, m := range list {
		t.add(m.Version, m.Name, m.Applied)
	}
	return p.print(c, t)
}
