package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Wanted is a job to find, and the tenant that must own it.
type Wanted struct {
	ID     outbox.ID
	Tenant outbox.ID // zero means any
}

// maxFind limits one call of Find; the queries have the same limit.
const maxFind = 1000

// Find returns up to 1000 jobs, each at the index at which it was wanted, without payloads, results and attempts. For a
// job that does not exist or belongs to another tenant, that place has the zero Job. Find uses one statement if all of
// them are open, and otherwise two: another tenant's job takes as long as a missing one.
//
// The first statement searches the open jobs, the second the closed ones. A job that closes in between is found by the
// first, and a closed job never reopens.
func (o *Operator) Find(ctx context.Context, wanted []Wanted) ([]Job, error) {
	if len(wanted) > maxFind {
		return nil, invalid.Field("wanted", "are %d jobs, want at most %d", len(wanted), maxFind)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	found := make([]Job, len(wanted))
	open, err := o.db.FindOpen(ctx, ids(wanted), tenants(wanted))
	if err != nil {
		return nil, fmt.Errorf("find %d jobs: %w", len(wanted), err)
	}
	for _, row := range open {
		place(found, wanted, row.Shown(), row.Late)
	}
	var missing []Wanted
	for i, w := range wanted {
		if found[i].ID.IsZero() {
			missing = append(missing, w)
		}
	}
	if len(missing) == 0 {
		return found, nil
	}
	closed, err := o.db.FindClosed(ctx, ids(missing), tenants(missing))
	if err != nil {
		return nil, fmt.Errorf("find %d closed jobs: %w", len(missing), err)
	}
	for _, row := range closed {
		place(found, wanted, row.Shown(), false)
	}
	return found, nil
}

// StoredHeld returns which of up to 1000 jobs with an idempotency key were stored held, whatever has happened to them
// since.
func (o *Operator) StoredHeld(ctx context.Context, jobs []outbox.ID) (map[outbox.ID]bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	wanted := make([]pgtype.UUID, len(jobs))
	for i, id := range jobs {
		wanted[i] = pgvalue.UUID(id)
	}
	rows, err := o.db.FindHeld(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("find which of %d jobs were stored held: %w", len(jobs), err)
	}
	held := make(map[outbox.ID]bool, len(rows))
	for _, id := range rows {
		held[id.Bytes] = true
	}
	return held, nil
}

// place puts a job at each index at which it was wanted, if its tenant matches.
func place(found []Job, wanted []Wanted, row sqlgen.ListJobsRow, late bool) {
	job := fromRow(row)
	job.PastDeadline = late
	for i, w := range wanted {
		if w.ID == job.ID && (w.Tenant.IsZero() || w.Tenant == job.Tenant) {
			found[i] = job
		}
	}
}

func ids(wanted []Wanted) []pgtype.UUID {
	out := make([]pgtype.UUID, len(wanted))
	for i, w := range wanted {
		out[i] = pgvalue.UUID(w.ID)
	}
	return out
}

func tenants(wanted []Wanted) []pgtype.UUID {
	out := make([]pgtype.UUID, len(wanted))
	for i, w := range wanted {
		out[i] = pgvalue.UUIDOrNull(w.Tenant)
	}
	return out
}
