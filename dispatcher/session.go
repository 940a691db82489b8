package dispatcher

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

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
