package migrations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ApplyWithin brings the schema up to date as Apply does, with a patience of its own.
func ApplyWithin(ctx context.Context, pool *pgxpool.Pool, numbered func(context.Context, *pgxpool.Pool) error, patience time.Duration) error {
	return patiently(ctx, pool, patience, func() error { return up(ctx, pool, numbered, patience) })
}

// Named names the session a of pg_stat_activity.
const Named = named
