package outbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A producer whose clock shows the first of January 2000 (as every clock in a
// synctest bubble does) stores jobs that are due when the database says.
func TestAProducersClockDoesNotMatter(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		delay, from, to time.Duration
	}{
		"at once":    {0, -time.Minute, 0},
		"in an hour": {time.Hour, 59 * time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			var id ID
			synctest.Test(t, func(t *testing.T) {
				if now := time.Now(); now.Year() != 2000 {
					t.Fatalf("the producer's clock shows %s: the test proves nothing", now)
				}
				id, err = Enqueue(context.Background(), conn.Conn(), greet{"ada"}, Options{Delay: c.delay})
			})
			if err != nil {
				t.Fatal(err)
			}
			due := time.Duration(ask[float64](t, db, `SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM outbox.jobs WHERE id = $1`, id) * float64(time.Second))
			if due < c.from || due > c.to {
				t.Errorf("the job is due in %s, want from %s to %s", due, c.from, c.to)
			}
		})
	}
}
