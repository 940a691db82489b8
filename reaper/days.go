package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// days manages the partitions of the history and of the events.
type days struct {
	chores  chores
	ahead   int // how many are created before they begin
	metrics *metrics
	log     *slog.Logger
}

// ensure creates partitions of the history and the events in advance, so that every settlement and every producer finds
// one for its day.
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

// outcome is what became of a day that was to be dropped.
type outcome int

const (
	kept    outcome = iota // somebody reads it, another reaper drops it, or a sink has yet to read its events
	emptied                // its rows are gone, and the table waits for a pass that finds its parent unused
	dropped
)

// dropWait is how long a drop waits for a lock.
const dropWait = 100 * time.Millisecond

// isUsed reports whether a transaction uses a day for longer than a drop waits, such as a backup, or one that stores
// jobs in it. To look at the locks holds up nobody. No transaction begins to store in a past day: if isUsed returns
// false, everything that will ever be stored in it is there.
func (d days) isUsed(ctx context.Context, name string) (used bool, err error) {
	holders := func() (ids []string, err error) {
		err = d.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) error {
			ids, err = q.ListHolders(ctx, name)
			return err
		})
		return ids, err
	}
	before, err := holders()
	if err != nil || len(before) == 0 {
		return false, err
	}
	if err := backoff.Sleep(ctx, dropWait); err != nil {
		return false, err
	}
	now, err := holders()
	return slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) }), err
}

// drop drops a day of the history or of the events, with lose also one whose events a sink has yet to read.
//
// A drop needs exclusive locks on the partition and its parent, and while it waits for a lock, everyone else who wants
// one waits behind it. So it waits a tenth of a second for each. It locks the partition first: a report that reads the
// day stops it there, where no settlement comes. With that lock it removes the rows, because the lock on the parent may
// not be had: a transaction that has published an event, or completed a job, keeps the parent locked until it ends. A
// transaction that locked the parent and waits for the partition is in a deadlock with the drop, which the drop
// resolves by giving up.
func (d days) drop(ctx context.Context, name string, lose bool) (became outcome, err error) {
	err = d.chores.inTx(ctx, statementTimeout, func(ctx context.Context, tx pgx.Tx) error {
		q := sqlgen.New(tx)
		alone, err := q.TryTrimLock(ctx)
		if err != nil || !alone {
			return err
		}
		wait := fmt.Sprintf(`SET LOCAL lock_timeout = %d`, dropWait.Milliseconds())
		if _, err := tx.Exec(ctx, wait); err != nil {
			return err
		}
		if err := q.DropDay(ctx, name, lose); err != nil {
			return err
		}
		became = dropped
		if stays, err := q.HasDay(ctx, name); err != nil {
			return err
		} else if stays {
			became = emptied
		}
		return nil
	})
	switch pgsession.State(err) {
	case pgsession.LockNotAvailable, pgsession.UndefinedTable, pgsession.ObjectInUse: // or another reaper was faster
		d.log.LogAttrs(ctx, slog.LevelInfo, "partition not dropped: in use", slog.String("partition", name))
		return kept, nil
	}
	if err != nil {
		return kept, fmt.Errorf("drop %s: %w", name, err)
	}
	switch became {
	case emptied:
		d.log.LogAttrs(ctx, slog.LevelInfo, "partition emptied, not dropped: its parent is in use",
			slog.String("partition", name))
	case dropped:
		d.metrics.dropped.Inc()
		d.log.LogAttrs(ctx, slog.LevelInfo, "partition dropped", slog.String("partition", name))
	}
	return became, nil
}
