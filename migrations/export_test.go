package migrations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// UpWithin is Up with a patience of its own.
func UpWithin(ctx context.Context, pool *pgxpool.Pool, patience time.Duration) error {
	return patiently(ctx, pool, patience, func() error { return up(ctx, pool) })
}
