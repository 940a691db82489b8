package reaper

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// statementTimeout bounds every statement but one: a stalled connection must not
// stop the reaper. depthTimeout is for the one that reads a whole table.
const (
	statementTimeout = 5 * time.Second
	depthTimeout     = 30 * time.Second
)

// The passes over leases and deadlines scan one index for a known number of rows. The
// chores are of the other kind: how best to read much is for the planner to say, by the very
// minute that is asked for (it is at the end of a long history: a plan for any minute reads
// all of it), but not with more processes than the one whose time we measure.
func (r *Reaper) openPools(ctx context.Context) (err error) {
	r.leases, err = pgsession.Open(ctx, r.user, pgsession.Config{Conns: 2, Needs: "reap", Timeout: 10 * time.Second, ByIndex: true})
	if err != nil {
		return err
	}
	r.chores, err = pgsession.Open(ctx, r.user, pgsession.Config{
		Conns: 1, Needs: "reap", Timeout: depthTimeout + 5*time.Second,
		Settings: map[string]string{"max_parallel_workers_per_gather": "0", "plan_cache_mode": "force_custom_plan"},
	})
	if err != nil {
		r.leases.Close()
	}
	return err
}
