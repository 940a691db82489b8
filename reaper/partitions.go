package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// partition keeps the partitions of the history and the events ahead, so that no
// settlement and no producer ever finds that its day has none.
func (r *Reaper) partition(ctx context.Context) (time.Duration, error) {
	var made int32
	err := r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) (err error) {
		made, err = q.EnsureDays(ctx, int32(r.config.HistoryAhead))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("make the partitions of the next days: %w", err)
	}
	if made > 0 {
		r.log.LogAttrs(ctx, slog.LevelInfo, "partitions created", slog.Int("partitions", int(made)))
	}
	return jittered(partitionInterval), nil
}
