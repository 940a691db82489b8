package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementTimeout bounds every statement but one: a stalled connection must not
// stop the reaper. depthTimeout is for the one that reads a whole table.
const (
	statementTimeout = 5 * time.Second
	depthTimeout     = 30 * time.Second
)

// SQLSTATEs that we act on.
const (
	sqlstateReadOnly         = "25006" // read_only_sql_transaction: a failover left us on a standby
	sqlstateQueryCanceled    = "57014"
	sqlstateLockNotAvailable = "55P03"
	sqlstateUndefinedTable   = "42P01"
)

func sqlstate(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// The passes over leases and deadlines walk one index for a known number of rows; a plan
// made from old statistics would read the whole table. The chores are of the
// other kind: how best to read much is for the planner to say, but not with more
// processes than the one whose time we measure. Both rely on read committed, whatever
// the database's default is: a row that changed meanwhile is looked at again.
const (
	leaseSettings = `
		SET enable_seqscan = off;
		SET enable_bitmapscan = off;
		SET enable_hashjoin = off;
		SET enable_mergejoin = off;
		SET jit = off;
		SET default_transaction_isolation = 'read committed';
		SET statement_timeout = '10s';
		SET lock_timeout = '2s'`
	choreSettings = `
		SET jit = off;
		SET default_transaction_isolation = 'read committed';
		SET max_parallel_workers_per_gather = 0;
		SET statement_timeout = '35s';
		SET lock_timeout = '2s'`
)

func (r *Reaper) openPools(ctx context.Context) (err error) {
	if r.leases, err = openPool(ctx, r.user, leaseSettings, 2); err != nil {
		return err
	}
	if r.chores, err = openPool(ctx, r.user, choreSettings, 1); err != nil {
		r.leases.Close()
	}
	return err
}

// openPool opens connections with the settings of the user's pool.
func openPool(ctx context.Context, user *pgxpool.Pool, settings string, conns int32) (*pgxpool.Pool, error) {
	config := user.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, conns
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = statementTimeout
	}
	// A ping before each pass would double what an idle process asks; a
	// connection that is gone costs one pass, which is made again at once.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	after := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		return prepareSession(ctx, conn, settings)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// prepareSession refuses a standby, and makes the settings unless a pooler shares
// its sessions between clients: it hands out a backend's process id of its own.
func prepareSession(ctx context.Context, conn *pgx.Conn, settings string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var pid uint32
	var standby bool
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid(), pg_is_in_recovery()`).Scan(&pid, &standby); err != nil {
		return fmt.Errorf("look at the session: %w", err)
	}
	if standby {
		return &pgconn.PgError{Severity: "ERROR", Code: sqlstateReadOnly, Message: "the server is a standby, nothing can be reaped there"}
	}
	if pid != conn.PgConn().PID() {
		return nil
	}
	if _, err := conn.Exec(ctx, settings); err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

// leaveReadOnly leaves a server that turned read-only: all connections to it are
// closed, and the next ones go to whatever the connection string resolves to then.
func (r *Reaper) leaveReadOnly(err error) {
	if sqlstate(err) == sqlstateReadOnly {
		r.leases.Reset()
		r.chores.Reset()
		r.user.Reset()
	}
}
