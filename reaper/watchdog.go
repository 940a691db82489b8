package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// wedgedAfter is how long a listener may keep the server waiting.
const wedgedAfter = 30 * time.Second

// suspect is a listener that the server waited for when we last looked.
type suspect struct {
	pid     int32
	started pgtype.Timestamptz
	seen    time.Time // first, and waiting at every look since
}

// watch ends our own listeners that have stopped reading: a process that is
// stopped or swapped out, or behind a connection that swallows everything. No
// timeout of the server applies to them, and while they wait inside of the
// transaction that delivers, vacuum removes nothing in the whole database.
//
// Postgres tells since when they wait only if it is inside of a transaction. The
// others are ended if we find them waiting at every look for half a minute; a
// listener that reads is hardly ever found so once.
func (r *Reaper) watch(ctx context.Context) (time.Duration, error) {
	if err := r.terminateWedged(ctx, wedgedAfter); err != nil {
		return 0, err
	}
	if len(r.suspects) > 0 {
		return suspectInterval, nil
	}
	return jittered(watchInterval), nil
}

func (r *Reaper) terminateWedged(ctx context.Context, after time.Duration) error {
	params := sqlgen.TerminateWedgedListenersParams{Wedged: pgvalue.Interval(after), Suspects: []int32{}, SuspectStarts: []pgtype.Timestamptz{}}
	seen := map[int32]suspect{}
	for _, s := range r.suspects {
		seen[s.pid] = s
		if time.Since(s.seen) < after {
			continue
		}
		params.Suspects = append(params.Suspects, s.pid)
		params.SuspectStarts = append(params.SuspectStarts, s.started)
	}
	var waiting []sqlgen.TerminateWedgedListenersRow
	err := r.onChores(ctx, statementTimeout, func(ctx context.Context, _ *pgxpool.Conn, q *sqlgen.Queries) (err error) {
		waiting, err = q.TerminateWedgedListeners(ctx, params)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for wedged listeners: %w", err)
	}
	r.suspects = r.suspects[:0]
	for _, w := range waiting {
		if !w.Terminated {
			now := suspect{w.Pid, w.BackendStart, time.Now()}
			if before, ok := seen[w.Pid]; ok && before.started.Time.Equal(w.BackendStart.Time) {
				now.seen = before.seen
			}
			r.suspects = append(r.suspects, now)
			continue
		}
		r.metrics.terminated.Inc()
		r.log.LogAttrs(ctx, slog.LevelWarn, "wedged listener terminated",
			slog.Int("pid", int(w.Pid)), slog.String("application_name", w.ApplicationName))
	}
	return nil
}
