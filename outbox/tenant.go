package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Beginner begins transactions: a *pgxpool.Pool, a *pgx.Conn or a [Producer].
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTenant runs fn in a transaction that is tied to a tenant: row-level security,
// ours and that of your own tables, sees app.tenant_id = tenant until the
// transaction ends, and nothing of it is left on the connection. It commits if fn
// returns nil; otherwise it rolls back and returns fn's error.
//
// A policy of yours is, for example
//
//	USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
//
// and must name the role that the pool connects as, which must neither be a
// superuser nor have BYPASSRLS.
func InTenant(ctx context.Context, db Beginner, tenant ID, fn func(tx pgx.Tx) error) error {
	if tenant.IsZero() {
		return errors.New("begin for a tenant: its id is zero")
	}
	return inTenant(ctx, db, tenant.String(), fn)
}

// InAllTenants is InTenant for every tenant at once: app.tenant_id is *, which our
// policies know. It is for operators.
func InAllTenants(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) error {
	return inTenant(ctx, db, "*", fn)
}

func inTenant(ctx context.Context, db Beginner, tenant string, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('app.tenant_id', $1, true)`, tenant); err != nil {
			return fmt.Errorf("set the transaction's tenant: %w", err)
		}
		return fn(tx)
	})
}

// Tx runs fn in a transaction on the pool that the dispatcher was given, tied to
// the job's tenant as [InTenant] says. It may call [Claimed.Complete] or
// [Claimed.Guard] with it. The context must be the handler's or come from it;
// where there is no dispatcher, as in a handler's own test, use [WithPool].
func (c *Claimed) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	db, ok := ctx.Value(poolKey{}).(Beginner)
	if !ok {
		return fmt.Errorf("begin for job %s: the context does not come from a dispatcher", c.ID)
	}
	return InTenant(ctx, db, c.Tenant, fn)
}

type poolKey struct{}

// WithPool returns a context in which [Claimed.Tx] begins its transactions on db.
func WithPool(ctx context.Context, db Beginner) context.Context {
	return context.WithValue(ctx, poolKey{}, db)
}
