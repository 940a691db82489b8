package dispatcher

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// After a failover to another server the old one accepts no writes: no statement goes to it any more, from any pool.
func TestAServerThatTurnsReadOnlyIsLeftByAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d := atRest(t, db, t.Output())
	own, extending := control(t, db), control(t, db)
	d.compose(t.Context(), own, extending)
	backend := func(pool *pgxpool.Pool) (pid int) {
		if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	pools := map[string]*pgxpool.Pool{"the dispatcher's": own, "that of the leases": extending, "the user's": db}
	before := map[string]int{}
	for name, pool := range pools {
		before[name] = backend(pool)
	}
	d.common.health.Failed(&pgconn.PgError{Code: pgsession.ReadOnly})
	for name, pool := range pools {
		if backend(pool) == before[name] {
			t.Errorf("the connections are kept: %s", name)
		}
	}
}
