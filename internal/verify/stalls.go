package verify

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// stalls starts to measure how long the machine itself delays a process: forty times a second it measures how late a
// commit ends that is due now. The function that it returns stops that, and returns twice the longest delay: limits in
// milliseconds need that much more if the machine is shared, because it also delays the row's processes, both when they
// wake and when they commit.
//
// Commits that fail, because the server refuses them or is away, are not counted.
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

// firstPromotions measures, until more is called, how long a new session takes for its first promotion, of no key: it
// reads the catalogs and plans as much as the session of a worker that has just started. The function more returns the
// longest.
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
