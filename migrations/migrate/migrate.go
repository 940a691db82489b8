// Package migrate applies the schema of package migrations, whose numbered files goose
// applies. A program that leaves that to others, as to "posthaste migrate up", compiles no goose.
package migrate

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/posthaste-dev/posthaste/migrations"
)

// Up brings the schema to the state of this build, and takes no lock where it is in it. It is safe to call from many
// processes at once: one migrates, the others wait, for two minutes at most. A database that a newer build has
// migrated is left as it is, and so is one that was made by other texts of numbered files than ours, which is an error.
//
// No statement waits longer for a lock than 10 ms, because everybody who
// wants the same table would wait behind it. Up then undoes what it has begun and tries
// again, for two minutes at most; the error names who has the lock.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	return migrations.Apply(ctx, pool, ApplyNumbered)
}

// ApplyNumbered applies the numbered files that the database lacks, each in a transaction.
// Up does so, and then makes functions and views.
func ApplyNumbered(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer func(db *sql.DB) { _ = db.Close() }(db)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS,
		goose.WithSessionLocker(new(migrations.SessionLock)),
		goose.WithDisableGlobalRegistry(true),
		goose.WithAllowOutofOrder(true), // they only add, and what is made at the same time has agreed numbers
		goose.WithTableName(migrations.VersionTable))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
