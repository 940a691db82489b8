package await

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	coalesce     = 5 * time.Millisecond // shortest pause between two queries
	hearingPoll  = time.Second          // for ends that are not announced
	fallbackPoll = 2 * time.Second      // at most, growing from a tenth of a second
	missing      = 10 * time.Second     // how long a job may be missing: its transaction may be about to commit
	askBatch     = 10_000               // jobs per query
	askTimeout   = 5 * time.Second
)

// answer queries the jobs that are waited for until ctx ends: all of them when woken or when it is time to poll, and
// new ones when there are new waits. It queries nothing while nobody waits.
//
// No end is missed. A new wait is in the map before its first query, so if the job ends after that query's snapshot,
// its end is announced and the wake-up finds the wait; if the announcement is lost, the poll finds the job.
func (w *Waiter) answer(ctx context.Context, pool *pgxpool.Pool) {
	deaf, retry := backoff.Backoff{Max: fallbackPoll}, backoff.Backoff{Max: fallbackPoll}
	poll := time.NewTimer(time.Hour)
	defer poll.Stop()
	var due time.Time       // when all jobs are queried at the latest
	var forbidden time.Time // since when the database refuses queries; zero if it does not
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-w.joined:
			deaf.Reset()
		case <-w.wake:
			woken = true
		case <-poll.C:
		}
		began := time.Now()
		all := woken || !began.Before(due)
		ids := w.ids(all)
		if len(ids) == 0 {
			continue // nobody waits: the next wait sets the timer again
		}
		err := w.ask(ctx, pool, ids)
		now := time.Now()
		if !pgsession.IsForbidden(err) {
			forbidden = time.Time{}
		} else { // not an outage, which would end
			if forbidden.IsZero() {
				forbidden = now
			}
			w.refuse(ids, err, now.Sub(forbidden))
		}
		rest := max(coalesce, now.Sub(began))
		next := now.Add(w.pollInterval(&deaf))
		switch {
		case err != nil && ctx.Err() == nil:
			w.complain(ctx, err)
			rest, due = retry.Next(), now // query all jobs after the pause
		case all || next.Before(due): // new waits do not put off the poll for the older ones
			retry.Reset()
			due = next
		}
		poll.Reset(due.Sub(now))
		if backoff.Sleep(ctx, rest) != nil {
			return
		}
	}
}

// pollInterval returns the time until the next poll. It grows while the listener is not listening and no wait begins.
func (w *Waiter) pollInterval(deaf *backoff.Backoff) time.Duration {
	if w.listener.Listening() {
		deaf.Reset()
		return w.poll
	}
	return deaf.Next()
}

// ids returns the jobs to query: all of them, or the new ones.
func (w *Waiter) ids(all bool) []outbox.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer clear(w.fresh)
	if all {
		return slices.Collect(maps.Keys(w.waits))
	}
	return slices.Collect(maps.Keys(w.fresh))
}

func (w *Waiter) ask(ctx context.Context, pool *pgxpool.Pool, ids []outbox.ID) error {
	for some := range slices.Chunk(ids, askBatch) {
		if err := w.askSome(ctx, pool, some); err != nil {
			return fmt.Errorf("ask for %d jobs: %w", len(some), err)
		}
	}
	return nil
}

// askSome runs a query and delivers its rows one by one: results may be large, and rows that were read before a
// connection broke need not be read again.
func (w *Waiter) askSome(ctx context.Context, pool *pgxpool.Pool, ids []outbox.ID) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		asked[i] = pgvalue.UUID(id)
	}
	rows, _ := pool.Query(ctx, sqlgen.FindEnded, asked) // Err returns the same error
	found := make(map[outbox.ID]bool)
	var id outbox.ID
	var e end
	_, err := pgx.ForEachRow(rows, []any{&id, &e.status, &e.tenant, &e.result, &e.code, &e.message}, func() error {
		found[id] = true
		w.tell(id, e)
		e = end{}
		return nil
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if job := w.waits[id]; job != nil && !found[id] {
			job.seen = true
		}
	}
	return nil
}

// tell finishes the waits for a job that has ended, and waits that have lasted long enough for a missing job.
func (w *Waiter) tell(id outbox.ID, e end) {
	w.mu.Lock()
	defer w.mu.Unlock()
	job := w.waits[id]
	switch {
	case job == nil: // nobody waits any more
		return
	case e.status != "":
		job.finish(result{end: e})
	case job.seen:
		job.finish(result{err: ErrNotFound})
	default:
		job.giveUp(w.missing, ErrNotFound)
	}
	if len(job.waits) == 0 {
		delete(w.waits, id)
	}
}

// refuse ends the waits for jobs that the role may not query. Where tables or functions are missing, it ends only the
// waits that have lasted long enough while they were missing for that long: a migration or a restore may be about to
// create them.
func (w *Waiter) refuse(ids []outbox.ID, err error, lacked time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		job := w.waits[id]
		if job == nil {
			continue
		}
		if pgsession.State(err) == pgsession.InsufficientPrivilege {
			job.finish(result{err: err})
		} else if lacked >= w.missing {
			job.giveUp(w.missing, err)
		}
		if len(job.waits) == 0 {
			delete(w.waits, id)
		}
	}
}

func (w *Waiter) complain(ctx context.Context, err error) {
	if missed, due := w.complaints.Due("ask", time.Now()); due {
		w.log.LogAttrs(ctx, slog.LevelWarn, "jobs not asked for", slog.Int("since_last_line", missed),
			slog.Any("err", err))
	}
}
