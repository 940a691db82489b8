package changefeed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ListActs returns whose things operators have acted on since a link of the audit's chain: a queue, a key, a schedule,
// a sink or an operation, but not a job. A tenant is zero if the act concerns all tenants. It also returns the latest
// link.
func ListActs(ctx context.Context, tx pgx.Tx, after int64) (tenants []outbox.ID, latest int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := sqlgen.New(tx).ListActsSince(ctx, after)
	if err != nil {
		return nil, 0, fmt.Errorf("list acts: %w", err)
	}
	for _, row := range rows {
		latest = row.Latest
		if row.Link > 0 {
			tenants = append(tenants, row.TenantID.Bytes)
		}
	}
	return tenants, latest, nil
}
