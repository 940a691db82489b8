// Package migrations holds the SQL files of the schema outbox, compares a database with them, and removes the schema.
// Package migrate applies them; it is separate, so that only programs that migrate compile goose.
//
//	state, err := migrations.Look(ctx, pool)
//	if err == nil && !state.Usable() { … } // state and state.Remedy() say why, and what to do
//
// Numbered files create tables and indexes and are applied once. Those in functions and views are current definitions:
// if one of them has changed, the next Up applies them again. The database records a checksum of each file; see [Look].
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/foreign"
)

// FS is the files of the schema.
//
//go:embed *.sql functions/*.sql views/*.sql takeover/*.sql
var FS embed.FS

// VersionTable is goose's table of the numbered files that are applied. It is in our schema, because a role may lack
// the right to create tables in the schema public.
const VersionTable = "outbox.schema_version"

// Apply brings the schema to the state of this build. numbered applies the numbered files that the database lacks. Call
// migrate.Up, which passes it.
func Apply(ctx context.Context, pool *pgxpool.Pool, numbered func(context.Context, *pgxpool.Pool) error) error {
	if err := patiently(ctx, pool, patience, func() error { return up(ctx, pool, numbered, patience) }); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// refuseForeign returns an error for a database that is not Postgres, or is one that is too old.
func refuseForeign(ctx context.Context, pool *pgxpool.Pool) error {
	var version string
	if err := pool.QueryRow(ctx, `SELECT version()`).Scan(&version); err != nil {
		return err
	}
	if refusal := foreign.Refusal(version); refusal != "" {
		return errors.New(refusal)
	}
	return nil
}

func up(ctx context.Context, pool *pgxpool.Pool, numbered func(context.Context, *pgxpool.Pool) error,
	patience time.Duration,
) error {
	state, err := Look(ctx, pool)
	switch {
	case err != nil:
		return err
	case state.Usable():
		return secureAgain(ctx, pool, patience)
	case state.Condition == TooNew || state.Condition == Edited && isNumbered(state.File):
		return fmt.Errorf("%s; %s", state, state.Remedy())
	}
	if err := ensureSchema(ctx, pool); err != nil {
		return err
	}
	if err := refuseInbox(ctx, pool); err != nil {
		return err
	}
	if err := locked(ctx, pool, patience, takeOver); err != nil {
		return err
	}
	if err := refuseShared(ctx, pool); err != nil {
		return err
	}
	if err := numbered(ctx, pool); err != nil {
		return err
	}
	return locked(ctx, pool, patience, recreate)
}

// blindOwners selects the owners of our tables from whom row-level security hides all rows: after REASSIGN OWNED, the
// policies still name the previous owner.
const blindOwners = `
	SELECT DISTINCT c.relowner
	FROM pg_policy AS p
	JOIN pg_class AS c ON c.oid = p.polrelid
	WHERE c.relnamespace = to_regnamespace('outbox') AND p.polname = 'owner'
	  AND NOT EXISTS (SELECT FROM unnest(p.polroles) AS named WHERE pg_has_role(c.relowner, named, 'USAGE'))`

// secureAgain calls outbox.secure() if row-level security hides rows from the owner and this role may change that.
// Otherwise it takes no lock: each pod of a deployment may call it at its start.
func secureAgain(ctx context.Context, pool *pgxpool.Pool, patience time.Duration) error {
	var may bool
	err := pool.QueryRow(ctx, `SELECT coalesce(bool_and(pg_has_role(relowner, 'USAGE')), false) FROM (`+blindOwners+
		`) AS blind`).Scan(&may)
	if err != nil || !may {
		return err
	}
	return locked(ctx, pool, patience, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT outbox.secure()`)
		return err
	})
}

// recreate applies functions and triggers, and the views that have changed, sets grants and row-level security, and
// records the files.
func recreate(ctx context.Context, tx pgx.Tx) error {
	state, recorded, err := look(ctx, tx)
	if err != nil || state.Usable() || state.Condition == TooNew {
		return err // another process has migrated meanwhile, perhaps a newer build
	}
	for _, f := range files() {
		if f.numbered() || f.isView() && recorded[f.name].checksum == f.checksum {
			continue // replacing a view waits for its readers
		}
		if _, err := tx.Exec(ctx, f.text); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if _, err := tx.Exec(ctx, finish); err != nil {
		return err
	}
	return record(ctx, tx, files())
}

// finish ends each migration: it creates the coming days of the history and the events, and sets grants and policies.
const finish = `SELECT outbox.ensure_days(14); SELECT outbox.secure();`

// ensureSchema creates the schema for the version table. It looks first, because CREATE SCHEMA IF NOT EXISTS needs its
// privilege even if the schema exists.
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

// refuseInbox returns an error if a consumer has created its tables by inbox.DDL: the numbered files create them, too.
func refuseInbox(ctx context.Context, pool *pgxpool.Pool) error {
	var alone bool
	err := pool.QueryRow(ctx, `SELECT to_regclass('outbox.jobs') IS NULL
		AND coalesce(to_regclass('outbox.inbox'), to_regclass('outbox.inbox_positions')) IS NOT NULL`).Scan(&alone)
	if err == nil && alone {
		err = errors.New("the database has the tables of inbox.DDL, and nothing else of Posthaste. Stop its consumers, move the tables away " +
			"(CREATE SCHEMA inbox_before; ALTER TABLE outbox.inbox SET SCHEMA inbox_before; ALTER TABLE outbox.inbox_positions SET SCHEMA inbox_before), " +
			"migrate, and copy their rows back (INSERT INTO outbox.inbox SELECT * FROM inbox_before.inbox; " +
			"INSERT INTO outbox.inbox_positions SELECT * FROM inbox_before.inbox_positions)")
	}
	return err
}

// lastOfOldChain is the number of the last migration before they were squashed. The first takenOver numbered files
// replace that chain.
const (
	lastOfOldChain = 24
	takenOver      = 2
)

// takeOver turns a database of the old chain into one of this chain, without touching its data. It does nothing to
// other databases.
func takeOver(ctx context.Context, tx pgx.Tx) error {
	versions, ofOldChain, err := oldChain(ctx, tx)
	if err != nil || !ofOldChain {
		return err
	}
	for i := range max(lastOfOldChain, len(versions)) {
		if len(versions) != lastOfOldChain || versions[i] != int64(i+1) {
			return fmt.Errorf("this database was made before the migrations were squashed, and has %d of the %d that there were. Run \"posthaste migrate up\" of the last build with all of them (commit f5c5a88) first, then this one", len(versions), lastOfOldChain)
		}
	}
	text, err := FS.ReadFile("takeover/24.sql")
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, string(text)); err != nil {
		return fmt.Errorf("takeover/24.sql: %w", err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM `+VersionTable+` WHERE version_id > $1`, takenOver); err != nil {
		return err
	}
	return record(ctx, tx, files()[:takenOver])
}

// oldChain returns the versions that a database of the old chain has, and whether it is one.
func oldChain(ctx context.Context, tx pgx.Tx) (versions []int64, is bool, err error) {
	err = tx.QueryRow(ctx,
		`SELECT to_regclass('outbox.schema_version') IS NOT NULL AND to_regclass('outbox.schema_files') IS NULL`).Scan(
		&is)
	if err != nil || !is {
		return nil, false, err
	}
	err = tx.QueryRow(ctx, `SELECT coalesce(array_agg(DISTINCT version_id ORDER BY version_id), '{}') FROM `+
		VersionTable+` WHERE is_applied AND version_id > 0`).Scan(&versions)
	return versions, len(versions) > 0, err
}
