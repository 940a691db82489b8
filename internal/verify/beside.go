package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// claimBesideALock claims under every combination of the planner's settings while another session holds a lock on the
// job that would be claimed first:
//
//	holder    lock the first job                                        roll back
//	claimer                       claim: the ones behind it, give back
//
// A claim that waits for the holder runs into its lock timeout. A correct claim waits for no lock, so that the timeout
// does not fail the row on a slow machine.
func (r *Run) claimBesideALock(ctx context.Context, c *claimed) (free bool, err error) {
	holder, err := r.DB.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, holder.Rollback(context.WithoutCancel(ctx))) }()
	if _, err := holder.Exec(
		ctx, `SELECT FROM outbox.jobs WHERE status = 'pending' ORDER BY priority DESC, run_at, id LIMIT 1 FOR UPDATE`); err != nil {
		return false, err
	}
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return false, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // planned anew each time
	config.RuntimeParams["lock_timeout"] = "2s"                  // RESET ALL restores this value
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	var waited []string
	before, all, random := c.n, combinations(), fault.Random(r.Seed, "beside a lock")
	for _, settings := range all {
		if _, err := conn.Exec(ctx, settings, pgx.QueryExecModeSimpleProtocol); err != nil {
			return false, err
		}
		err := c.claimOnce(ctx, sqlgen.New(conn), 0, settings, random)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "55P03" {
			waited = append(waited, settings)
			break // the others would wait as long
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", settings, err)
		}
	}
	r.None("claims that waited for a locked job", waited)
	if len(waited) == 0 {
		r.Expect("jobs claimed while another one was locked", float64(c.n-before), ">=", float64(len(all)))
	}
	return len(waited) == 0, nil
}
