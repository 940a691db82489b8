// Package migrations holds the schema outbox as numbered SQL files and applies
// them under an advisory lock, so that any number of processes may start at once.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// FS is the migrations, in the order of their names.
//
//go:embed *.sql
var FS embed.FS

// versionTable is in our own schema, where a role that may not create anything in
// public can make it.
const versionTable = "outbox.schema_version"

// Up brings the schema to the newest version. It is safe to call from many
// processes at once: one migrates, the others wait and find nothing to do.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	return with(ctx, pool, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes back the newest applied migration. It deletes what that migration made.
func Down(ctx context.Context, pool *pgxpool.Pool) error {
	return with(ctx, pool, func(p *goose.Provider) error {
		_, err := p.Down(ctx)
		return err
	})
}

// Status is one migration and whether the database has it.
type Status struct {
	Version int64
	Name    string
	Applied bool
}

// List returns every migration with its status, oldest first.
func List(ctx context.Context, pool *pgxpool.Pool) ([]Status, error) {
	var list []Status
	err := with(ctx, pool, func(p *goose.Provider) error {
		all, err := p.Status(ctx)
		for _, s := range all {
			list = append(list, Status{Version: s.Source.Version, Name: s.Source.Path, Applied: s.State == goose.StateApplied})
		}
		return err
	})
	return list, err
}

// Current reports whether the database has every migration that this build
// knows, without creating or locking anything.
func Current(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	entries, err := FS.ReadDir(".")
	if err != nil {
		return false, err
	}
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable).Scan(&exists); err != nil || !exists {
		return false, err
	}
	var applied int
	err = pool.QueryRow(ctx, `SELECT count(DISTINCT version_id) FROM `+versionTable+` WHERE is_applied AND version_id > 0`).Scan(&applied)
	return applied >= len(entries), err
}

func with(ctx context.Context, pool *pgxpool.Pool, do func(*goose.Provider) error) error {
	if err := ensureSchema(ctx, pool); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func(db *sql.DB) { _ = db.Close() }(db)

	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithSessionLocker(sessionLock{}),
		goose.WithDisableGlobalRegistry(true),
		goose.WithTableName(versionTable))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := do(provider); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// ensureSchema makes the schema that the version table is in. It asks first:
// CREATE SCHEMA IF NOT EXISTS needs its privilege even if there is nothing to do.
func ensureSchema(ctx context.Context, pool *pgxpool.Pool) error {
	var exists bool
	if err := pool.QueryRow(ctx, `SELECT to_regnamespace('outbox') IS NOT NULL`).Scan(&exists); err != nil || exists {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS outbox`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "23505" || pgErr.Code == "42P06") {
		return nil // another process made it just now
	}
	return err
}

// sessionLock is the advisory lock that migrating is done under. Goose's own asks
// for it every five seconds, so that eight processes that start together would
// take half a minute. Waiting inside of pg_advisory_lock would hold a snapshot,
// for which CREATE INDEX CONCURRENTLY of the one that migrates would wait.
type sessionLock struct{}

const (
	lockID    = 0x6f7574626f78 // "outbox"
	lockRetry = 100 * time.Millisecond
)

func (sessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, int64(lockID)).Scan(&locked); err != nil || locked {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockRetry):
		}
	}
}

func (sessionLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockID))
	return err
}
