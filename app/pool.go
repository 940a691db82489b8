package app

import (
	"cmp"
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

// openPools opens a pool for the process itself and one for its handlers, which therefore cannot exhaust the process's
// connections. Neither connects yet. Handlers use the caller's pool if there is one; otherwise their pool has as many
// connections as DatabaseURL allows (pool_max_conns).
func openPools(c Config) (own, handlers *pgxpool.Pool, err error) {
	if own, err = OpenPool(c, ownConnections, 0); err != nil {
		return nil, nil, err
	}
	if c.Pool != nil || c.NoDispatch {
		return own, cmp.Or(c.Pool, own), nil
	}
	config, err := poolConfig(c)
	if err == nil {
		handlers, err = openPool(config, 0)
	}
	if err != nil {
		own.Close()
		return nil, nil, err
	}
	return own, handlers, nil
}

// OpenPool opens a pool of up to connections connections for a component of a process with this configuration. Its
// statements wait no longer than lockWait for a lock, unless the login has a lock_timeout; 0 sets no limit. It does not
// connect yet.
func OpenPool(c Config, connections int32, lockWait time.Duration) (*pgxpool.Pool, error) {
	config, err := poolConfig(c)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = connections
	return openPool(config, lockWait)
}

func openPool(config *pgxpool.Config, lockWait time.Duration) (*pgxpool.Pool, error) {
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "posthaste"
	}
	if lockWait > 0 {
		pgsession.PinWithin(config, lockWait)
	} else {
		pgsession.Pin(config)
	}
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

// closePool closes the pool, but does not wait forever for a connection that is never released.
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

// closePools closes the pools that [openPools] opened.
func (p *process) closePools() {
	if p.handlers != p.pool && p.handlers != p.config.Pool {
		closePool(p.handlers)
	}
	closePool(p.pool)
}

func closeComponents(components []Component) {
	for _, c := range components {
		for _, pool := range []*pgxpool.Pool{c.Pool, c.QuickPool} {
			if pool != nil {
				closePool(pool)
			}
		}
	}
}
