package await

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// openPool opens the one connection on which the waiter asks, with the settings of the
// user's pool: handlers and requests that hold connections of that while they wait must
// not keep the waiter from answering.
func openPool(ctx context.Context, user *pgxpool.Pool) (*pgxpool.Pool, error) {
	return pgsession.Open(ctx, user, pgsession.Config{Conns: 1, Timeout: 10 * time.Second, ByIndex: true})
}
