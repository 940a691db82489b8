package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// withPool runs a command's act on a few connections to the database. A signal
// ends it.
func withPool(ctx context.Context, s settings, act func(context.Context, *pgxpool.Pool) error) error {
	if err := requireDatabase(s); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(s.app.DatabaseURL)
	if err != nil {
		return usagef("database URL: it is malformed")
	}
	config.MaxConns = 4
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, 10*time.Second)
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "posthaste-cli"
	}
	pgsession.Pin(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()

	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return act(ctx, pool)
}
