package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// health holds the result of the latest statement, and reacts to failures.
type health struct {
	log        *slog.Logger
	leave      func(error) // leaves a server that can no longer be used
	complaints outage.Complaints

	last atomic.Pointer[error]

	mu        sync.Mutex
	recovered chan struct{} // closed by the next statement that succeeds; nil while nobody waits
}

// OK notes that a statement succeeded.
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

// Failed notes the error of a statement.
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

// recovery returns a channel that is closed as soon as a statement succeeds, and already if the latest did.
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

// rest waits before a refused outcome is stored again, or until ctx ends. If there was no server, it waits only until
// some statement succeeds. Claims learn from the listener that the server is back, and the jobs that they start are
// settled after this outcome; if the process died meanwhile, all of those jobs would run again.
func (h *health) rest(ctx context.Context, wait time.Duration, err error) {
	if !pgsession.IsGone(err) {
		_ = backoff.Sleep(ctx, wait)
		return
	}
	waitAtMost(ctx, wait, h.recovery())
}

// waitAtMost waits for d, or until sooner is ready, but at least for backoff.DefaultMin, or d if that is less: anybody
// may send notifications. It reports false if ctx ended first.
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

// Complain logs a warning about an error of the database, at the limited rate of say.
func (h *health) Complain(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	h.say(ctx, slog.LevelWarn, message, message, append(attrs, slog.Any("err", err))...)
}

// say logs the message at once, and messages with the same key at most every ten seconds.
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

const (
	// statementTimeout bounds every statement of the dispatcher: a stalled connection must not stop a queue or let
	// leases lapse.
	statementTimeout = 5 * time.Second
	// serverTimeout is how long the server may go on with a statement whose client has stopped waiting.
	serverTimeout = 2 * statementTimeout
	// hintTimeout bounds optional statements: neither a stop nor a job waits longer for an unreachable database.
	hintTimeout = time.Second
	// uncertainFor is how long after a claim without an answer there may be jobs that this process does not know of.
	uncertainFor = serverTimeout + 2*time.Second
	// maxBatch is the most jobs that one statement handles, and statementBytes the most bytes that it moves, so that it
	// ends in time.
	maxBatch       = 2000
	statementBytes = 16 << 20
)

// openControlPool opens connections of the dispatcher's own, with the settings of the caller's pool. Their sessions do
// not depend on statistics or on the server's configuration: a generic plan made while the table was empty would read
// the whole table once it is not.
//
// A statement of 2000 jobs needs about a megabyte. At its end glibc's malloc would give that memory back to the
// operating system, and the next statement would get it again, page by page. malloc keeps up to twice the largest block
// that was ever freed (M_TRIM_THRESHOLD), so each session first frees a block of a megabyte.
func openControlPool(ctx context.Context, callerPool *pgxpool.Pool, conns int) (*pgxpool.Pool, error) {
	return pgsession.Open(ctx, callerPool, pgsession.Config{
		Conns: conns, Needs: "lease jobs", Timeout: serverTimeout, ByIndex: true,
		Settings: map[string]string{"plan_cache_mode": "force_generic_plan"},
		Warm:     `SELECT octet_length('0'::bit(8000000))`,
	})
}

// bounded returns the context of one statement.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, statementTimeout)
}

// leaveServer leaves a server that turned read-only. When a connection broke, the other connections to the same server
// are most likely broken, too, so their pool is reset. The pool that extends leases is not: it finds out on its own, so
// that a slow claim does not delay an extension by the time of a new connection.
func leaveServer(err error, own, extending, callerPool *pgxpool.Pool) {
	if pgsession.State(err) == "" {
		own.Reset()
	}
	pgsession.LeaveReadOnly(err, own, extending, callerPool)
}
