package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The floor passes the arguments of our statements by their numbers and reads their results unparsed, which no compiler
// checks.
func TestTheFloorCarriesOutEveryJob(t *testing.T) {
	t.Parallel()
	for name, alike := range map[string]bool{"a claimer and a settler": false, "two that do both": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, pool := t.Context(), pgtest.New(t)
			f := &floor{pool.Config().ConnString(), pool, alike}
			const jobs = 2*batch + 500
			if err := f.EnqueueMany(ctx, 0, jobs); err != nil {
				t.Fatal(err)
			}
			var handled atomic.Int64
			stop, err := f.Work(ctx, func(context.Context, int) { handled.Add(1) })
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); handled.Load() < jobs && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			var open, succeeded int
			if err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM outbox.jobs), (SELECT count(*) FROM outbox.history WHERE status = 'succeeded')`).Scan(&open, &succeeded); err != nil {
				t.Fatal(err)
			}
			if handled.Load() != jobs || open != 0 || succeeded != jobs {
				t.Errorf("%d handled, %d open, %d succeeded; want %d, 0, %d", handled.Load(), open, succeeded, jobs, jobs)
			}
		})
	}
}
