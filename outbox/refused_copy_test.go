package outbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// countCopies counts the COPYs that are tried on a connection.
type countCopies struct{ tried int }

func (c *countCopies) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	c.tried++
	return ctx
}
func (c *countCopies) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}
func (c *countCopies) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *countCopies) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Postgres takes COPY from no role that row-level security applies to:
//
//	1st call   BEGIN (or SAVEPOINT), COPY: refused, ROLLBACK, BEGIN, INSERT, COMMIT
//	2nd call   BEGIN, INSERT, COMMIT
func TestACopyThatIsRefusedBecomesAnInsertOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config().ConnConfig
	copies := new(countCopies)
	config.Tracer = copies
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	many := make([]Request, copyFrom)
	for i := range many {
		many[i].Args = greet{}
	}
	enqueueMany := func(what string, db DB, wantCopies int) {
		t.Helper()
		copies.tried = 0
		if _, err := EnqueueMany(t.Context(), db, many); err != nil || copies.tried != wantCopies {
			t.Errorf("%s: %v after %d COPYs, want %d", what, err, copies.tried, wantCopies)
		}
	}
	enqueueMany("as one that row security does not apply to", conn, 1)
	exec(t, conn, `SET ROLE outbox_producer; SET app.tenant_id = '00000000-0000-0000-0000-000000000001'`)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	enqueueMany("the first time, in a transaction", tx, 1)
	enqueueMany("the second time, in the same", tx, 0)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueMany("afterwards", conn, 0)
	if n := countJobs(t, db); n != 4*copyFrom {
		t.Errorf("%d jobs, want %d", n, 4*copyFrom)
	}
}
