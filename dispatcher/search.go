package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// search looks, beside the claims, for due jobs that they do not reach (scheduler.Search), and learns from a search
// that has ended.
//
// A process that starts while a snapshot is held knows no position. If millions of jobs of a backlog were claimed since
// the snapshot began, no claim that reads their dead entries ends in time, and without the search the rest of the
// backlog would wait for the snapshot's end.
func (l *loop) search(ctx context.Context) {
	select {
	case s := <-l.searchEnded:
		l.sched.NoteSearch(s.found, s.err != nil, time.Now(), s.took)
		if s.err != nil && ctx.Err() == nil {
			l.health.Complain(ctx, "search for due jobs failed", s.err, slog.String("queue", l.queue))
		}
		for _, f := range s.found {
			if f.Keyed {
				l.keyed.offer(f.Tenant, pgvalue.UUID(f.At.ID))
			}
		}
		if len(s.found) > 0 {
			l.log.LogAttrs(ctx, slog.LevelInfo, "due jobs found behind dead entries, which a snapshot or vacuum's delay keeps",
				slog.String("queue", l.queue), slog.Duration("took", s.took))
		}
	default:
	}
	plain, keyed := l.sched.Search(time.Now())
	if len(plain.Flows)+len(keyed.Flows) == 0 {
		return
	}
	p := sqlgen.FindUnreachedParams{Queue: l.queue, Kinds: l.workers.outages.claimable(), MaxJobs: scheduler.MaxFound}
	p.TenantIds, p.Priorities, p.EndRunAt, p.EndID = rangeParams(plain)
	p.KeyedTenantIds, p.KeyedPriorities, p.KeyedEndRunAt, p.KeyedEndID = rangeParams(keyed)
	l.searching.Go(func() {
		l.searchEnded <- l.unreached(ctx, p) // there is room: no search begins before the loop has read this
		l.capacity.poke()
	})
}

// claimFound claims jobs that a search has found.
func (l *loop) claimFound(ctx context.Context) error {
	plan := l.sched.PlanFound(l.places().Room)
	if plan.Empty() {
		return nil
	}
	plan.Kinds = l.workers.outages.claimable()
	n, _, err := l.claimNext(ctx, plan)
	l.claimed += n
	return err
}

// searchAnswer holds what a search has found.
type searchAnswer struct {
	found []scheduler.Found
	took  time.Duration
	err   error
}

func (c *claimer) unreached(ctx context.Context, p sqlgen.FindUnreachedParams) (s searchAnswer) {
	started := time.Now()
	rows, err := c.db.FindUnreached(ctx, p)
	s.took, s.err = time.Since(started), err
	for _, row := range rows {
		s.found = append(s.found, scheduler.Found{
			Keyed: row.Keyed, Flow: scheduler.Flow{Tenant: row.TenantID.Bytes, Priority: row.Priority},
			At: scheduler.Position{RunAt: row.RunAt.Time, ID: row.ID.Bytes},
		})
	}
	return s
}

func rangeParams(r scheduler.Ranges) (tenants []pgtype.UUID, priorities []int16, runAt []pgtype.Timestamptz,
	ids []pgtype.UUID,
) {
	for i, f := range r.Flows {
		tenants, priorities = append(tenants, pgvalue.UUID(f.Tenant)), append(priorities, f.Priority)
		runAt, ids = append(runAt, pgTime(r.Ends[i].RunAt)), append(ids, pgvalue.UUID(r.Ends[i].ID))
	}
	return tenants, priorities, runAt, ids
}

// loopStatements are the statements of a claim loop besides its claims.
type loopStatements struct {
	*sqlgen.Queries
	pool *pgxpool.Pool
	turn chan struct{} // has room for one: a dispatcher's searches run one at a time, because each holds a connection
}

// FindUnreached may take longer than the statements of the pool's sessions usually may.
func (s loopStatements) FindUnreached(ctx context.Context, p sqlgen.FindUnreachedParams) (rows []sqlgen.FindUnreachedRow,
	err error,
) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '10min'`); err != nil {
			return err
		}
		rows, err = s.WithTx(tx).FindUnreached(ctx, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find due jobs of queue %s: %w", p.Queue, err)
	}
	return rows, nil
}
