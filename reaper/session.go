package reaper

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// statementTimeout limits every statement but one, so that a stalled connection does not stop the reaper. depthTimeout
// is for the one that reads a whole table.
const (
	statementTimeout = 5 * time.Second
	depthTimeout     = 30 * time.Second
)

// openPools opens the connections. Passes over leases and deadlines scan one index for a known number of rows. The
// chores differ: the planner must decide how best to read much data, by the very minute that is asked for (it is at the
// end of a long history: a plan for any minute reads all of it), but with no more processes than the one whose time we
// measure.
func openPools(ctx context.Context, callerPool *pgxpool.Pool) (leases *pgxpool.Pool, on chores, err error) {
	leases, err = pgsession.Open(ctx, callerPool, pgsession.Config{
		Conns: 2, Needs: "reap", Timeout: 10 * time.Second,
		ByIndex: true,
	})
	if err != nil {
		return nil, on, err
	}
	on.pool, err = pgsession.Open(ctx, callerPool, pgsession.Config{
		Conns: 1, Needs: "reap", Timeout: depthTimeout + 5*time.Second,
		Settings: map[string]string{"max_parallel_workers_per_gather": "0", "plan_cache_mode": "force_custom_plan"},
	})
	if err != nil {
		leases.Close()
	}
	return leases, on, err
}

// chores is the connection for everything that can wait. Callers wait for their turn.
type chores struct{ pool *pgxpool.Pool }

// do runs statements, which have timeout from their turn on.
func (c chores) do(ctx context.Context, timeout time.Duration, do func(context.Context, *sqlgen.Queries) error) error {
	return c.turn(ctx, timeout, func(ctx context.Context, conn *pgxpool.Conn) error {
		return do(ctx, sqlgen.New(conn))
	})
}

// inTx runs statements in a transaction.
func (c chores) inTx(ctx context.Context, timeout time.Duration, do func(context.Context, pgx.Tx) error) error {
	return c.turn(ctx, timeout, func(ctx context.Context, conn *pgxpool.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return do(ctx, tx) })
	})
}

func (c chores) turn(ctx context.Context, timeout time.Duration, do func(context.Context, *pgxpool.Conn) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	bound, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return do(bound, conn)
}
