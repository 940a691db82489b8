// Package pgsession sets up the sessions in which our statements run, and classifies their errors. The meaning of a
// statement must not depend on the settings of a role, a database or a server: every connection that we open gets the
// same settings.
//
// Some settings are part of the connection request: poolers that share sessions between clients (transaction poolers)
// keep these for each client. The others are set right after connecting, except behind such a pooler, where they would
// affect other clients, too. Such a pooler reports to its clients a process id of its own, which differs from that of
// the backend.
//
// Settings that decide how much is logged, what is fast and where things are stored are left alone; so are, on purpose:
//
//   - default_transaction_read_only: an administrator who sets it wants no writes just now
//     (some services set it when the disk is full). Such a server is left like a standby.
//   - search_path: our statements name their schema, and triggers of users may need theirs.
//   - statement_timeout, lock_timeout and the timeouts of transactions in sessions that act
//     for a user ([Pin]): an administrator may bound these. [Open] sets them, and [PinWithin] a lock_timeout where
//     there is none.
//   - session_replication_role, lc_messages and others that need a superuser.
package pgsession

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout bounds connecting for pools whose owner has set no bound, and the check of a new session: a server
// that accepts and then falls silent would block either until TCP gives up.
const connectTimeout = 5 * time.Second

// atStart holds the settings in the connection request. Go strings are UTF-8; the other settings make output and input
// the same everywhere.
var atStart = map[string]string{
	"client_encoding":             "UTF8",
	"datestyle":                   "ISO, MDY",
	"timezone":                    "UTC",
	"standard_conforming_strings": "on",
}

// afterwards holds the settings that are made once a session is known to be ours alone.
var afterwards = map[string]string{
	"intervalstyle":                  "postgres",
	"bytea_output":                   "hex",
	"extra_float_digits":             "1",
	"array_nulls":                    "on",
	"transform_null_equals":          "off",
	"quote_all_identifiers":          "off",
	"row_security":                   "on",
	"exit_on_error":                  "off",
	"default_transaction_isolation":  "read committed",
	"default_transaction_deferrable": "off",
	"idle_session_timeout":           "0",
	"synchronous_commit":             "on", // if it is off: what is acknowledged to a broker or client is stored

	// A client that vanishes, or whose connection a firewall drops, does not close its session. With the kernel's
	// settings the server would notice after two hours, and for so long a transaction that is idle would keep its
	// locks, such as that of a job's row after Guard. With these settings the server notices after 11 s.
	// tcp_user_timeout is not set: it would also end the session of a living client that reads a large result slowly.
	// Unix sockets ignore these settings.
	"tcp_keepalives_idle":     "5",
	"tcp_keepalives_interval": "2",
	"tcp_keepalives_count":    "3",
}

// inOwnPools holds more settings for pools that work on their own, with deadlines of their own.
var inOwnPools = map[string]string{
	"jit":                                 "off",
	"transaction_timeout":                 "0",
	"idle_in_transaction_session_timeout": "10s",
	// It is not longer than twice deadlock_timeout, a second, so that our statements lose each deadlock: when the
	// other's wait closes the circle, ours has either waited for less than a second, and is the first to look for
	// deadlocks, or it gives up before the other looks.
	"lock_timeout": "2s",
}

// byIndex is for statements that scan one index for a known number of rows: a plan made from old statistics would read
// the whole table.
var byIndex = map[string]string{
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
}

// Config describes the purpose of one of our pools.
type Config struct {
	Conns    int
	Timeout  time.Duration     // after which the server cancels a statement, for which nobody may be waiting
	ByIndex  bool              // all of its statements scan one index for a known number of rows
	Settings map[string]string // besides those of every session
	Defaults map[string]string // limits of sessions that have none: whose setting is 0
	Warm     string            // a statement for every new session; "" for none

	// Needs says what cannot be done on a standby, such as "lease jobs": then connecting to a standby fails. With ""
	// any server will do.
	Needs string
}

// Open opens a pool with the settings of the user's pool, for statements that are tried again when they fail. It does
// not connect yet, and the pool outlives ctx: close it.
func Open(ctx context.Context, user *pgxpool.Pool, c Config) (*pgxpool.Pool, error) {
	config := user.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, int32(c.Conns)
	// A ping before each statement would double the queries of an idle process; a broken connection shows in the
	// statement itself.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	settings := maps.Clone(inOwnPools)
	settings["statement_timeout"] = strconv.FormatInt(c.Timeout.Milliseconds(), 10)
	if c.ByIndex {
		maps.Copy(settings, byIndex)
	}
	maps.Copy(settings, c.Settings)
	pin(config, settings, c)
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// Pin makes config set up every connection as the package's comment describes. Hooks of config still run, and run
// first. A connection to a server that accepts no writes is used for at most a second, so that a pool finds a new
// primary.
func Pin(config *pgxpool.Config) { pin(config, nil, Config{}) }

// PinWithin does what Pin does, for statements that wait no longer than lockWait for a lock, unless the login has a
// limit of its own.
func PinWithin(config *pgxpool.Config, lockWait time.Duration) {
	pin(config, nil, Config{Defaults: map[string]string{"lock_timeout": strconv.FormatInt(lockWait.Milliseconds(), 10)}})
}

func pin(config *pgxpool.Config, more map[string]string, c Config) {
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	pinAtStart(config.ConnConfig.RuntimeParams)
	before, after, prepare := config.BeforeConnect, config.AfterConnect, prepareOf(config)
	config.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		if before == nil {
			return nil
		}
		err := before(ctx, conn)
		pinAtStart(conn.RuntimeParams)
		return err
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		conn.PgConn().CustomData()[connectedAt] = time.Now()
		return prepareSession(ctx, conn, more, c)
	}
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if at, _ := conn.PgConn().CustomData()[connectedAt].(time.Time); takesNoWrites(conn) &&
			time.Since(at) > readOnlyLife {
			return false, nil
		}
		if prepare != nil {
			return prepare(ctx, conn)
		}
		return true, nil
	}
}

