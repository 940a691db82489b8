// Package migrate applies the schema of package migrations with goose. A program that leaves that to "posthaste migrate
// up" need not import it.
package migrate

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/posthaste-dev/posthaste/migrations"
)

// Up brings the schema to the state of this build; if that is its state already, Up takes no lock. Processes may call
// it at once: one migrates, the others wait for up to two minutes. A database that the next release has migrated stays
// unchanged. One that is too new for this build, or was made from other texts of our numbered files, stays unchanged
// and is an error.
//
// No statement waits longer than 10 ms for a lock, because other users of the table would queue behind it: Up then
// undoes its work and retries for up to two minutes. The error names the lock's holder.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	return migrations.Apply(ctx, pool, ApplyNumbered)
}

// ApplyNumbered applies the numbered files that the database lacks, each in a transaction. Up calls it, and then
// applies functions and views.
func ApplyNumbered(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer func(db *sql.DB) { _ = db.Close() }(db)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS,
		goose.WithSessionLocker(new(migrations.SessionLock)),
		goose.WithDisableGlobalRegistry(true),
		goose.WithAllowOutofOrder(true), // numbered files that were written at the same time are independent
		goose.WithTableName(migrations.VersionTable))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
