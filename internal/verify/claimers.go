package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	claimerCount = 64
	maxClaim     = 20 // jobs
	claimedJobs  = 2000
)

// claimers runs row B5.
func claimers(ctx context.Context, r *Run) error {
	if err := r.staleStatistics(ctx); err != nil {
		return err
	}
	c := &claimed{want: r.Size(20_000, 1_000_000), owners: map[string]int{}, combos: map[int]bool{}}
	if free, err := r.claimBesideALock(ctx, c); err != nil || !free {
		return err // claimers that wait for one another would never finish
	}
	group, ctx2 := errgroup.WithContext(ctx)
	for i := range claimerCount {
		group.Go(func() error { return c.claim(ctx2, r, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	r.Progress("check", 0, 0)
	if err := r.closeAll(ctx, c); err != nil {
		return err
	}
	rows, err := r.Number(ctx, `SELECT reltuples::int FROM pg_class WHERE oid = 'outbox.jobs'::regclass`)
	if err != nil {
		return err
	}
	if _, err := r.checkMoves(ctx); err != nil {
		return err
	}
	r.Count("claim statements", c.statements)
	r.Expect("rows in outbox.jobs, by the planner's stale statistics", float64(rows), "=", 1)
	r.Expect("combinations of planner settings tried", float64(len(c.combos)), ">=", 40)
	r.Expect("jobs claimed", float64(c.n), ">=", float64(c.want))
	r.None("claims that returned more jobs than asked for", c.over)
	r.None("leases (job and epoch) granted twice", c.twice)
	r.Expect("claims recorded by the database, compared with those returned to claimers",
		float64(r.record.Counts["claims"]), "=", float64(c.n))
	return nil
}

// staleStatistics stores the jobs without telling the planner: its statistics know of one row.
func (r *Run) staleStatistics(ctx context.Context) error {
	if _, err := r.DB.Exec(ctx, `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`); err != nil {
		return err
	}
	nothing := func(int) probe.Task { return probe.Task{Do: "nothing"} }
	if _, err := r.Enqueue(ctx, tasks(1, nothing), outbox.Options{}); err != nil {
		return err
	}
	if _, err := r.DB.Exec(ctx, `ANALYZE outbox.jobs`); err != nil {
		return err
	}
	for priority := range 3 {
		if _, err := r.Enqueue(ctx, tasks(claimedJobs/3, nothing), outbox.Options{Priority: priority}); err != nil {
			return err
		}
	}
	return nil
}

// combinations returns the planner settings to try. Each leaves the planner one join method and one scan method; some
// also take away sorting, hashing, materializing, or TID scans.
func combinations() (all []string) {
	joins, scans := []string{"nestloop", "hashjoin", "mergejoin"}, []string{"seqscan", "indexscan", "bitmapscan"}
	for _, join := range joins {
		for _, scan := range scans {
			var off []string
			for _, way := range slices.Concat(joins, scans) {
				if way != join && way != scan {
					off = append(off, way)
				}
			}
			for _, more := range [][]string{
				nil,
				{"sort"},
				{"material", "hashagg"},
				{"sort", "material", "memoize"},
				{"tidscan", "material", "memoize"},
			} {
				sql := "RESET ALL; SET jit = off; SET plan_cache_mode = " +
					[]string{"auto", "force_generic_plan"}[len(all)%2]
				for _, way := range slices.Concat(off, more) {
					sql += fmt.Sprintf("; SET enable_%s = off", way)
				}
				all = append(all, sql)
			}
		}
	}
	return all
}

// claimed records what all claimers together were given.
type claimed struct {
	want int // claims

	mu         sync.Mutex
	n          int
	statements int
	owners     map[string]int // by (id, epoch)
	combos     map[int]bool
	over       []string
	twice      []string
}

// claim claims under changing plans until all claimers together have claimed enough. It gives back every job that it
// claims.
func (c *claimed) claim(ctx context.Context, r *Run, me int) error {
	config, err := pgx.ParseConfig(r.URL)
	if err != nil {
		return err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // planned anew each time
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	random := fault.Random(r.Seed, fmt.Sprint("claimer ", me))
	settings := combinations()
	for {
		combo := random.IntN(len(settings))
		if _, err := conn.Exec(ctx, settings[combo], pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		for range 4 {
			if c.enough(combo) {
				return nil
			}
			if err := c.claimOnce(ctx, sqlgen.New(conn), me, settings[combo], random); err != nil {
				return fmt.Errorf("%s: %w", settings[combo], err)
			}
		}
	}
}

func (c *claimed) enough(combo int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.combos[combo] = true
	return c.n >= c.want
}

func (c *claimed) claimOnce(ctx context.Context, q *sqlgen.Queries, me int, plan string, random *rand.Rand) error {
	asked := 1 + random.IntN(maxClaim)
	rows, err := q.ClaimJobs(ctx, claimParams(fmt.Sprint("claimer ", me), asked))
	if err != nil {
		return err
	}
	c.note(me, asked, plan, rows)
	if len(rows) == 0 {
		return backoff.Sleep(ctx, time.Millisecond)
	}
	back := sqlgen.SettleUnfinishedParams{
		Statuses: slices.Repeat([]string{"pending"}, len(rows)), Delays: make([]pgtype.Interval, len(rows)),
		ErrorCodes: make([]string, len(rows)), ErrorMessages: make([]string, len(rows)),
		Stacks: make([]string, len(rows)),
	}
	for _, row := range rows {
		back.Ids, back.Epochs = append(back.Ids, row.ID), append(back.Epochs, row.Epoch)
	}
	returned, err := q.SettleUnfinished(ctx, back)
	if err == nil && len(returned) != len(rows) {
		err = fmt.Errorf("gave back %d of %d jobs", len(returned), len(rows))
	}
	return err
}

func (c *claimed) note(me, asked int, plan string, rows []sqlgen.ClaimJobsRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statements++
	c.n += len(rows)
	if len(rows) > asked {
		c.over = append(c.over, fmt.Sprintf("asked for %d, got %d: %s", asked, len(rows), plan))
	}
	for _, row := range rows {
		lease := leaseOf(outbox.ID(row.ID.Bytes).String(), row.Epoch)
		if other, given := c.owners[lease]; given {
			c.twice = append(c.twice, fmt.Sprintf("%s to claimers %d and %d: %s", lease, other, me, plan))
		}
		c.owners[lease] = me
	}
}

func claimParams(worker string, limit int) sqlgen.ClaimJobsParams {
	p := sqlgen.ClaimJobsParams{
		Worker: worker, LeaseTtl: pgtype.Interval{Microseconds: time.Minute.Microseconds(), Valid: true},
		Queue: engine.DefaultQueue, Kinds: []string{probe.Task{}.Kind()}, MaxJobs: int32(limit),
		Priorities: []int16{2, 1, 0},
		TenantIds:  []pgtype.UUID{{Bytes: outbox.RootTenant, Valid: true}}, Quotas: []int32{int32(limit)},
		Firsts: []int32{1}, Lasts: []int32{3},
	}
	for range p.Priorities { // from the front of the queue
		p.FromRunAt = append(p.FromRunAt, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true})
		p.FromID = append(p.FromID, pgtype.UUID{Valid: true})
	}
	return p
}

// closeAll claims the remaining jobs and lets them succeed, so that every job is closed.
func (r *Run) closeAll(ctx context.Context, c *claimed) error {
	q := sqlgen.New(r.DB)
	for {
		rows, err := q.ClaimJobs(ctx, claimParams("closer", 1000))
		if err != nil || len(rows) == 0 {
			return err
		}
		c.note(claimerCount, 1000, "the planner's own choice", rows)
		done := sqlgen.SettleSucceededParams{Results: make([][]byte, len(rows))}
		for _, row := range rows {
			done.Ids, done.Epochs = append(done.Ids, row.ID), append(done.Epochs, row.Epoch)
		}
		if _, err := q.SettleSucceeded(ctx, done); err != nil {
			return err
		}
	}
}
