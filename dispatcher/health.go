package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// health is the answer of the latest statement, and what follows from a bad one.
type health struct {
	log        *slog.Logger
	leave      func(error) // leaves a server that is no good any more
	complaints outage.Complaints

	last atomic.Pointer[error]

	mu        sync.Mutex
	recovered chan struct{} // closed by the next statement that goes through; nil while nobody waits
}

// OK notes a statement that went through.
func (h *health) OK() {
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

// Failed notes what the database answered instead.
func (h *health) Failed(err error) {
	h.last.Store(&err)
	h.leave(err)
}

func (h *health) err() error {
	if p := h.last.Load(); p != nil {
		return *p
	}
	return nil
}

// recovery is closed as soon as a statement goes through, and already if the latest did.
func (h *health) recovery() <-chan struct{} {
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

// rest waits before something is stored that was refused: when there was no server,
// only until one takes any statement. Claims learn from the listener that it is back, and
// what they start is settled behind this; if the process died meanwhile, all of it
// would run again.
func (h *health) rest(wait time.Duration, err error) {
	if !pgsession.IsGone(err) {
		time.Sleep(wait)
		return
	}
	waitAtMost(context.Background(), wait, h.recovery())
}

// waitAtMost waits before something is tried again, for less than d when there is something in sooner, but not for less
// than the shortest wait: anybody may send notifications. It reports false if ctx ended first.
func waitAtMost(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
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

// Complain warns of an error that the database is to blame for, not more often
// than an outage deserves.
func (h *health) Complain(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	h.say(ctx, slog.LevelWarn, message, message, append(attrs, slog.Any("err", err))...)
}

// say logs the message at once, and then every ten seconds at most what has the same key.
func (h *health) say(ctx context.Context, level slog.Level, key, message string, attrs ...slog.Attr) {
	missed, due := h.complaints.Due(key, time.Now())
	if !due {
		return
	}
	if missed > 0 {
		attrs = append(attrs, slog.Int("since_last_line", missed))
	}
	h.log.LogAttrs(ctx, level, message, attrs...)
}
