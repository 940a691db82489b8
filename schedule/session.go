package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementTimeout bounds a transaction: a stalled connection must not stop the
// scheduler.
const statementTimeout = 5 * time.Second

const sqlstateReadOnly = "25006" // read_only_sql_transaction: a failover left us on a standby

// begin makes a transaction that the server ends by itself when this process
// falls silent in the middle: what it has locked nobody else can fire. The
// settings are the transaction's own, so that they hold behind a pooler too.
const begin = `BEGIN ISOLATION LEVEL READ COMMITTED;
	SET LOCAL idle_in_transaction_session_timeout = '5s';
	SET LOCAL statement_timeout = '5s';
	SET LOCAL lock_timeout = '2s'`

func (s *Scheduler) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{BeginQuery: begin}, do)
}

// openPool opens one connection with the settings of the user's pool.
func openPool(ctx context.Context, user *pgxpool.Pool) (*pgxpool.Pool, error) {
	config := user.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, 1
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = statementTimeout
	}
	// A ping before each look would double what an idle process asks; a connection
	// that is gone costs one look, which is made again at once.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

func sqlstate(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// leaveReadOnly leaves a server that turned read-only: all connections to it are
// closed, and the next ones go to whatever the connection string resolves to then.
func (s *Scheduler) leaveReadOnly(err error) {
	if sqlstate(err) == sqlstateReadOnly {
		s.pool.Reset()
		s.user.Reset()
	}
}
