package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
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
			return withAnyPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error { return act(ctx, c, pool) })
		}
		return c
	}
	status := onDatabase("status", "list the files of the schema and whether the database is behind, ahead or edited",
		p.migrateStatus)
	status.Flags = append(status.Flags, outputFlag())
	status.Description = "Exit status: 0 if this build works with the schema (current, ahead), 1 if not: it is missing, behind,\nedited or too new."
	up := onDatabase("up",
		"apply missing migrations and re-create all functions, or do nothing if none is missing; safe to run concurrently", p.migrateUp)
	up.Flags = append(up.Flags,
		&cli.DurationFlag{Name: "wait", Usage: "`DURATION` to wait for a database that is unavailable or read-only"})
	return &cli.Command{
		Name:  "migrate",
		Usage: "apply the migrations of the schema \"outbox\", or show their status",
		Commands: []*cli.Command{
			up,
			onDatabase("down", "remove the schema, if it is empty", p.migrateDown),
			status,
			p.migrateSQLCommand(),
		},
	}
}

func (p *program) migrateUp(ctx context.Context, c *cli.Command, pool *pgxpool.Pool) error {
	if wait := c.Duration("wait"); wait > 0 {
		if err := p.awaitWritable(ctx, pool, wait); err != nil {
			return err
		}
	}
	before, err := migrations.List(ctx, pool)
	if err != nil {
		return err
	}
	if err := migrate.Up(ctx, pool); err != nil {
		return err
	}
	after, err := migrations.List(ctx, pool)
	if err != nil {
		return err
	}
	p.sayApplied(before, after)
	state, err := migrations.Look(ctx, pool)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, state)
	return p.noteOf(ctx, pool)
}

// sayApplied prints which files were applied between two looks at the schema.
func (p *program) sayApplied(before, after []migrations.Status) {
	var numbered, functions bool
	for _, file := range after {
		if file.Condition != migrations.Current || slices.Contains(before, file) {
			continue
		}
		if strings.Contains(file.Name, "/") {
			functions = true
			continue
		}
		numbered = true
		fmt.Fprintln(p.stdout, "applied", file.Name)
	}
	switch {
	case functions:
		fmt.Fprintln(p.stdout, "created the functions and views")
	case !numbered:
		fmt.Fprintln(p.stdout, "nothing to apply")
	}
}

// awaitWritable waits until the database answers and accepts writes. It returns why it did not once wait has passed, or
// at once if the database refuses the login.
func (p *program) awaitWritable(ctx context.Context, pool *pgxpool.Pool, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var retry backoff.Backoff
	for said := false; ; said = true {
		readOnly, err := isReadOnly(ctx, pool)
		if pgsession.IsLoginRefused(err) {
			return err
		}
		if err == nil && readOnly {
			pool.Reset() // the next connection goes wherever the address then leads
			err = errors.New("the server does not accept writes (a standby?)")
		}
		if err == nil {
			return nil
		}
		if !said {
			fmt.Fprintln(p.stderr, "waiting for the database:", err)
		}
		if retry.Wait(ctx) != nil {
			return err
		}
	}
}

// isReadOnly asks the database, with a short timeout: a server that was cut off does not answer, and the next
// connection may go to another.
func isReadOnly(ctx context.Context, pool *pgxpool.Pool) (is bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err = pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only') = 'on'`).Scan(&is)
	return is, err
}

// noteOf prints what an operator should know about the database, even if all is well.
func (p *program) noteOf(ctx context.Context, pool *pgxpool.Pool) error {
	notes, err := migrations.Notes(ctx, pool)
	for _, note := range notes {
		fmt.Fprintln(p.stderr, "note:", note)
	}
	return err
}

func (p *program) migrateDown(ctx context.Context, _ *cli.Command, pool *pgxpool.Pool) error {
	if err := migrations.Down(ctx, pool); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, "the schema outbox is removed")
	return nil
}

func (p *program) migrateStatus(ctx context.Context, c *cli.Command, pool *pgxpool.Pool) error {
	state, err := migrations.Look(ctx, pool)
	if err != nil {
		return err
	}
	list, err := migrations.List(ctx, pool)
	if err != nil {
		return err
	}
	t := listing{header: []string{"name", "applied", "state"}}
	for _, m := range list {
		t.add(m.Name, m.Applied, string(m.Condition))
	}
	if err := p.print(c, t); err != nil {
		return err
	}
	if !state.Usable() {
		return fmt.Errorf("%s; %s", state, state.Remedy())
	}
	if state.Condition == migrations.Current {
		return p.noteOf(ctx, pool)
	}
	fmt.Fprintln(p.stderr, state)
	return nil
}
