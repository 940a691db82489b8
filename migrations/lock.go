package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pooler"
)

const (
	lockID    = 0x6f7574626f78 // "outbox": the advisory lock of a process that migrates
	lockRetry = 100 * time.Millisecond

	patience = 2 * time.Minute // how long Up tries to get the locks of tables
	pause    = time.Second     // roughly, between two tries
)

// settings sets the timeouts of a migration, for the transaction if $1 is true, else for the session. Those of the role
// and the database are for ordinary statements.
const settings = `
	SELECT set_config(name, CASE name WHEN 'lock_timeout' THEN '10ms' ELSE '0' END, $1)
	FROM pg_settings
	WHERE name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`

// refuseShared returns an error behind a pooler in transaction mode: goose's lock and settings would stay on sessions
// that other clients get.
func refuseShared(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	switch shared, err := pooler.Shared(ctx, conn.Conn(), pool.Config()); {
	case err != nil:
		return err
	case shared:
		return errors.New("a connection pooler in transaction mode is in between, and migrations hold a lock of the session: connect to the server itself, or by a pooler in session mode (Supabase: not port 6543; Neon: the host without -pooler)")
	}
	return nil
}

// waiting calls try until it gets the lock or patience has passed. It polls, because waiting in pg_advisory_lock would
// hold a snapshot. The error contains holder's result.
func waiting(ctx context.Context, patience time.Duration, try func() (bool, error), holder func() string) error {
	began := time.Now()
	for {
		if got, err := try(); err != nil || got {
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("gave up after %s: another session migrates, or has the advisory lock %d for something else (%s); run it again when that has ended",
				patience, int64(lockID), holder())
		}
		if err := backoff.Sleep(ctx, lockRetry); err != nil {
			return err
		}
	}
}

// named describes the session a of pg_stat_activity, as far as this role may see it. An autovacuum has no user, and
// yields only to statements that wait longer than deadlock_timeout, which ours do not.
const named = `
	format('pid %s, %s%s%s', a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, a.backend_type, 'a process of the server'),
	    ', for ' || extract(epoch FROM now() - a.xact_start)::integer || ' s',
	    CASE WHEN a.usesysid IS NULL THEN format(' (if it is an autovacuum, a superuser ends it with SELECT pg_cancel_backend(%s); wait for one to prevent wraparound, which begins again)', a.pid) END)`

// lockHolder describes the session that holds the lock.
const lockHolder = `
	SELECT coalesce(string_agg(` + named + `, '; '), 'it has just ended')
	FROM pg_locks AS l
	JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = $1`

// locked calls do in a transaction that holds the lock.
func locked(ctx context.Context, pool *pgxpool.Pool, patience time.Duration,
	do func(context.Context, pgx.Tx) error,
) error {
	return waiting(ctx, patience, func() (got bool, err error) {
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite},
			func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, settings, true); err != nil {
					return err
				}
				if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, int64(lockID)).Scan(
					&got); err != nil ||
					!got {
					return err
				}
				return do(ctx, tx)
			})
		return got, err
	}, func() (who string) {
		if err := pool.QueryRow(ctx, lockHolder, int64(lockID)).Scan(&who); err != nil {
			return err.Error()
		}
		return who
	})
}

// patiently calls do again while it fails because it waited too long for a lock, until patience has passed.
func patiently(ctx context.Context, pool *pgxpool.Pool, patience time.Duration, do func() error) error {
	began := time.Now()
	for {
		err := do()
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pgErr.Code != "55P03" && pgErr.Code != "40P01" { // lock_not_available, deadlock_detected
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("gave up after %s; run it again when the transactions that are open on the schema have ended (%s): %w",
				patience, holders(ctx, pool), err)
		}
		if err := backoff.Sleep(ctx, pause/2+rand.N(pause)); err != nil { //nolint:gosec // no secret
			return err
		}
	}
}

// holders describes the oldest transactions that hold locks on the schema's tables.
func holders(ctx context.Context, pool *pgxpool.Pool) string {
	rows, err := pool.Query(ctx, `
		SELECT `+named+`
		FROM pg_stat_activity AS a
		WHERE a.pid <> pg_backend_pid() AND EXISTS (
		    SELECT
		    FROM pg_locks AS l
		    JOIN pg_class AS c ON c.oid = l.relation
		    WHERE l.pid = a.pid AND l.granted AND c.relnamespace = to_regnamespace('outbox'))
		ORDER BY a.xact_start
		LIMIT 3`)
	if err != nil {
		return err.Error()
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err.Error()
	}
	return strings.Join(list, "; ")
}

// SessionLock gives goose our lock for the numbered files. Goose's own retries every five seconds: eight processes that
// start together would need half a minute.
type SessionLock struct {
	before map[string]string // the session's settings, to restore
}

// SessionLock takes the lock and sets the session's timeouts.
func (l *SessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	err := waiting(ctx, patience, func() (got bool, err error) {
		err = conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, int64(lockID)).Scan(&got)
		return got, err
	}, func() (who string) {
		if err := conn.QueryRowContext(ctx, lockHolder, int64(lockID)).Scan(&who); err != nil {
			return err.Error()
		}
		return who
	})
	if err != nil {
		return err
	}
	return l.set(ctx, conn)
}

func (l *SessionLock) set(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, `
		SELECT name, current_setting(name)
		FROM pg_settings
		WHERE name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	l.before = map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		l.before[name] = value
	}
	if err := rows.Err(); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, settings, false)
	return err
}

// SessionUnlock restores the session's timeouts and releases the lock.
func (l *SessionLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	for name, value := range l.before {
		if _, err := conn.ExecContext(ctx, `SELECT set_config($1, $2, false)`, name, value); err != nil {
			return err
		}
	}
	_, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockID))
	return err
}
