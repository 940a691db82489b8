package await

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// openPool opens the one connection for the waiter's queries, with the settings of the user's pool. The waiter needs
// its own, because waiting handlers and requests may hold all of that pool's connections.
func openPool(ctx context.Context, user *pgxpool.Pool) (*pgxpool.Pool, error) {
	return pgsession.Open(ctx, user, pgsession.Config{Conns: 1, Timeout: 10 * time.Second, ByIndex: true})
}
