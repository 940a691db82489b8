package operator

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// recorded runs an act on a job together with its row in the audit: both are
// there, or neither. The act returns the job's status afterwards, and whether it
// did anything; what it did nothing to is not recorded.
func (o *Operator) recorded(ctx context.Context, act string, id outbox.ID, do func(*sqlgen.Queries) (after string, acted bool, err error)) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		q := sqlgen.New(tx)
		found, err := q.LockJob(ctx, pgID(id))
		if err != nil {
			return err
		}
		after, acted, err := do(q)
		if err != nil || !acted || len(found) == 0 {
			return err
		}
		return q.InsertAudit(ctx, sqlgen.InsertAuditParams{
			Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason, Act: act,
			TenantID: found[0].TenantID, JobID: pgID(id), Queue: found[0].Queue,
			Before: statusJSON(found[0].Status), After: statusJSON(after),
		})
	})
}

func statusJSON(status string) []byte {
	text, _ := json.Marshal(map[string]string{"status": status}) // of strings: cannot fail
	return text
}

// recordedKey is recorded for an act on a key, which returns how the key is afterwards,
// and nil if it did nothing.
func (o *Operator) recordedKey(ctx context.Context, act string, name KeyName, do func(*sqlgen.Queries) (after map[string]any, err error)) error {
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		q := sqlgen.New(tx)
		found, err := q.FindParking(ctx, sqlgen.FindParkingParams{TenantID: pgID(name.Tenant), Queue: name.Queue, Key: name.Key})
		if err != nil {
			return err
		}
		after, err := do(q)
		if err != nil || after == nil {
			return err
		}
		was, err := json.Marshal(parking(found))
		if err != nil {
			return err
		}
		became, err := json.Marshal(after)
		if err != nil {
			return err
		}
		return q.InsertAudit(ctx, sqlgen.InsertAuditParams{
			Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason, Act: act,
			TenantID: pgtype.UUID{Bytes: name.Tenant, Valid: true}, Queue: name.Queue, Target: name.Key,
			Before: was, After: became,
		})
	})
}

// parking is how a key was, for the audit.
func parking(found []sqlgen.FindParkingRow) map[string]any {
	was := map[string]any{"parked_at": nil}
	for _, row := range found {
		if row.ParkedAt.Valid {
			was["parked_at"] = row.ParkedAt.Time.UTC()
		}
		if row.ParkAt.Valid {
			was["park_at"] = row.ParkAt.Time.UTC()
		}
		if row.ParkedFor.Valid {
			was["parked_for"] = outbox.ID(row.ParkedFor.Bytes).String()
		}
	}
	return was
}
