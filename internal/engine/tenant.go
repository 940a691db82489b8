package engine

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// AllTenants is the app.tenant_id of a transaction that sees every tenant. Our policies recognize it.
const AllTenants = "*"

// InTenant does what outbox.InTenant does, and also accepts [AllTenants].
func InTenant(ctx context.Context, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, tenant string, fn func(tx pgx.Tx) error,
) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var was, is string
		set := tx.QueryRow(ctx,
			`SELECT coalesce(was, ''), set_config('app.tenant_id', $1, true) FROM current_setting('app.tenant_id', true) AS was`, tenant)
		if err := set.Scan(&was, &is); err != nil {
			return fmt.Errorf("set the transaction's tenant: %w", err)
		}
		if err := fn(tx); err != nil {
			return err
		}
		if _, outer := db.(pgx.Tx); !outer { // a setting outlives the savepoint that made it
			return nil
		}
		if _, err := tx.Exec(ctx, `SELECT set_config('app.tenant_id', $1, true)`, was); err != nil {
			return fmt.Errorf("set back the transaction's tenant: %w", err)
		}
		return nil
	})
}
