package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// withPool runs a command's act on a few connections to the database, with a login that sees rows: to one that row
// security keeps from all rows, everything would seem to be empty, and every act to have nothing to do. A signal ends
// it.
func withPool(ctx context.Context, s settings, act func(context.Context, *pgxpool.Pool) error) error {
	return onPool(ctx, s, refuseBlind, act)
}

// withAnyPool runs a command's act as withPool does, with any login.
func withAnyPool(ctx context.Context, s settings, act func(context.Context, *pgxpool.Pool) error) error {
	return onPool(ctx, s, nil, act)
}

func refuseBlind(ctx context.Context, conn *pgx.Conn) error {
	var blind bool
	err := conn.QueryRow(ctx, blindSQL).Scan(&blind)
	if blind {
		err = errors.New("this login sees the tenant of app.tenant_id, which is not set: add ?app.tenant_id=* or the tenant's id to the database URL")
	}
	return err
}

// blindSQL finds out whether the login has no tenant and none of the policies that need none applies to it.
const blindSQL = `
SELECT EXISTS (
    SELECT FROM pg_class AS jobs
    WHERE jobs.oid = to_regclass('outbox.jobs') AND row_security_active(jobs.oid) AND coalesce(current_setting('app.tenant_id', true), '') = ''
      AND NOT EXISTS (
        SELECT FROM pg_policy AS policy, unnest(policy.polroles) AS role
        WHERE policy.polrelid = jobs.oid AND pg_get_expr(policy.polqual, policy.polrelid) = 'true' AND (role = 0 OR pg_has_role(role, 'USAGE'))))`

func onPool(ctx context.Context, s settings, check func(context.Context, *pgx.Conn) error,
	act func(context.Context, *pgxpool.Pool) error,
) error {
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
	config.AfterConnect = check
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
