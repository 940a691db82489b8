package relay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// TailConfig sets where a tail begins: by default at the end of the log.
type TailConfig struct {
	Sink  string          // begin with the first event that waits for this sink, or
	Since time.Time       // begin with events stored from then on
	Wake  <-chan struct{} // receives when events were stored; nil polls
	// Interval is the time between polls of the log; 0 means 1 s.
	Interval time.Duration
	// Failed is called once per outage with the reason why the log could not be read, and the tail then goes on. nil
	// ends the tail with the error. Errors at the beginning, positions of another timeline, and errors that do not pass
	// by themselves, such as a missing privilege, end it in any case.
	Failed func(error)
}

// Tail yields the events of the log as a sink sees them, until ctx ends: as soon as their transactions have committed,
// those of a key in order. It stores nothing. If it yields an error, that is the last value.
func Tail(ctx context.Context, pool *pgxpool.Pool, config TailConfig) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		t := tail{config: config, yield: yield}
		if err := t.run(ctx, pool); err != nil && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("tail: %w", err))
		}
	}
}

type tail struct {
	config TailConfig
	yield  func(Event, error) bool
	log    logReader
	at     cursor
}

func (t *tail) run(ctx context.Context, pool *pgxpool.Pool) error {
	timeline, err := sqlgen.New(pool).LogTimeline(ctx)
	if err != nil {
		return err
	}
	t.log = logReader{pool: pool, timeline: timeline}
	if t.at, err = t.begin(ctx, sqlgen.New(pool)); err != nil {
		return err
	}
	failing := false
	for ctx.Err() == nil {
		events, full, err := t.next(ctx)
		switch {
		case err != nil && (t.config.Failed == nil || ctx.Err() != nil || !isOutage(err)):
			return err
		case err != nil && !failing:
			t.config.Failed(err)
		}
		failing = err != nil
		for _, e := range events {
			if !e.At.Before(t.config.Since) && !t.yield(e, nil) {
				return nil
			}
		}
		if !full {
			t.await(ctx)
		}
	}
	return nil
}

// isOutage reports whether the log may be readable later, although nobody changes anything.
func isOutage(err error) bool {
	return !errors.Is(err, errTimeline) &&
		(pgsession.IsAway(err) && !pgsession.IsLoginRefused(err) || pgsession.IsLockedOut(err))
}

// next returns the events after the cursor, which it moves past them, and whether there may be more. An error leaves
// the cursor where it is.
func (t *tail) next(ctx context.Context) (events []Event, full bool, err error) {
	read, err := t.log.read(ctx, t.at, maxBatch, false)
	if err == nil && !read.after.isNumbered() {
		read.after, err = t.log.number(ctx, read.after)
	}
	if err != nil {
		return nil, false, err
	}
	t.at = read.after
	return read.events, read.full, nil
}

// begin returns the cursor to begin with.
func (t *tail) begin(ctx context.Context, q *sqlgen.Queries) (cursor, error) {
	if sink := t.config.Sink; sink != "" {
		rows, err := q.SinkCursor(ctx, sink)
		if err == nil && len(rows) == 0 {
			err = fmt.Errorf("there is no sink %q", sink)
		}
		if err != nil {
			return cursor{}, err
		}
		return cursorOf(rows[0].Top, rows[0].Lows, rows[0].Highs), nil
	}
	since := pgtype.Timestamptz{Time: t.config.Since, Valid: true}
	if t.config.Since.IsZero() {
		since = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	top, err := q.PositionSince(ctx, since)
	// Holes before that position may belong to open transactions, whose events are as new.
	c := cursor{top: max(0, top-maxBatch)}
	if err != nil || !t.config.Since.IsZero() {
		return c, err // run leaves out what was stored before that time
	}
	// Events that are visible by now are passed.
	for full := true; full; {
		read, err := t.log.read(ctx, c, maxBatch, false)
		if err != nil {
			return c, err
		}
		c, full = read.after, read.full
	}
	return c, nil
}

// await waits until there may be more events.
func (t *tail) await(ctx context.Context) {
	interval := t.config.Interval
	if interval == 0 {
		interval = time.Second
	}
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-t.config.Wake:
	case <-timer.C:
	}
}
