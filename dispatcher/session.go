package dispatcher

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

const (
	// statementTimeout bounds every statement of the dispatcher: a stalled connection
	// must not stop a queue or let leases lapse.
	statementTimeout = 5 * time.Second
	// serverTimeout is how long the server may go on with a statement that nobody
	// waits for any more.
	serverTimeout = 2 * statementTimeout
	// hintTimeout is for what can be done without: a stop, or a job, does not wait for a database that is away.
	hintTimeout = time.Second
	// uncertainFor is for how long after a claim without an answer there may be jobs that nobody knows of.
	uncertainFor = serverTimeout + 2*time.Second
	// maxBatch is how many jobs a statement is for at most, and statementBytes how much it moves, so that it fits into
	// its time.
	maxBatch       = 2000
	statementBytes = 16 << 20
)

// openControlPool opens connections of the dispatcher's own, with the settings of
// the user's pool. What their sessions do is independent of statistics and of how the
// server is set. A generic plan that was made while the table was empty would
// read the whole table once it is not.
//
// What a statement of 2000 jobs needs, about a megabyte, glibc's malloc gives back to the
// operating system at its end, and the next statement has it given again, page by page. It
// keeps up to twice the largest block that was ever freed (M_TRIM_THRESHOLD), so one of a
// megabyte is.
func openControlPool(ctx context.Context, user *pgxpool.Pool, conns int) (*pgxpool.Pool, error) {
	return pgsession.Open(ctx, user, pgsession.Config{
		Conns: conns, Needs: "lease jobs", Timeout: serverTimeout, ByIndex: true,
		Settings: map[string]string{"plan_cache_mode": "force_generic_plan"},
		Warm:     `SELECT octet_length('0'::bit(8000000))`,
	})
}

// bounded is the context of one statement.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, statementTimeout)
}

// leaveServer leaves a server that turned read-only. When a connection broke, the others to
// the same server are as good as broken; but the one that extends leases finds out for itself,
// so that a slow claim costs no lease the time of a new connection.
func leaveServer(err error, own, extending, user *pgxpool.Pool) {
	if pgsession.State(err) == "" {
		own.Reset()
	}
	pgsession.LeaveReadOnly(err, own, extending, user)
}
