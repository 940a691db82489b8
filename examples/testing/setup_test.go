package orders_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// snippet:begin

// openTestDatabase opens one database for all tests of the package. It is for TestMain.
func openTestDatabase(ctx context.Context, url string) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := migrate.Up(ctx, pool); err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item text, reminders int NOT NULL DEFAULT 0)`)
	return pool, err
}

// snippet:end
