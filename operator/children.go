package operator

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Children lists up to limit jobs (0 means 50; at most 200) that were stored at the end of a job: its follow-ups, and
// the job of a death hook, open and closed, newest first, without payloads, results and attempts. For the next page,
// pass the last job's id as before; the zero id begins with the newest. A job that does not exist has no children. In a
// context that [WithTenant] has tied to a tenant, only that tenant's are listed.
func (o *Operator) Children(ctx context.Context, parent, before outbox.ID, limit int) ([]Job, error) {
	most, err := pageLimit("limit", limit)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	params := sqlgen.ListChildrenParams{
		ParentID: pgvalue.UUID(parent), Before: newest, Tenant: pgvalue.UUIDOrNull(tenantIn(ctx)),
		MaxRows: most,
	}
	if !before.IsZero() {
		params.Before = pgvalue.UUID(before)
	}
	var jobs []Job
	err = o.byIndex(ctx, func(db *sqlgen.Queries) error {
		rows, err := db.ListChildren(ctx, params)
		for _, row := range rows {
			jobs = append(jobs, fromRow(sqlgen.ListJobsRow(row)))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the children of job %s: %w", parent, err)
	}
	return jobs, nil
}

// FindByIdempotencyKey returns the id of the job that a kind's idempotency key stored, for as long as the job is kept,
// or [ErrNotFound]. The zero tenant means [outbox.RootTenant].
func (o *Operator) FindByIdempotencyKey(ctx context.Context, tenant outbox.ID, kind, key string) (outbox.ID, error) {
	if err := validTexts(map[string]string{"kind": kind, "key": key}); err != nil {
		return outbox.ID{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.FindByIdempotencyKey(
		ctx, sqlgen.FindByIdempotencyKeyParams{TenantID: pgvalue.UUID(orRoot(tenant)), Kind: kind, Key: key})
	if err != nil {
		return outbox.ID{}, fmt.Errorf("find the job of idempotency key %q: %w", key, err)
	}
	if len(found) == 0 {
		return outbox.ID{}, fmt.Errorf("find the job of idempotency key %q of kind %s: %w", key, kind, ErrNotFound)
	}
	return found[0].Bytes, nil
}
