package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/dsn"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// Config configures a Listener. Its zero value is a sane production setup.
type Config struct {
	// AppName names the process to Postgres, at most 54 bytes: pg_stat_activity
	// shows the listener's connection as "<AppName>-listener". Empty means
	// "posthaste".
	AppName string

	// Pool supplies the connection settings if there is no connection string, including hooks, TLS settings and
	// dialler, so that a login made in code (IAM, Cloud SQL) suffices. The listener uses none of the pool's own
	// connections.
	Pool *pgxpool.Pool

	// Canary sends the canaries; normally it is the pool that producers and dispatchers use, so that the canary takes
	// the path of a real notification. If it fails or is nil, the listener sends the canary over a short-lived
	// connection of its own, so that a broken pool is not mistaken for a listener that receives nothing.
	Canary Sender

	// CanaryInterval is the pause between two canaries. A canary that is not back within this time, or within five
	// seconds if that is less, counts as lost. Zero means 30 s, which makes at most two queries a minute.
	CanaryInterval time.Duration

	// AlsoWake signals are set together with the listener's wake signal: each receiver needs its own.
	AlsoWake []Signal

	// ByPayload maps payloads to signals that are set by notifications with that payload, and whenever one may have
	// been missed. Those notifications set the wake signal and AlsoWake, too.
	ByPayload map[string]Signal

	// OnListening is called with every change of Listening, one call at a time. A slow one delays reconnecting, but
	// never pins a connection. Nil means no call.
	OnListening func(listening bool)

	// Logger gets one line at Info or Warn per change of state, and one at Debug per attempt. Nil logs nothing.
	Logger *slog.Logger

	// Registerer gets the metrics. Only one listener can use it. Nil does not publish them.
	Registerer prometheus.Registerer

	patience time.Duration // how long a canary may take; 0 derives it from CanaryInterval
}

// A Sender executes the NOTIFY of a canary, and gives up when ctx ends. A *pgxpool.Pool is one.
type Sender interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

const (
	defaultAppName        = "posthaste"
	defaultCanaryInterval = 30 * time.Second
	maxCanaryPatience     = 5 * time.Second
	connectTimeout        = 5 * time.Second

	maxIdentifier = 63 // bytes; Postgres cuts off what is longer
	appSuffix     = "-listener"
)

var channelName = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

// A connector returns the settings for the next connection.
type connector func(context.Context) (*pgx.ConnConfig, error)

// validate reports every mistake, and returns the connector.
func (c Config) validate(connString, channel string, wake Signal) (connector, error) {
	var errs []error
	pool, err := c.parse(connString)
	if err != nil {
		errs = append(errs, err)
	}
	if len(channel) > maxIdentifier || !channelName.MatchString(channel) {
		errs = append(errs, fmt.Errorf("channel is %q, want 1 to %d letters, digits and underscores", channel,
			maxIdentifier))
	}
	if cap(wake) != 1 {
		errs = append(errs, fmt.Errorf("the wake signal has %d slots, want 1 (see NewSignal)", cap(wake)))
	}
	for _, also := range c.AlsoWake {
		if cap(also) != 1 {
			errs = append(errs, fmt.Errorf("a signal of AlsoWake has %d slots, want 1 (see NewSignal)", cap(also)))
		}
	}
	for payload, by := range c.ByPayload {
		if cap(by) != 1 {
			errs = append(errs, fmt.Errorf("the signal of payload %q has %d slots, want 1 (see NewSignal)", payload,
				cap(by)))
		}
	}
	if longest := maxIdentifier - len(appSuffix); len(c.AppName) > longest {
		errs = append(errs, fmt.Errorf("AppName has %d bytes, want at most %d", len(c.AppName), longest))
	}
	if c.CanaryInterval < 0 {
		errs = append(errs, fmt.Errorf("CanaryInterval is %s, want a positive duration", c.CanaryInterval))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}

	name := cmp.Or(c.AppName, defaultAppName) + appSuffix
	return func(ctx context.Context) (*pgx.ConnConfig, error) {
		conn, err := pgsession.ConnConfig(ctx, pool)
		if err != nil {
			return nil, fmt.Errorf("prepare to connect: %w", err)
		}
		conn.RuntimeParams["application_name"] = name
		conn.ConnectTimeout = cmp.Or(conn.ConnectTimeout, connectTimeout)
		// LISTEN works on the primary only. A standby counts as a failed attempt, so that the next host of the string,
		// or a later try, finds the primary.
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		conn.OnNotification = nil // it would intercept the notifications
		conn.Tracer = nil
		return conn, nil
	}, nil
}

// parse parses a connection string as a pool does, including pool parameters. Its errors do not quote the string: pgx
// masks passwords in what it quotes, but cannot find every one in a malformed string.
func (c Config) parse(connString string) (*pgxpool.Config, error) {
	if connString == "" && c.Pool != nil {
		return c.Pool.Config(), nil
	}
	if connString == "" {
		return nil, errors.New("the connection string is empty")
	}
	config, err := pgxpool.ParseConfig(connString)
	if err := dsn.Explain(connString, err); err != nil {
		return nil, fmt.Errorf("the connection string is malformed (it may hold a password and is not shown): %w", err)
	}
	return config, nil
}
