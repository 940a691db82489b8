package await

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const connectTimeout = 5 * time.Second

// openPool opens the one connection on which the waiter asks, with the settings of
// the user's pool: whoever holds connections of that while he waits must not keep
// the waiter from answering.
func openPool(ctx context.Context, user *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := user.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, 1
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// A broken connection shows in the query, which is made again.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	after := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		return prepareSession(ctx, conn)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// prepareSession keeps plans that were made while the tables were small from
// reading them whole, unless a pooler shares its sessions between clients: it hands
// out a backend's process id of its own.
func prepareSession(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return fmt.Errorf("look at the session: %w", err)
	}
	if pid != conn.PgConn().PID() {
		return nil
	}
	_, err := conn.Exec(ctx, `
		SET enable_seqscan = off;
		SET enable_bitmapscan = off;
		SET enable_hashjoin = off;
		SET enable_mergejoin = off;
		SET jit = off;
		SET statement_timeout = '10s'`)
	if err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}
