package verify

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// stalls begins to measure what the machine itself makes everybody wait: how late
// something comes that is due now and has to commit, forty times a second. The
// function that it returns ends that and tells twice the worst: what a limit in
// milliseconds needs on top where others share the machine. The row's processes
// were kept waiting by it too, when they were woken and when they committed.
//
// What the server refuses, or does not get because it is away, is not counted.
func (r *Run) stalls(ctx context.Context) (more func() time.Duration) {
	const every = 25 * time.Millisecond
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan time.Duration)
	go func() {
		var longest time.Duration
		for due := time.Now().Add(every); backoff.Sleep(ctx, time.Until(due)) == nil; due = time.Now().Add(every) {
			if _, err := r.DB.Exec(ctx, `SELECT pg_logical_emit_message(true, 'verify', 'stall')`); err == nil {
				longest = max(longest, time.Since(due))
			}
		}
		ended <- longest
	}()
	return func() time.Duration {
		stop()
		longest := <-ended
		r.Figure("machine_stall_max_ms", milliseconds(longest))
		return 2 * longest
	}
}

// firstPromotions measures, until more is called, how long a session that has just been
// opened takes for its first promotion, of no key: it reads the catalogues and plans as
// much as that of a worker which has just started.
func (r *Run) firstPromotions(ctx context.Context) (more func() time.Duration) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan time.Duration)
	go func() {
		var longest time.Duration
		for backoff.Sleep(ctx, 500*time.Millisecond) == nil {
			began := time.Now()
			conn, err := pgx.ConnectConfig(ctx, r.DB.Config().ConnConfig)
			if err != nil {
				continue
			}
			if _, err := conn.Exec(ctx, `SELECT outbox.promote_keys('{}', '{}', '{}', '{}')`); err == nil {
				longest = max(longest, time.Since(began))
			}
			_ = conn.Close(ctx)
		}
		ended <- longest
	}()
	return func() time.Duration {
		stop()
		longest := <-ended
		r.Figure("first_promotion_max_ms", milliseconds(longest))
		return longest
	}
}
