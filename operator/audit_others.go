package operator

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// othersRows is how many of the newest acts OthersActs reads: some ten milliseconds' worth.
const othersRows = 50_000

// OthersAct is an act of somebody else on a job that an operation could have been about.
type OthersAct struct {
	At                    time.Time
	Actor, Act, RequestID string

	JobID     outbox.ID
	Status    outbox.Status // of the job before the act
	ErrorCode string        // of the job before the act of a dead letter; "" for none
}

// OthersActs returns up to 1000 acts that changed jobs, newest first, in which the operation's own request has no part:
// of the queue that its filter names, and from since until the operation ended. It reads at most the newest 50 000
// acts.
func (o *Operator) OthersActs(ctx context.Context, of Operation, since time.Time) (acts []OthersAct, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	p := sqlgen.ListOthersActsParams{
		RequestID: of.RequestID, Since: from(since), Until: until(of.FinishedAt), MaxRows: maxFind,
		Queue: of.Filter.Queue + of.Jobs.Queue, TenantID: pgvalue.UUIDOrNull(of.Tenant),
	}
	err = o.byIndex(ctx, func(db *sqlgen.Queries) error {
		reach, err := db.FindAuditReach(ctx, sqlgen.FindAuditReachParams{
			BeforeID: math.MaxInt64, TenantID: p.TenantID, MaxRows: othersRows,
		})
		if err != nil {
			return err
		}
		if len(reach) > 0 {
			p.AfterID = reach[0].ID
		}
		rows, err := db.ListOthersActs(ctx, p)
		for _, row := range rows {
			acts = append(acts, OthersAct{
				At: row.At.Time, Actor: row.Actor, Act: row.Act, RequestID: row.RequestID, JobID: row.JobID.Bytes,
				Status: outbox.Status(row.Status), ErrorCode: row.ErrorCode,
			})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list acts beside operation %s: %w", of.ID, err)
	}
	return acts, nil
}
