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
	reminder    = 30 * time.Second // between two log lines about the same obstacle
)

// A gate opens once the database can be reached and has a schema that this build can work with. It then keeps checking
// that this remains so.
type gate struct {
	pool    *pgxpool.Pool
	migrate func(context.Context, *pgxpool.Pool) error // nil leaves migration to others
	log     *slog.Logger
	open    chan struct{} // closed when the gate opens
	refused chan error    // capacity one: why this build may not work, now or any longer
	ended   chan struct{} // closed when run has returned
	between time.Duration // interval of looks once the gate is open
	looks   *readiness    // receives each look
}

func newGate(pool *pgxpool.Pool, c Config, looks *readiness) *gate {
	return &gate{
		pool: pool, looks: looks, migrate: c.Migrate, log: c.Logger,
		open: make(chan struct{}), refused: make(chan error, 1), ended: make(chan struct{}), between: reminder,
	}
}

// run opens the gate when it can, and goes on looking until this build turns out to be too old or ctx ends.
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

// await reports whether the gate may open. It returns false if this build is too old or ctx has ended.
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
		obstacle, what := database, "waiting for the database"
		if database.State == databaseUp {
			obstacle, what = schema, "waiting for the schema"
		}
		if ctx.Err() == nil && (obstacle.State != last.State || time.Since(said) >= reminder) {
			g.log.LogAttrs(ctx, slog.LevelWarn, what, slog.String("database", database.State),
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

// note logs what an operator should know about the database that was just migrated.
func (g *gate) note(ctx context.Context) {
	notes, _ := migrations.Notes(ctx, g.pool) // doctor reports them, too
	for _, n := range notes {
		g.log.LogAttrs(ctx, slog.LevelWarn, "the database works, but", slog.String("note", n.What),
			slog.String("what_to_do", n.Do))
	}
}

// These are the states of the database and of the schema.
const (
	databaseUp       = "up"
	databaseDown     = "down"
	databaseReadOnly = "read-only"
	schemaCurrent    = "current"
	schemaBehind     = "behind"
	schemaAhead      = "ahead"   // a newer build migrated: this one continues
	schemaEdited     = "edited"  // the applied text of a file differs from this build's
	schemaTooNew     = "too-new" // a newer build migrated: this one must not work
	schemaUnknown    = "unknown"
)

// usable reports whether this build works with a schema in this state.
func (s State) usable() bool { return s.State == schemaCurrent || s.State == schemaAhead }

// look checks the database and its schema. If the server is read-only after a failover, look closes the connections, so
// that the next ones go wherever the address then leads.
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
