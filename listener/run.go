package listener

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	// maxRetryWait is short, because a job may be waiting and one refused connection per second and process does no
	// harm to a starting server.
	maxRetryWait = time.Second

	// settled is how long a session must have lasted to count as a success. If a server drops sessions at once, again
	// and again, the listener backs off.
	settled = maxRetryWait
)

// run is one call of Run. It belongs to the goroutine of that call, on which pgxlisten makes all its callbacks:
// connect, note and the handlers.
type run struct {
	*Listener
	retry    backoff.Backoff
	attempts int
	sessions int      // how many have reached listening
	session  *session // nil while there is no connection
	cause    error    // why the last session ended, as far as pgxlisten reported
}

// connect ends the previous session, if any, and opens the next. pgxlisten calls it again while it fails. It never
// returns a connection twice.
func (r *run) connect(ctx context.Context) (*pgx.Conn, error) {
	r.endSession(ctx)
	if r.attempts > 0 {
		if err := r.retry.Wait(ctx); err != nil {
			return nil, err
		}
	}
	r.attempts++

	ln, err := open(ctx, r.Listener.connect)
	if err == nil {
		// This session stays idle by design, so limits on idle sessions must not apply to it.
		if err = pgsession.Prepare(ctx, ln.conn); err != nil {
			_ = ln.conn.Close(ctx)
			ln.hangUp()
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			r.enter(ctx, unreachable, errAttr(err))
		}
		return nil, err
	}
	r.session = newSession(r.Listener, ln)
	return ln.conn, nil
}

// note stores an error; it is pgxlisten's LogError. It does no more: endSession and connect know what the error means,
// and log it.
func (r *run) note(_ context.Context, err error) { r.cause = err }

func (r *run) endSession(ctx context.Context) {
	s := r.session
	if s == nil {
		return
	}
	r.session = nil
	s.end()
	if s.proven && time.Since(s.started) > settled {
		r.retry.Reset()
	}
	if !s.deaf && ctx.Err() == nil {
		r.enter(ctx, lost, errAttr(r.cause))
	}
}

// listening sets the signals when LISTEN has succeeded, because earlier notifications are lost: something may have been
// missed. It is called once per channel.
func (r *run) listening(ctx context.Context) {
	if !r.session.listening(ctx) {
		return
	}
	if r.sessions++; r.sessions > 1 {
		r.metrics.reconnects.Inc()
	}
	r.wakeUp()
	for _, by := range r.byPayload {
		by.Set()
	}
}

// notified and canaryReturned run for every notification. They must never block: a client that stops reading its
// notifications keeps vacuum from cleaning up in the whole database.
func (r *run) notified(payload string) {
	r.metrics.received.Inc()
	r.session.heard.Store(true)
	r.wakeUp()
	if by, ok := r.byPayload[payload]; ok {
		by.Set()
	}
}

func (r *run) canaryReturned(string) { r.session.returned() }

func (r *run) wakeUp() {
	if !r.wake.Set() {
		r.metrics.coalesced.Inc()
	}
	for _, also := range r.alsoWake {
		also.Set()
	}
}

// handler adapts two functions to pgxlisten's Handler and BacklogHandler.
type handler struct {
	listening func(context.Context)
	heard     func(payload string)
}

func (h handler) HandleBacklog(ctx context.Context, _ string, _ *pgx.Conn) error {
	h.listening(ctx)
	return nil
}

func (h handler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	h.heard(n.Payload)
	return nil
}
