package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// days are the partitions of the history and of the events.
type days struct {
	chores  chores
	ahead   int // how many are made before they begin
	metrics *metrics
	log     *slog.Logger
}

// ensure keeps the partitions of the history and the events ahead, so that no
// settlement and no producer ever finds that its day has none.
func (d days) ensure(ctx context.Context) (time.Duration, error) {
	var made int32
	err := d.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		made, err = q.EnsureDays(ctx, int32(d.ahead))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("make the partitions of the next days: %w", err)
	}
	if made > 0 {
		d.log.LogAttrs(ctx, slog.LevelInfo, "partitions created", slog.Int("partitions", int(made)))
	}
	return backoff.Jitter(partitionInterval), nil
}

// drop drops a day of the history or of the events, unless somebody is reading it
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
func (d days) drop(ctx context.Context, name string, lose bool) (dropped bool, err error) {
	err = d.chores.inTx(ctx, statementTimeout, func(ctx context.Context, tx pgx.Tx) error {
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
	switch pgsession.State(err) {
	case pgsession.LockNotAvailable, pgsession.UndefinedTable, pgsession.ObjectInUse: // or another reaper was faster
		d.log.LogAttrs(ctx, slog.LevelInfo, "partition not dropped: in use", slog.String("partition", name))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("drop %s: %w", name, err)
	}
	if dropped {
		d.metrics.dropped.Inc()
		d.log.LogAttrs(ctx, slog.LevelInfo, "partition dropped", slog.String("partition", name))
	}
	return dropped, nil
}