// prepareOf returns the hook by which the user checks a connection, in either of its forms.
func prepareOf(config *pgxpool.Config) func(context.Context, *pgx.Conn) (bool, error) {
	//lint:ignore SA1019 a user's pool may have the older hook
	if old := config.BeforeAcquire; config.PrepareConn == nil && old != nil {
		return func(ctx context.Context, conn *pgx.Conn) (bool, error) { return old(ctx, conn), nil }
	}
	return config.PrepareConn
}

// pinAtStart overrides params, including names in another spelling: names are case-insensitive.
func pinAtStart(params map[string]string) {
	for name := range params {
		if _, ours := atStart[strings.ToLower(name)]; ours {
			delete(params, name)
		}
	}
	maps.Copy(params, atStart)
}

const (
	connectedAt  = "posthaste.connected_at"
	readOnlyLife = time.Second
)

// takesNoWrites reports whether the server has announced, when we connected or since, that it accepts no writes.
func takesNoWrites(conn *pgx.Conn) bool { return NoWrites(conn) != "" }

// NoWrites returns why a session accepts no writes, as the server has announced it. It returns "" if the session
// accepts writes, or if a pooler in between hides the announcement. It sends no query.
func NoWrites(conn *pgx.Conn) string {
	switch {
	case conn.PgConn().ParameterStatus("in_hot_standby") == "on":
		return "the database is a standby"
	case conn.PgConn().ParameterStatus("default_transaction_read_only") == "on":
		return "the database has default_transaction_read_only on"
	}
	return ""
}

// setAll makes the settings that this server knows, in one round trip, unless a pooler is in between. A pooler reports
// an invented process id of up to 32 bits, which is why $1 is no integer. Another durable setting of synchronous_commit
// stays: local and remote_apply are an operator's decision about standbys.
const setAll = `
	SELECT pg_is_in_recovery(), count(set_config(setting.name, setting.value, false))
	FROM unnest($2::text[], $3::text[]) AS setting(name, value)
	WHERE pg_backend_pid() = $1::bigint
	  AND current_setting(setting.name, true) IS NOT NULL
	  AND (setting.name <> 'synchronous_commit' OR current_setting('synchronous_commit') = 'off')
  AND (setting.name <> ALL ($4::text[]) OR current_setting(setting.name) = '0')`

// Prepare makes the settings in a session that was not opened by a pool of [Pin] or [Open].
func Prepare(ctx context.Context, conn *pgx.Conn) error {
	return prepareSession(ctx, conn, nil, Config{})
}

func prepareSession(ctx context.Context, conn *pgx.Conn, more map[string]string, c Config) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var names, values []string
	defaults := []string{}
	for name := range c.Defaults {
		defaults = append(defaults, name)
	}
	for _, settings := range []map[string]string{afterwards, more, c.Defaults} {
		for name, value := range settings {
			names, values = append(names, name), append(values, value)
		}
	}
	var standby bool
	var set int
	// Unnamed, and without a Describe: every pooler accepts it.
	err := conn.QueryRow(ctx, setAll, pgx.QueryExecModeExec, int64(conn.PgConn().PID()), names, values,
		defaults).Scan(&standby, &set)
	if err != nil {
		return &sessionError{err}
	}
	if standby && c.Needs != "" {
		return &sessionError{
			&pgconn.PgError{Severity: "ERROR", Code: ReadOnly, Message: "the server is a standby, it cannot " +
				c.Needs},
		}
	}
	if set == 0 || c.Warm == "" {
		return nil
	}
	if _, err := conn.Exec(ctx, c.Warm); err != nil {
		return &sessionError{err}
	}
	return nil
}

// sessionError is the reason why a connection could not be set up: no statement of the caller was sent, and the
// server's answer is not about one.
type sessionError struct{ err error }

func (e *sessionError) Error() string { return "prepare the session: " + e.err.Error() }
func (e *sessionError) Unwrap() error { return e.err }

// ConnConfig returns the configuration for a connection outside the pool. It runs the hooks that choose the target and
// the password.
func ConnConfig(ctx context.Context, pool *pgxpool.Config) (*pgx.ConnConfig, error) {
	conn := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, conn); err != nil {
			return nil, err
		}
	}
	pinAtStart(conn.RuntimeParams)
	return conn, nil
}

// LeaveReadOnly leaves a server that turned read-only: it closes all connections to it, and the next ones go to
// whatever the connection string resolves to then.
func LeaveReadOnly(err error, pools ...*pgxpool.Pool) {
	if State(err) == ReadOnly {
		for _, pool := range pools {
			pool.Reset()
		}
	}
}
