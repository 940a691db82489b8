package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

//go:embed schema.sql
var schema string

// premises are where the shop is: a Postgres, and a database of its own in it.
type premises struct {
	server *pgdev.Server
	given  bool   // the server was named by DATABASE_URL: it is not ours
	name   string // of the database
	url    string
	db     *pgxpool.Pool
	drop   func(context.Context) error
}

// prepare finds or starts a Postgres, makes a database, migrates it, and creates
// the shop's tables. What it made before an error is cleared away again.
func prepare(ctx context.Context, s *screen) (_ *premises, err error) {
	given := os.Getenv("DATABASE_URL")
	server, err := pgdev.Start(ctx, pgdev.Options{
		DatabaseURL: given,
		Major:       os.Getenv("PG"),
		Container:   true,
		Log:         s,
	})
	if err != nil {
		return nil, err
	}
	p := &premises{server: server, given: given != "", name: "shop"}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.clear())
		}
	}()
	if p.given {
		p.name = fmt.Sprintf("posthaste_shop_%08x", rand.Uint32())
	}
	p.url, p.drop, err = pgdev.CreateDatabase(ctx, server.URL(), p.name)
	if err != nil {
		return nil, err
	}
	if p.db, err = openPool(ctx, p.url, tills+4); err != nil {
		return nil, err
	}
	if err = migrate.Up(ctx, p.db); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	if _, err = p.db.Exec(ctx, schema); err != nil {
		return nil, fmt.Errorf("create the shop's tables: %w", err)
	}
	return p, p.introduce(ctx, s)
}

// introduce says which Postgres this is, and whether its commits are durable.
func (p *premises) introduce(ctx context.Context, s *screen) error {
	var settings string
	err := p.db.QueryRow(ctx, `
		SELECT string_agg(name || ' ' || setting, ', ' ORDER BY name)
		FROM pg_settings
		WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')`).Scan(&settings)
	if err != nil {
		return fmt.Errorf("look at the server's settings: %w", err)
	}
	s.say("%s\n%s", p.server, settings)
	s.say("database %s: schema outbox migrated, the shop's tables created\n", p.name)
	return nil
}

// shownURL returns the database's URL without the password of a server that is not ours.
func (p *premises) shownURL() string {
	if !p.given {
		return p.url
	}
	if u, err := url.Parse(p.url); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		return u.Redacted()
	}
	return "(that of DATABASE_URL, with dbname=" + p.name + ")"
}

// clear drops the database and stops the server, as far as they are ours.
func (p *premises) clear() error {
	if p.db != nil {
		p.db.Close()
	}
	var err error
	if p.drop != nil && p.given {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err = p.drop(ctx)
	}
	return errors.Join(err, p.server.Stop())
}
