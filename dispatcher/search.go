package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// searches looks, beside the claims of a queue, for due jobs that they do not reach (scheduler.Search).
//
// A process that starts while a snapshot is held knows no position. If millions of jobs of a backlog were claimed since
// the snapshot began, no claim that reads their dead entries ends in time, and without a search the rest of the backlog
// would wait for the snapshot's end.
type searches struct {
	*claimer
	running sync.WaitGroup
	ended   chan searchAnswer // has room for one
	// turn has room for one: the searches of a dispatcher run one at a time, because each takes a connection.
	turn chan struct{}
}

// next learns from a search that has ended, and begins one that is due.
func (s *searches) next(ctx context.Context) {
	select {
	case answer := <-s.ended:
		s.learn(ctx, answer)
	default:
	}
	plain, keyed := s.sched.Search(time.Now())
	if len(plain.Flows)+len(keyed.Flows) == 0 {
		return
	}
	p := sqlgen.FindUnreachedParams{
		Queue: s.queue, Kinds: s.workers.outages.claimable(),
		MaxJobs: scheduler.MaxFound,
	}
	p.TenantIds, p.Priorities, p.EndRunAt, p.EndID = rangeParams(plain)
	p.KeyedTenantIds, p.KeyedPriorities, p.KeyedEndRunAt, p.KeyedEndID = rangeParams(keyed)
	s.running.Go(func() {
		s.ended <- s.find(ctx, p) // there is room: no search begins before the loop has read this
		s.capacity.poke()
	})
}

func (s *searches) learn(ctx context.Context, answer searchAnswer) {
	s.sched.NoteSearch(answer.found, answer.err != nil, time.Now(), answer.took)
	if answer.err != nil {
		if ctx.Err() == nil {
			s.health.Complain(ctx, "search for due jobs failed", answer.err, slog.String("queue", s.queue))
		}
		return
	}
	for _, f := range answer.found {
		if f.Keyed {
			s.keyed.offer(f.Tenant, pgvalue.UUID(f.At.ID))
		}
	}
	if len(answer.found) > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "due jobs found behind dead entries, which a snapshot or vacuum's delay keeps",
			slog.String("queue", s.queue), slog.Duration("took", answer.took))
	}
}

// searchAnswer holds what a search has found.
type searchAnswer struct {
	found []scheduler.Found
	took  time.Duration
	err   error
}

// find asks the database when it is this queue's turn.
func (s *searches) find(ctx context.Context, p sqlgen.FindUnreachedParams) (answer searchAnswer) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return searchAnswer{err: ctx.Err()}
	}
	started := time.Now()
	rows, err := s.db.FindUnreached(ctx, p)
	answer.took, answer.err = time.Since(started), err
	for _, row := range rows {
		answer.found = append(answer.found, scheduler.Found{
			Keyed: row.Keyed, Flow: scheduler.Flow{Tenant: row.TenantID.Bytes, Priority: row.Priority},
			At: scheduler.Position{RunAt: row.RunAt.Time, ID: row.ID.Bytes},
		})
	}
	return answer
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
}

// FindUnreached may take longer than other statements of the pool: it reads some hundred thousand entries a second. Its
// snapshot keeps dead entries itself, so it may not take long either.
func (s loopStatements) FindUnreached(ctx context.Context, p sqlgen.FindUnreachedParams) (rows []sqlgen.FindUnreachedRow,
	err error,
) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '2min'`); err != nil {
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
