package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// wedgedAfter is how long a listener may keep the server waiting.
const wedgedAfter = 30 * time.Second

// suspect is a listener for which the server was waiting at the last look.
type suspect struct {
	pid     int32
	started pgtype.Timestamptz
	seen    time.Time // when it was first seen waiting, as it has been at every look since
}

// A watchdog ends wedged listeners. Only one goroutine may use it.
type watchdog struct {
	chores   chores
	metrics  *metrics
	log      *slog.Logger
	suspects []suspect
}

// watch ends our own listeners that have stopped reading: their process is stopped or swapped out, or the connection
// swallows everything. No timeout of the server applies to them, and while the server waits for them inside the
// transaction that delivers notifications, vacuum removes nothing in the whole database.
//
// Postgres shows since when the server waits only if it is inside a transaction. Other listeners are ended if every
// look for half a minute finds them waiting; a listener that reads is hardly ever found so even once.
func (w *watchdog) watch(ctx context.Context) (time.Duration, error) {
	if err := w.terminateWedged(ctx, wedgedAfter); err != nil {
		return 0, err
	}
	if len(w.suspects) > 0 {
		return suspectInterval, nil
	}
	return jittered(watchInterval), nil
}

func (w *watchdog) terminateWedged(ctx context.Context, after time.Duration) error {
	params := sqlgen.TerminateWedgedListenersParams{Wedged: pgvalue.Interval(after), Suspects: []int32{}, SuspectStarts: []pgtype.Timestamptz{}}
	seen := map[int32]suspect{}
	for _, s := range w.suspects {
		seen[s.pid] = s
		if time.Since(s.seen) < after {
			continue
		}
		params.Suspects = append(params.Suspects, s.pid)
		params.SuspectStarts = append(params.SuspectStarts, s.started)
	}
	var waiting []sqlgen.TerminateWedgedListenersRow
	err := w.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		waiting, err = q.TerminateWedgedListeners(ctx, params)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for wedged listeners: %w", err)
	}
	w.suspects = w.suspects[:0]
	for _, found := range waiting {
		if !found.Terminated {
			now := suspect{found.Pid, found.BackendStart, time.Now()}
			if before, ok := seen[found.Pid]; ok && before.started.Time.Equal(found.BackendStart.Time) {
				now.seen = before.seen
			}
			w.suspects = append(w.suspects, now)
			continue
		}
		w.metrics.terminated.Inc()
		w.log.LogAttrs(ctx, slog.LevelWarn, "wedged listener terminated",
			slog.Int("pid", int(found.Pid)), slog.String("application_name", found.ApplicationName))
	}
	return nil
}
