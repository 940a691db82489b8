package access

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// InTx runs fn in a transaction that is bound to the principal's tenant, or to all of them; see [outbox.InTenant]. On a
// pool that connects as a member of outbox_api, and of no other role of Posthaste, the database then shows and changes
// nothing else, whatever condition the statement lacks.
func InTx(ctx context.Context, db outbox.Beginner, p Principal, fn func(tx pgx.Tx) error) error {
	if p.AllTenants {
		return engine.InTenant(ctx, db, engine.AllTenants, fn)
	}
	return outbox.InTenant(ctx, db, p.Tenant, fn)
}
