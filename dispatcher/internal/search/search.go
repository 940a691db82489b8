// Package search asks the database for due jobs that the claims of a queue do not reach (scheduler.Search).
//
// A process that starts while a snapshot is held knows no position. If millions of jobs of a backlog were claimed since
// the snapshot began, no claim that reads their dead entries ends in time, and without a search the rest of the backlog
// would wait for the snapshot's end. A search has far more time than a claim, and locks nothing.
package search

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// searchTime bounds a search. It reads some hundred thousand entries a second, and its snapshot keeps dead entries
// itself.
const searchTime = 2 * time.Minute

// Finder makes the searches of a dispatcher, one at a time, because each takes a connection. It is safe for concurrent
// use.
type Finder struct {
	DB      Statements
	timeout time.Duration // for the answer, after searchTime
	turn    chan struct{} // has room for one
}

// Statements is the statement of a Finder: a [Pool], or a test's.
type Statements interface {
	FindUnreached(_ context.Context, queue string, kinds []string, _ []scheduler.Range) (
		_ [][]scheduler.Position, read time.Duration, _ error)
}

// New returns a Finder. timeout is how much longer than a search may take its answer is waited for.
func New(db Statements, timeout time.Duration) *Finder {
	return &Finder{DB: db, timeout: timeout, turn: make(chan struct{}, 1)}
}

// Answer holds what a search has found in the first of its ranges.
type Answer struct {
	Ranges []scheduler.Range
	Found  [][]scheduler.Position
	Took   time.Duration
	Read   time.Duration // the part of it that the database read for
	Err    error
}

// End says how the search has ended.
func (a Answer) End() scheduler.SearchEnd {
	switch {
	case a.Err == nil:
		return scheduler.SearchEnded
	case isCutOff(a.Err):
		return scheduler.SearchCutOff
	}
	return scheduler.SearchFailed
}

// Find asks the database when no other search is under way.
func (f *Finder) Find(ctx context.Context, queue string, kinds []string, ranges []scheduler.Range) Answer {
	answer := Answer{Ranges: ranges}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		answer.Err = ctx.Err()
		return answer
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime+f.timeout)
	defer cancel()
	started := time.Now()
	answer.Found, answer.Read, answer.Err = f.DB.FindUnreached(ctx, queue, kinds, ranges)
	answer.Took = time.Since(started)
	return answer
}

// Pool makes searches on a connection of a pool.
type Pool struct {
	*pgxpool.Pool
	Most int // jobs of a claim: a search that has found about as many ends
}

// FindUnreached returns what it has found in the first ranges, one after the other, and how long the database read for
// that: in all of them, unless it fails, or has found enough for a claim, or its time is over. If it is cut off, the
// last one is the one in which that happened, with what was found there before.
func (p Pool) FindUnreached(ctx context.Context, queue string, kinds []string, ranges []scheduler.Range) (
	found [][]scheduler.Position, read time.Duration, err error,
) {
	err = pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		started := time.Now()
		limit := fmt.Sprintf(`SET LOCAL statement_timeout = %d`, searchTime.Milliseconds())
		if _, err := tx.Exec(ctx, limit); err != nil {
			return err
		}
		answer, jobs := time.Since(started), 0
		for _, r := range ranges {
			if jobs > p.Most-scheduler.MaxFound || time.Since(started) > searchTime/2 {
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
	rows, err := tx.Query(ctx, statement, queue, pgvalue.UUID(r.Tenant), r.Priority, pgvalue.From(r.End.RunAt),
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
