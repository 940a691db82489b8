package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementTimeout bounds every statement of the dispatcher: a stalled connection
// must not stop a queue or let leases lapse.
const statementTimeout = 5 * time.Second

// serverTimeout is how long the server may go on with a statement that nobody
// waits for any more; see the statement_timeout below.
const serverTimeout = 10 * time.Second

// openControlPool opens connections of the dispatcher's own, with the settings of
// the user's pool.
func openControlPool(ctx context.Context, user *pgxpool.Pool, conns int) (*pgxpool.Pool, error) {
	config := user.Config()
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = int32(conns)
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = statementTimeout
	}
	// A ping before each statement would double the queries of an idle process; a
	// broken connection shows in the statement, which is tried again.
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
		return nil, fmt.Errorf("open control pool: %w", err)
	}
	return pool, nil
}

// prepareSession makes plans and durability of our own sessions independent of
// statistics and of the server's settings. Our statements all walk one index for
// a known number of rows; a generic plan made while the table was empty would
// read the whole table once it is not.
//
// What a statement of 2000 jobs needs, about a megabyte, glibc's malloc gives back to the
// operating system at its end, and the next statement has it given again, page by page. It
// keeps up to twice the largest block that was ever freed (M_TRIM_THRESHOLD), so one of a
// megabyte is.
//
// Behind a pooler that shares sessions between clients nothing may be set; there
// pgx has to be told to use unnamed statements anyway, which are planned afresh
// each time. The backend's process id tells: a pooler hands out one of its own.
//
// The pool gives AfterConnect no deadline: a server that accepts and then falls
// silent would hold the one connection for extensions until TCP gives up.
func prepareSession(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var pid uint32
	var readOnly bool
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid(), pg_is_in_recovery()`).Scan(&pid, &readOnly); err != nil {
		return fmt.Errorf("look at the session: %w", err)
	}
	if readOnly {
		return &pgconn.PgError{Severity: "ERROR", Code: sqlstateReadOnly, Message: "the server is a standby, it cannot lease jobs"}
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
		SELECT octet_length('0'::bit(8000000));
		SET plan_cache_mode = force_generic_plan;
		SET statement_timeout = '10s';
		SET lock_timeout = '2s';
		SET default_transaction_isolation = 'read committed';
		SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`)
	if err != nil {
		return fmt.Errorf("prepare the session: %w", err)
	}
	return nil
}

// SQLSTATEs that we act on.
const (
	sqlstateReadOnly = "25006" // read_only_sql_transaction: a failover left us on a standby
	sqlstateCheck    = "23514" // check_violation: without a constraint's name, no partition takes the row
	sqlstateLocked   = "55P03" // lock_not_available: a lock_timeout
)

func isNoPartition(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == sqlstateCheck && pgErr.ConstraintName == ""
}

func sqlstate(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// bounded is the context of one statement.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, statementTimeout)
}

// noteError remembers what the database answered, for Ready, and leaves a server
// that turned read-only: its connections are closed, and the next ones go to
// whatever the connection string resolves to then. When a connection broke, the
// others to the same server are as good as broken.
func (d *Dispatcher) noteError(err error) {
	state := sqlstate(err)
	d.health.set(err)
	if state == "" || state == sqlstateReadOnly {
		d.pool.Reset()
	}
	if state == sqlstateReadOnly {
		d.user.Reset()
	}
}

// refusesTheRow reports whether a statement failed because of some of its rows,
// so that others may go through: everything but trouble with the connection (08),
// a transaction that may be repeated (40), the schema or our rights (3F, 42), the
// server's resources (53), its being stopped (57) or broken (58, XX), and a server
// that is read-only.
func refusesTheRow(state string) bool {
	if len(state) != 5 || state == sqlstateReadOnly {
		return false
	}
	switch state[:2] {
	case "08", "3F", "40", "42", "53", "57", "58", "XX":
		return isLockedOut(state)
	}
	return true
}

// isLockedOut reports whether a statement waited for a row for too long: a lock
// timeout, a statement timeout, a deadlock.
func isLockedOut(state string) bool {
	return state == sqlstateLocked || state == "57014" || state == "40P01"
}

// isUnreachable reports whether there was no connection to send the statement on.
func isUnreachable(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// isGone reports whether no server answered, or one that stops, begins or is read-only.
// Where one statement goes through then, the others do.
func isGone(err error) bool {
	state := sqlstate(err)
	return len(state) != 5 || state == sqlstateReadOnly || state[:2] == "08" || (state[:2] == "57" && !isLockedOut(state))
}

// isUnacceptable reports whether what was to be stored can never be: bad data
// (22), a constraint (23), a limit of the server (54).
func isUnacceptable(state string) bool {
	return len(state) == 5 && (state[:2] == "22" || state[:2] == "23" || state[:2] == "54")
}
