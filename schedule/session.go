package schedule

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// statementTimeout limits a transaction, so that a stalled connection does not stop the scheduler.
const statementTimeout = 5 * time.Second

// begin starts a transaction that the server ends if this process falls silent in the middle: no other process can fire
// the schedules that it has locked. The settings are local to the transaction, so they also hold behind a pooler.
const begin = `BEGIN ISOLATION LEVEL READ COMMITTED;
	SET LOCAL idle_in_transaction_session_timeout = '5s';
	SET LOCAL statement_timeout = '5s';
	SET LOCAL lock_timeout = '2s'`

func transact(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: begin}, do)
}

func openPool(ctx context.Context, user *pgxpool.Pool) (*pgxpool.Pool, error) {
	return pgsession.Open(ctx, user, pgsession.Config{Conns: 1, Needs: "fire schedules", Timeout: statementTimeout})
}
