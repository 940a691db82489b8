// Package migrations holds the schema outbox as SQL files, compares a database with them
// and removes them from it. Package migrate applies them: it is apart because goose is.
//
// Numbered files make tables and indexes, and are applied once. The files in functions make
// functions and their triggers, those in views make views: they hold what is wanted, and
// an Up that finds one of them changed makes all of it so again. What a database was made of is
// recorded in it with checksums; see Look.
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

// VersionTable records the numbered files, as goose does it. It is in our own schema, where
// a role that may not create anything in public can make it.
const VersionTable = "outbox.schema_version"

// Apply brings the schema to the state of this build, with numbered to apply the numbered
// files that the database lacks; package migrate has the one to call.
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

// blindOwners are the owners of tables whom row security does not let through, as after REASSIGN OWNED: the policies
// name the one from before, and functions that run as the owner see no rows.
const blindOwners = `
	SELECT DISTINCT c.relowner
	FROM pg_policy AS p
	JOIN pg_class AS c ON c.oid = p.polrelid
	WHERE c.relnamespace = to_regnamespace('outbox') AND p.polname = 'owner'
	  AND NOT EXISTS (SELECT FROM unnest(p.polroles) AS named WHERE pg_has_role(c.relowner, named, 'USAGE'))`

// secureAgain lets an owner through who does not get through, if this role may. It takes no lock if there is nothing to
// do: each pod of a deployment may ask at its start.
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

// recreate makes functions, triggers and views what their files say, sets grants and row security, and records of what
// the schema is made.
func recreate(ctx context.Context, tx pgx.Tx) error {
	state, recorded, err := look(ctx, tx)
	if err != nil || state.Usable() || state.Condition == TooNew {
		return err // another process, or a newer build, has come between
	}
	for _, f := range files() {
		if f.numbered() || f.isView() && recorded[f.name].checksum == f.checksum {
			continue // to replace a view waits for those who read it
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

// finish ends each migration: the next days of the history and the events, and who may do what.
const finish = `SELECT outbox.ensure_days(14); SELECT outbox.secure();`

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

// refuseInbox returns an error where a consumer has made its tables by inbox.DDL, which the numbered files make, too.
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

// lastOfOldChain is the number of the newest migration before they were squashed, and
// takenOver how many numbered files stand for them now.
const (
	lastOfOldChain = 24
	takenOver      = 2
)

// takeOver turns a database of the old chain into one of this chain: nothing of its data is
// touched. Other databases are left as they are.
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
