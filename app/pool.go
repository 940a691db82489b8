package app

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/dsn"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	ownConnections = 4 // for canaries, readiness and migrations
	closeTimeout   = 5 * time.Second
)

// openPool opens the process's own connections, which handlers cannot exhaust.
// It connects to nothing yet.
func openPool(c Config) (*pgxpool.Pool, error) { return OpenPool(c, ownConnections) }

// OpenPool opens up to so many connections to where a process with this configuration
// connects to, for one of its components. It connects to nothing yet.
func OpenPool(c Config, connections int32) (*pgxpool.Pool, error) {
	config, err := poolConfig(c)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = connections
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "posthaste"
	}
	pgsession.Pin(config)
	pool, err := pgxpool.NewWithConfig(background, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

func poolConfig(c Config) (*pgxpool.Config, error) {
	if c.DatabaseURL == "" {
		return c.Pool.Config(), nil
	}
	config, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err := dsn.Explain(c.DatabaseURL, err); err != nil {
		return nil, fmt.Errorf("DatabaseURL (it may hold a password and is not shown): %w", err)
	}
	return config, nil
}

// closePool does not wait for ever for a connection that somebody kept.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

func closePools(components []Component) {
	for _, c := range components {
		if c.Pool != nil {
			closePool(c.Pool)
		}
	}
}
