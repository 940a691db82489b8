package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/posthaste-dev/posthaste/internal/engine"
)

// A Beginner begins transactions: a *pgxpool.Pool, a *pgx.Conn, a [Producer], or a pgx.Tx, in which it makes a
// savepoint.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTenant runs fn in a transaction that is bound to a tenant: row-level security, ours and that of your own tables,
// sees app.tenant_id = tenant until the transaction ends, and the setting does not stay on the connection. InTenant
// commits if fn returns nil; otherwise it rolls back and returns fn's error. If db is a pgx.Tx, all of this applies to
// a savepoint, after which the transaction around it has its own app.tenant_id again.
//
// Your policy is, for example
//
//	USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
//
// and must name the role that the pool connects as, which must neither be a superuser nor have BYPASSRLS.
func InTenant(ctx context.Context, db Beginner, tenant ID, fn func(tx pgx.Tx) error) error {
	if tenant.IsZero() {
		return errors.New("begin for a tenant: its id is zero")
	}
	return engine.InTenant(ctx, db, tenant.String(), fn)
}

// Tx runs fn in a transaction on c.DB, the pool that the dispatcher was given, bound to the job's tenant by [InTenant].
// fn may call [Claimed.Complete] or [Claimed.Guard] with that transaction.
func (c *Claimed) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	if c.DB == nil {
		return fmt.Errorf("begin for job %s: it has no DB, as a dispatcher gives it", c.ID)
	}
	return InTenant(ctx, c.DB, c.Tenant, fn)
}
