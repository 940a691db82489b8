package outboxtest

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// connection is the one connection that the test, the code under test and the engine share.
type connection struct {
	root pgx.Tx        // the test's transaction
	busy chan struct{} // one slot: a statement is running
	over bool          // the test has ended; guarded by busy
}

// one uses the connection exclusively. When ctx ends, it cancels the running statement but does not close the
// connection, as a pool would.
func (c *connection) one(ctx context.Context, do func(context.Context) error) error {
	select {
	case c.busy <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.busy }()
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.over {
		return errOver
	}
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		bound, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = c.root.Conn().PgConn().CancelRequest(bound)
	})
	err := do(context.WithoutCancel(ctx))
	if !stop() {
		<-cancelled
		if err != nil {
			err = errors.Join(ctx.Err(), err)
		}
	}
	return err
}

// saved runs do in a savepoint and undoes it if it fails.
func (c *connection) saved(ctx context.Context, do func(context.Context) error) error {
	if err := c.control(ctx, `SAVEPOINT outboxtest`); err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return errors.Join(err, c.control(ctx, `ROLLBACK TO SAVEPOINT outboxtest; RELEASE SAVEPOINT outboxtest`))
	}
	return c.control(ctx, `RELEASE SAVEPOINT outboxtest`)
}

// control executes a statement of the package itself.
func (c *connection) control(ctx context.Context, sql string) error {
	return c.root.Conn().PgConn().Exec(ctx, sql).Close()
}

// forEngine makes a savepoint for a statement of the engine, which acts for all tenants. It returns the statement that
// restores the settings of the surrounding transaction that statements of the engine change.
func (c *connection) forEngine(ctx context.Context) (restore string, err error) {
	results, err := c.root.Conn().PgConn().Exec(ctx, `
		SAVEPOINT outboxtest;
		SELECT format('SELECT set_config(''app.tenant_id'', %L, true), set_config(''lock_timeout'', %L, true)',
			coalesce(current_setting('app.tenant_id', true), ''), current_setting('lock_timeout'));
		SELECT set_config('app.tenant_id', '*', true)`).ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[1].Rows[0][0]), nil
}
