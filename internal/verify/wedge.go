package verify

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// wedgedListener runs row C6: a process is stopped while so much is notified that the server cannot deliver its
// notifications.
func wedgedListener(ctx context.Context, r *Run) error {
	const victims, survivors = 1, 2
	victim, err := r.Worker("w0")
	if err != nil {
		return err
	}
	pid, err := r.listenerOf(ctx, victim, []string{})
	if err != nil {
		return err
	}
	workers := []*child.Process{victim}
	for i := range survivors {
		w, err := r.Worker(fmt.Sprintf("w%d", victims+i))
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	if err := r.awaitStatus(ctx, "ready", workers...); err != nil {
		return err
	}
	others, err := r.Texts(ctx, `SELECT pid::text FROM pg_stat_activity WHERE `+listeners+` AND pid <> $1`, pid)
	if err != nil {
		return err
	}
	err = r.trickle(ctx, workers, aJobEvery100ms("VERIFY_NOTIFY=transactional"), func(ctx context.Context) error {
		for i := range r.Size(1, 10) {
			if i > 0 {
				if pid, err = r.listenerOf(ctx, victim, others); err != nil {
					return err
				}
			}
			if err := r.wedge(ctx, victim, pid); err != nil {
				return err
			}
		}
		ended, err := metric(ctx, "outbox_reaper_listeners_terminated_total", workers[victims:]...)
		r.Expect("stopped listeners terminated, by the reapers' metric", ended, ">=", float64(r.Size(1, 10)))
		return err
	})
	if err != nil {
		return err
	}
	r.Expect("orders whose transaction failed", float64(r.record.Counts["attempted"]-r.record.Counts["acknowledged"]),
		"=", 0)
	return nil
}

// listenerOf waits until the victim listens, and returns its session: the one that is not in others. It must not ask
// the victim first, which right after a pause still believes in the session that was terminated meanwhile:
//
//	reaper   ends the victim's session
//	we       continue the victim, and ask it: ready
//	we       stop it again: nobody listens, and the newest session is another's
//	victim   (would have found out now)
//
// The victim connects anew when it has found out. So listenerOf first waits for the session, and then for the victim's
// status.
func (r *Run) listenerOf(ctx context.Context, victim *child.Process, others []string) (pid int, err error) {
	err = r.Await(ctx, patience, victim.Name+" to connect its listener", func(ctx context.Context) (_ bool, err error) {
		pid, err = r.Number(ctx, `SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE `+listeners+
			` AND pid <> ALL ($1::text[]::int[])`, others)
		return pid != 0, err
	})
	if err != nil {
		return 0, err
	}
	return pid, r.awaitStatus(ctx, "ready", victim)
}

// listeners is the SQL condition for sessions that listen.
const listeners = `datname = current_database() AND application_name = 'posthaste-listener'`

// How many notifications are sent while the victim is stopped, and their size: a few hundred are more than its socket
// buffers.
const (
	notifiedTimes = 50_000
	notifiedBytes = 400
)

// wedge stops the victim, sends notifications, waits until the reaper has terminated its session, and continues it.
func (r *Run) wedge(ctx context.Context, victim *child.Process, pid int) error {
	if err := victim.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	healed := r.Faults.Begin("SIGSTOP of a worker", victim.Name)
	defer func() {
		_ = victim.Signal(syscall.SIGCONT) // it is gone only if the run failed
		healed()
	}()
	if err := r.notifyMuch(ctx); err != nil {
		return err
	}
	var usage float64
	err := r.DB.QueryRow(ctx, `SELECT pg_notification_queue_usage()`).Scan(&usage)
	if err != nil {
		return err
	}
	wedged := time.Now()
	r.Expect("share of the notification queue in use while a listener was stopped", usage, ">=", 0.0001)
	r.Expect("snapshots held by the stopped listener's session", float64(r.held(ctx, pid)), "=", 1)
	if err := r.Await(ctx, 3*time.Minute, "the stopped listener's snapshot to be freed",
		func(ctx context.Context) (bool, error) {
			n, err := r.Number(ctx,
				`SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND application_name = 'posthaste-listener'`, pid)
			return n == 0, err
		}); err != nil {
		return err
	}
	freed := time.Since(wedged)
	r.Figure("freed_after_s", freed.Seconds())
	r.Expect("seconds until the stopped listener's snapshot was released", freed.Seconds(), "<=", 45)
	if err := r.Await(ctx, patience, "the other workers to read the notifications",
		func(ctx context.Context) (bool, error) {
			err := r.DB.QueryRow(ctx, `SELECT pg_notification_queue_usage()`).Scan(&usage)
			return usage <= 0.0001, err
		}); err != nil && ctx.Err() != nil {
		return err
	}
	r.Expect("share of the notification queue in use after that", usage, "<=", 0.0001)
	return nil
}

// held returns 1 once a session waits for its client and holds a snapshot, and 0 if that does not happen in time.
func (r *Run) held(ctx context.Context, pid int) (n int) {
	err := r.Await(ctx, patience, "the server to wait for the stopped listener",
		func(ctx context.Context) (_ bool, err error) {
			n, err = r.Number(ctx,
				`SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'ClientWrite' AND backend_xmin IS NOT NULL`, pid)
			return n > 0, err
		})
	if err != nil {
		return 0
	}
	return n
}

func (r *Run) notifyMuch(ctx context.Context) error {
	const batch = 1000
	for n := 0; n < notifiedTimes; n += batch {
		_, err := r.DB.Exec(ctx, `SELECT pg_notify($1, i || repeat('x', $2)) FROM generate_series(1, $3::int) AS i`,
			engine.Channel, notifiedBytes, batch)
		if err != nil {
			return fmt.Errorf("notify: %w", err)
		}
	}
	return nil
}
