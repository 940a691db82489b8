package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	wedgedAfter   = 30 * time.Second // how long a listener may keep the server waiting
	vanishedAfter = 30 * time.Second // how long an idle transaction may lock a job whose lease has lapsed
)

// suspect is a listener for which the server was waiting at the last look.
type suspect struct {
	pid     int32
	started pgtype.Timestamptz
	seen    time.Time // when it was first seen waiting, as it has been at every look since
}

// A watchdog ends wedged listeners and stuck transactions. Only one goroutine may use it.
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
//
// It also ends the transactions of handlers whose process, or the connection to it, is gone: the passes over the leases
// skip rows that are locked. The kernel ends sessions that we open earlier (internal/pgsession). Users' own pools may
// lack these settings, poolers may hide the client, and keepalives do not help while an answer is on its way.
func (w *watchdog) watch(ctx context.Context) (time.Duration, error) {
	if err := w.terminate(ctx, wedgedAfter, vanishedAfter); err != nil {
		return 0, err
	}
	if len(w.suspects) > 0 {
		return suspectInterval, nil
	}
	return backoff.Jitter(watchInterval), nil
}

func (w *watchdog) terminate(ctx context.Context, wedged, vanished time.Duration) error {
	params := sqlgen.TerminateStuckSessionsParams{
		Wedged: pgvalue.Interval(wedged), Idle: pgvalue.Interval(vanished), Suspects: []int32{},
		SuspectStarts: []pgtype.Timestamptz{},
	}
	seen := map[int32]suspect{}
	for _, s := range w.suspects {
		seen[s.pid] = s
		if time.Since(s.seen) < wedged {
			continue
		}
		params.Suspects = append(params.Suspects, s.pid)
		params.SuspectStarts = append(params.SuspectStarts, s.started)
	}
	var stuck []sqlgen.TerminateStuckSessionsRow
	err := w.chores.do(ctx, statementTimeout, func(ctx context.Context, q *sqlgen.Queries) (err error) {
		stuck, err = q.TerminateStuckSessions(ctx, params)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for sessions that are stuck: %w", err)
	}
	w.suspects = w.suspects[:0]
	for _, found := range stuck {
		if found.JobID.Valid {
			w.log.LogAttrs(ctx, slog.LevelWarn,
				"session terminated: its transaction was idle and kept a job whose lease had lapsed",
				slog.Int("pid", int(found.Pid)), slog.String("application_name", found.ApplicationName),
				slog.String("job_id", outbox.ID(found.JobID.Bytes).String()), slog.Bool("terminated", found.Terminated))
			continue
		}
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
