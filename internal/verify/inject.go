package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// acts maps each kind of fault to the function that injects it.
type acts map[string]func(context.Context, fault.Planned) error

// Inject carries a plan out until it is done or ctx ends, which is no error. Between two faults it waits as long as
// planned, however long the first one took: otherwise, on a slow machine where a restart takes as long as the interval,
// the server would hardly ever be up.
func (r *Run) Inject(ctx context.Context, plan []fault.Planned, how acts) error {
	var last time.Duration
	for _, p := range plan {
		if backoff.Sleep(ctx, p.At-last) != nil {
			return nil
		}
		last = p.At
		// A fault that has begun is finished: half a restart would be another fault.
		if err := how[p.Kind](context.WithoutCancel(ctx), p); err != nil {
			return fmt.Errorf("inject %s: %w", p.Kind, err)
		}
	}
	return nil
}

// restartPostgres stops the server as a crash would, and starts it again.
func (r *Run) restartPostgres(ctx context.Context, _ fault.Planned) error {
	defer r.Faults.Begin("restart Postgres -m immediate", "")()
	err := r.Server.Restart(ctx, pgdev.Immediate)
	r.DB.Reset() // our own connections are gone, too, and the next query needs one that works
	return err
}

// terminateBackend terminates a session that is not the harness's; the dice choose which.
func (r *Run) terminateBackend(ctx context.Context, p fault.Planned) error {
	const others = ` FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1 AND backend_type = 'client backend'`
	hit, err := r.Number(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
		SELECT pid`+others+` ORDER BY backend_start, pid
		LIMIT 1 OFFSET (SELECT floor(count(*) * $2::float8)`+others+`)) AS chosen`, applicationName, p.Dice)
	if err == nil && hit > 0 {
		r.Faults.Begin("pg_terminate_backend", "")()
	}
	return err
}
