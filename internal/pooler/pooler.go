// Package pooler finds out what a connection pooler between us and Postgres does with sessions.
package pooler

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Shared reports whether a pooler in transaction mode is behind conn, with the pool's configuration to connect a
// second time. Such a one gives a transaction the session that was given back last, so two clients that ask alternately
// get the same; in session mode a client keeps its own. Where the server itself is behind conn, it is asked once and
// nothing is connected.
func Shared(ctx context.Context, conn *pgx.Conn, pool *pgxpool.Config) (bool, error) {
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()::bigint`).Scan(&pid); err != nil ||
		pid == conn.PgConn().PID() {
		return false, err
	}
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return false, fmt.Errorf("prepare to connect a second time: %w", err)
		}
	}
	other, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, fmt.Errorf("connect a second time: %w", err)
	}
	defer other.Close(context.WithoutCancel(ctx))
	backends := map[uint32]*pgx.Conn{}
	for range 5 {
		for _, client := range []*pgx.Conn{conn, other} {
			if err := client.QueryRow(ctx, `SELECT pg_backend_pid()::bigint`).Scan(&pid); err != nil {
				return false, err
			}
			if of, known := backends[pid]; known && of != client {
				return true, nil
			}
			backends[pid] = client
		}
	}
	return false, nil
}
