// Package health records whether the database answers, limits what is logged while it does not, and lets those who wait
// for it go on as soon as it does.
package health

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// Health holds the result of the latest statement. It is safe for concurrent use.
type Health struct {
	Leave func(error) // leaves a server that can no longer be used

	log        *slog.Logger
	complaints outage.Complaints

	last atomic.Pointer[error]

	mu        sync.Mutex
	recovered chan struct{} // closed by the next statement that succeeds; nil while nobody waits
}

// New returns a Health that leaves no server.
func New(log *slog.Logger) *Health { return &Health{log: log, Leave: func(error) {}} }

// OK notes that a statement succeeded.
func (h *Health) OK() {
	if h.last.Load() == nil { // nearly always
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last.Store(nil)
	if h.recovered != nil {
		close(h.recovered)
		h.recovered = nil
	}
}

// Failed notes the error of a statement.
func (h *Health) Failed(err error) {
	h.last.Store(&err)
	h.Leave(err)
}

// Err returns the error of the latest statement, or nil if it succeeded.
func (h *Health) Err() error {
	if p := h.last.Load(); p != nil {
		return *p
	}
	return nil
}

// recovery returns a channel that is closed as soon as a statement succeeds, and already if the latest did.
func (h *Health) recovery() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.recovered == nil {
		h.recovered = make(chan struct{})
	}
	recovered := h.recovered
	if h.last.Load() == nil {
		close(recovered)
		h.recovered = nil
	}
	return recovered
}

// Rest waits before a statement that has failed is repeated, or until ctx ends. If there was no server, it waits only
// until some statement succeeds. Claims learn from the listener that the server is back, and the jobs that they start
// are settled after an outcome that rests; if the process died meanwhile, all of those jobs would run again.
func (h *Health) Rest(ctx context.Context, wait time.Duration, err error) {
	if !pgsession.IsGone(err) {
		_ = backoff.Sleep(ctx, wait)
		return
	}
	WaitAtMost(ctx, wait, h.recovery())
}

// WaitAtMost waits for d, or until sooner is ready, but at least for backoff.DefaultMin, or d if that is less: anybody
// may send notifications. It reports false if ctx ended first.
func WaitAtMost(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	least := min(d, backoff.DefaultMin)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
		return false
	case <-sooner:
	case <-time.After(d - least):
	}
	return true
}

// Complain logs a warning about an error of the database, at the limited rate of Say.
func (h *Health) Complain(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	attrs = append(attrs, slog.Any("err", err))
	// The function in which the error arose: most likely a user's trigger, which may keep a queue from its jobs.
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Where != "" {
		attrs = append(attrs, slog.String("where", pgErr.Where))
	}
	h.Say(ctx, slog.LevelWarn, message, message, attrs...)
}

// Say logs the message at once, and messages with the same key at most every ten seconds.
func (h *Health) Say(ctx context.Context, level slog.Level, key, message string, attrs ...slog.Attr) {
	missed, due := h.complaints.Due(key, time.Now())
	if !due {
		return
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("since_last_line", missed))
	}
	h.log.LogAttrs(ctx, level, message, attrs...)
}
