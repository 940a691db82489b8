package reaper

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// reportsBatch is fewer than trimBatch: each of these jobs may have 200 lines and
// as many steps.
const reportsBatch = 200

// trimReports deletes what jobs have reported that are in the history no more. It
// looks only at those that are older than the longest retention: the others are
// open, or closed since.
func (r *Reaper) trimReports(ctx context.Context) error {
	params := sqlgen.TrimReportsParams{
		AfterCreatedAt: always, AfterJobID: pgtype.UUID{Valid: true},
		Keep: pgvalue.Interval(r.config.longestRetention()), MaxRows: reportsBatch,
	}
	for {
		lookedAt, err := r.trimSome(ctx, "progress", func(ctx context.Context, q *sqlgen.Queries) (trimmed, lookedAt int64, err error) {
			row, err := q.TrimReports(ctx, params)
			params.AfterCreatedAt, params.AfterJobID = row.CreatedAt, row.JobID
			return row.Trimmed, row.LookedAt, err
		})
		if err != nil || lookedAt < reportsBatch {
			return err
		}
	}
}
