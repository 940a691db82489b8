package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/migrations"
)

const (
	lookTimeout = 3 * time.Second
	reminder    = 30 * time.Second // between two lines about the same obstacle
)

// gate opens once the database is there and its schema is one that this build can
// work with. It goes on to look whether it still is.
type gate struct {
	pool    *pgxpool.Pool
	migrate func(context.Context, *pgxpool.Pool) error // nil leaves that to others
	log     *slog.Logger
	open    chan struct{} // closed when it opens
	refused chan error    // of one: why this build may not work, or not any longer
	ended   chan struct{} // closed when nobody looks any more
	between time.Duration // the looks once it is open
	looks   *readiness    // gets each look
}

func newGate(pool *pgxpool.Pool, c Config, looks *readiness) *gate {
	return &gate{
		pool: pool, looks: looks, migrate: c.Migrate, log: c.Logger,
		open: make(chan struct{}), refused: make(chan error, 1), ended: make(chan struct{}), between: reminder,
	}
}

// run opens the gate when it can. It looks until this build turns out to be too old, or ctx ends.
func (g *gate) run(ctx context.Context) {
	defer close(g.ended)
	if !g.await(ctx) {
		return
	}
	close(g.open)
	g.log.LogAttrs(ctx, slog.LevelInfo, "database and schema are there")
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(g.between):
			if _, schema := g.look(ctx); schema.State == schemaTooNew {
				g.refused <- errors.New(schema.Detail)
				return
			}
		}
	}
}

// isOpen reports whether the gate has opened.
func (g *gate) isOpen() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

// await reports whether the gate may open; if not, this build is too old or ctx has ended.
func (g *gate) await(ctx context.Context) bool {
	var retry backoff.Backoff
	var said time.Time
	var last State
	for ctx.Err() == nil {
		database, schema := g.look(ctx)
		if schema.usable() {
			return true
		}
		if schema.State == schemaTooNew {
			g.refused <- errors.New(schema.Detail)
			return false
		}
		if g.migrate != nil && (schema.State == schemaBehind || schema.State == schemaEdited) {
			err := g.migrate(ctx, g.pool)
			if err == nil {
				g.log.LogAttrs(ctx, slog.LevelInfo, "schema migrated")
				g.note(ctx)
				continue
			}
			schema.Detail = err.Error()
		}
		obstacle := database
		if database.State == databaseUp {
			obstacle = schema
		}
		if ctx.Err() == nil && (obstacle.State != last.State || time.Since(said) >= reminder) {
			g.log.LogAttrs(ctx, slog.LevelWarn, "waiting for the database", slog.String("database", database.State),
				slog.String("schema", schema.State), slog.String("err", obstacle.Detail))
			said, last = time.Now(), obstacle
		}
		if retry.Wait(ctx) != nil {
			return false
		}
	}
	return false
}

func (g *gate) look(ctx context.Context) (database, schema State) {
	database, schema = look(ctx, g.pool)
	if ctx.Err() == nil {
		g.looks.note(database, schema)
	}
	return database, schema
}

// note logs what an operator ought to know of the database that was just migrated.
func (g *gate) note(ctx context.Context) {
	notes, _ := migrations.Notes(ctx, g.pool) // doctor finds them, too
	for _, n := range notes {
		g.log.LogAttrs(ctx, slog.LevelWarn, "the database works, but", slog.String("note", n.What), slog.String("what_to_do", n.Do))
	}
}

// States of the database and of the schema.
const (
	databaseUp       = "up"
	databaseDown     = "down"
	databaseReadOnly = "read-only"
	schemaCurrent    = "current"
	schemaBehind     = "behind"
	schemaAhead      = "ahead"   // a newer build migrated: this one goes on
	schemaEdited     = "edited"  // another text of a file was applied than this build has
	schemaTooNew     = "too-new" // a newer build migrated: this one may not work
	schemaUnknown    = "unknown"
)

// usable reports whether this build works with a schema of this state.
func (s State) usable() bool { return s.State == schemaCurrent || s.State == schemaAhead }

// look asks the database how it is. A server that is read-only after a failover
// is left: the next connections go to whatever the address leads to then.
func look(ctx context.Context, pool *pgxpool.Pool) (database, schema State) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	schema.State = schemaUnknown
	var readOnly bool
	if err := pool.QueryRow(ctx, `SELECT current_setting('transaction_read_only') = 'on'`).Scan(&readOnly); err != nil {
		return State{State: databaseDown, Detail: err.Error(), refused: pgsession.IsLoginRefused(err)}, schema
	}
	if readOnly {
		pool.Reset()
		return State{State: databaseReadOnly, Detail: "the server does not accept writes (a standby?)"}, schema
	}
	database.State = databaseUp
	found, err := migrations.Look(ctx, pool)
	if err != nil {
		schema.Detail = err.Error()
		return database, schema
	}
	schema.State = string(found.Condition)
	switch {
	case !found.Usable():
		schema.Detail = found.String() + "; " + found.Remedy()
	case found.Condition == migrations.Ahead:
		schema.Detail = found.String()
	}
	return database, schema
}
