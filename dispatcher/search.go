package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
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
	kinds := s.circuits.Claimable()
	if len(kinds) == 0 || s.keyed.Offered()+s.sched.Unclaimed() >= maxBatch { // claims have enough to look at
		return
	}
	ranges := s.sched.Search(time.Now())
	if len(ranges) == 0 {
		return
	}
	s.running.Go(func() {
		answer := s.find(ctx, kinds, ranges)
		s.ended <- answer // there is room: no search begins before the loop has read this
		// If the search has failed, the loop learns of it when it looks next: it may be waiting for the database.
		if answer.err == nil || isCutOff(answer.err) || len(slices.Concat(answer.found...)) > 0 {
			s.capacity.Poke()
		}
	})
}

func (s *searches) learn(ctx context.Context, answer searchAnswer) {
	end := scheduler.SearchEnded
	switch {
	case isCutOff(answer.err):
		end = scheduler.SearchCutOff
	case answer.err != nil:
		end = scheduler.SearchFailed
	}
	s.sched.NoteSearch(answer.ranges, answer.found, end, time.Now(), answer.took, answer.read)
	if answer.err != nil && ctx.Err() == nil {
		s.health.Complain(ctx, "search for due jobs failed", answer.err, slog.String("queue", s.queue))
	}
	n := 0
	for i, found := range answer.found {
		n += len(found)
		for _, at := range found {
			if r := answer.ranges[i]; r.Keyed {
				s.keyed.Offer(r.Tenant, pgvalue.UUID(at.ID))
			}
		}
	}
	if n > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "due jobs found behind dead entries, which a snapshot or vacuum's delay keeps",
			slog.String("queue", s.queue), slog.Int("jobs", n), slog.Duration("took", answer.took))
	}
}

// searchAnswer holds what a search has found in the first of its ranges.
type searchAnswer struct {
	ranges []scheduler.Range
	found  [][]scheduler.Position
	took   time.Duration
	read   time.Duration // the part of it that the database read for
	err    error
}

// find asks the database when it is this queue's turn.
func (s *searches) find(ctx context.Context, kinds []string, ranges []scheduler.Range) searchAnswer {
	answer := searchAnswer{ranges: ranges}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		answer.err = ctx.Err()
		return answer
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime+statementTimeout)
	defer cancel()
	started := time.Now()
	answer.found, answer.read, answer.err = s.db.FindUnreached(ctx, s.queue, kinds, ranges)
	answer.took = time.Since(started)
	return answer
}

// searchTime bounds a search. It reads some hundred thousand entries a second, and its snapshot keeps dead entries
// itself.
const searchTime = 2 * time.Minute

// loopStatements are the statements of a claim loop besides its claims.
type loopStatements struct {
	*sqlgen.Queries
	pool *pgxpool.Pool
}

// FindUnreached returns what it has found in the first ranges, one after the other, and how long the database read for
// that: in all of them, unless it fails, or has found enough for a claim, or its time is over. If it is cut off, the
// last one is the one in which that happened, with what was found there before.
func (s loopStatements) FindUnreached(ctx context.Context, queue string, kinds []string, ranges []scheduler.Range) (
	found [][]scheduler.Position, read time.Duration, err error,
) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		started := time.Now()
		limit := fmt.Sprintf(`SET LOCAL statement_timeout = %d`, searchTime.Milliseconds())
		if _, err := tx.Exec(ctx, limit); err != nil {
			return err
		}
		answer, jobs := time.Since(started), 0
		for _, r := range ranges {
			if jobs > maxBatch-scheduler.MaxFound || time.Since(started) > searchTime/2 {
				break
			}
			began := time.Now()
			places, err := findUnreached(ctx, tx, queue, kinds, r)
			read += max(time.Since(began)-answer, 0)
			if err == nil || isCutOff(err) {
				found, jobs = append(found, places), jobs+len(places)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return found, read, fmt.Errorf("find due jobs of queue %s: %w", queue, err)
	}
	return found, read, nil
}

// isCutOff reports whether a search has ended because of its time.
func isCutOff(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgsession.IsLockedOut(err)
}

// findUnreached returns what it has found, also if it fails.
func findUnreached(ctx context.Context, tx pgx.Tx, queue string, kinds []string, r scheduler.Range) (
	places []scheduler.Position, err error,
) {
	statement := sqlgen.FindUnreached
	if r.Keyed {
		statement = sqlgen.FindUnreachedKeyed
	}
	rows, err := tx.Query(ctx, statement, queue, pgvalue.UUID(r.Tenant), r.Priority, pgTime(r.End.RunAt),
		pgvalue.UUID(r.End.ID), kinds, scheduler.MaxFound)
	if err != nil {
		return nil, err
	}
	var at scheduler.Position
	_, err = pgx.ForEachRow(rows, []any{&at.RunAt, (*[16]byte)(&at.ID)}, func() error {
		places = append(places, at)
		return nil
	})
	return places, err
}
