package reaper

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// listPartitions returns the days of the history and which of the retentions that
// are shorter than the longest they are beyond.
func (r *Reaper) listPartitions(ctx context.Context, shorter []pgtype.Interval) (days []sqlgen.ListHistoryPartitionsRow, err error) {
	err = r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) error {
		days, err = q.ListHistoryPartitions(ctx, pgvalue.Interval(r.config.longestRetention()), shorter)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the history's partitions: %w", err)
	}
	return days, nil
}

// dropPartition drops a day of the history or of the events, unless somebody is reading it
// or another reaper is at it, or, if it is not to lose them, a sink has yet to read its
// events; dropped says whether it is gone.
//
// A drop needs the partition and its parent for itself alone, and everyone else
// who wants a lock while it waits for one waits behind it. So it waits a tenth of
// a second for each. It takes the partition first: a report that reads the day
// stops it there, where no settlement comes. For the parent it waits only for
// statements that are under way; they insert into another day and are done in
// milliseconds. A transaction that locked the parent and waits for the partition
// is in a deadlock with us, which our giving up resolves.
func (r *Reaper) dropPartition(ctx context.Context, name string, lose bool) (dropped bool, err error) {
	err = r.onChores(ctx, statementTimeout, func(ctx context.Context, conn *pgxpool.Conn, _ *sqlgen.Queries) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			alone, err := sqlgen.New(tx).TryTrimLock(ctx)
			if err != nil || !alone {
				return err
			}
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '100ms'`); err != nil {
				return err
			}
			err = sqlgen.New(tx).DropDay(ctx, name, lose)
			dropped = err == nil
			return err
		})
	})
	switch pgsession.State(err) {
	case pgsession.LockNotAvailable, pgsession.UndefinedTable, pgsession.ObjectInUse: // or another reaper was faster
		r.log.LogAttrs(ctx, slog.LevelInfo, "partition not dropped: in use", slog.String("partition", name))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("drop %s: %w", name, err)
	}
	if dropped {
		r.metrics.dropped.Inc()
		r.log.LogAttrs(ctx, slog.LevelInfo, "partition dropped", slog.String("partition", name))
	}
	return dropped, nil
}
