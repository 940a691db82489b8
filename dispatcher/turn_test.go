package dispatcher_test

import (
	"fmt"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// enqueueKeyed stores n jobs, each with a key of its own.
func enqueueKeyed(t *testing.T, db outbox.DB, n int, opts outbox.Options) {
	t.Helper()
	requests := make([]outbox.Request, n)
	for i := range requests {
		opts.Key.Name = fmt.Sprint("k", i)
		requests[i] = outbox.Request{Args: probe{i}, Options: opts}
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
}

// Many jobs with a key of one tenant, or of root, and a few of more tenants than one look
// finds: each runs once, and the few are done long before the many.
func TestABacklogWithKeysLeavesRoomForOtherTenants(t *testing.T) {
	t.Parallel()
	for name, whose := range map[string]outbox.Options{"a tenant's": of(0), "root's": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			const backlog, tenants, each = 3_000, 80, 5
			enqueueKeyed(t, db, backlog, whose)
			for n := range tenants {
				enqueueKeyed(t, db, each, of(n+1))
			}
			var s sequence
			config := quiet(nil)
			config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 4}}
			for range 3 {
				start(t, db, handle(s.handle), config)
			}
			const total = backlog + tenants*each
			awaitSucceeded(t, db, total)
			s.mu.Lock()
			defer s.mu.Unlock()
			ids, last := map[outbox.ID]bool{}, 0
			for i, job := range s.starts {
				ids[job.ID] = true
				if job.Tenant != whose.Tenant && !(job.Tenant == outbox.RootTenant && whose.Tenant.IsZero()) {
					last = i
				}
			}
			if len(s.starts) != total || len(ids) != total {
				t.Errorf("started %d times %d jobs, want each of %d once", len(s.starts), len(ids), total)
			}
			if last > backlog*3/4 {
				t.Errorf("the last job of the small tenants started as number %d of %d", last, total)
			}
		})
	}
}
