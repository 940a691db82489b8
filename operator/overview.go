package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Overview summarizes how much work there is and how it goes. It costs about the same however many jobs there are: a
// large table is counted on a sample.
type Overview struct {
	AsOf      time.Time // by the database's clock
	Estimated bool      // waiting jobs were counted on a sample; see Operator.Overview
	NoOldest  bool      // the search for the oldest due jobs was given up, after a quarter of a second
	Queues    []Queue   // without limits, and without unavailable kinds

	// Enqueued and Closed only ever grow. The difference between two Overviews, divided by the time between them, is a
	// rate. Postgres updates them within about a second of each commit, and counts transactions that rolled back, too;
	// when a day of the history is dropped, its part of Closed is subtracted.
	Enqueued, Closed int64

	Recent []Recent // of all kinds together first, then of each, the largest first
}

// Recent describes the jobs that closed last: those of the last five minutes, or about two thousand jobs, whichever is
// less, but none from before midnight UTC.
type Recent struct {
	Kind             string // "" means all
	Jobs             int64
	Unsuccessful     int64     // closed as anything but succeeded
	Since            time.Time // when the first of them closed
	WaitP50, WaitP99 time.Duration
	RunP50, RunP99   time.Duration // of the last attempt, including waits for the settlement
}

const (
	// countedBlocks is how much of the table is counted: about 30 000 jobs.
	countedBlocks = 1024
	// recentBlocks is how many blocks at the end of today's history are read.
	recentBlocks = 64
	// fewEnough is how many rows of a partial index are counted individually.
	fewEnough = 10_000
	// oldestPatience limits the search for the oldest job: while an old snapshot is held, the index begins with entries
	// of jobs that finished long ago.
	oldestPatience = "250ms"
)

// Jobs returns the number of jobs in the given statuses, over all queues.
func (v Overview) Jobs(statuses ...outbox.Status) (n int64) {
	for _, q := range v.Queues {
		for _, s := range statuses {
			n += q.Jobs[s]
		}
	}
	return n
}

// OldestDue returns the oldest due time of all queues that are not paused.
func (v Overview) OldestDue() (oldest time.Time) {
	for _, q := range v.Queues {
		if q.PausedSince.IsZero() && !q.OldestDue.IsZero() && (oldest.IsZero() || q.OldestDue.Before(oldest)) {
			oldest = q.OldestDue
		}
	}
	return oldest
}

// Overview summarizes all jobs: those of all tenants, unless row security restricts the pool's login to the tenant of
// the context (see [WithTenant]). With more than some ten thousand open jobs it counts a sample of the table, accurate
// to a few per cent, so a queue with few jobs may be missing or slightly off. It counts running jobs and dead letters
// in full up to 10 000, and never misses a queue that has due jobs. The full count omits running jobs whose leases
// lapsed more than ten minutes ago: if the reaper runs, there are none.
func (o *Operator) Overview(ctx context.Context) (v Overview, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	ask := func(tx pgx.Tx) error {
		v, err = overview(ctx, tx)
		return err
	}
	if o.in != nil {
		err = pgx.BeginFunc(ctx, o.txs, ask)
	} else {
		err = pgx.BeginTxFunc(ctx, o.pool.Pool, pgx.TxOptions{BeginQuery: "BEGIN READ ONLY" + setTenant(ctx)}, ask)
	}
	if err != nil && !v.NoOldest { // it has aborted the transaction, but nothing else was left to do
		return v, fmt.Errorf("count jobs and queues: %w", err)
	}
	return v, nil
}

// The queries are here rather than in queries/ because they concern the server's catalog and the places of rows, which
// sqlc does not know.

type size struct {
	AsOf             time.Time
	Blocks           int64
	Enqueued, Closed int64
	Today            string // the partition of the history
	TodayBlocks      int64
}

const sizeSQL = `
SELECT statement_timestamp()                                                                        AS as_of,
       pg_relation_size('outbox.jobs') / current_setting('block_size')::bigint                      AS blocks,
       pg_stat_get_tuples_inserted('outbox.jobs'::regclass)                                         AS enqueued,
       (SELECT coalesce(sum(pg_stat_get_tuples_inserted(inhrelid)), 0)::bigint
        FROM pg_inherits
        WHERE inhparent = 'outbox.history'::regclass)                                               AS closed,
       today.name                                                                                   AS today,
       coalesce(pg_relation_size(to_regclass(today.name)) / current_setting('block_size')::bigint, 0) AS today_blocks
FROM (SELECT 'outbox.history_' || to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD') AS name) AS today`

func overview(ctx context.Context, tx pgx.Tx) (v Overview, err error) {
	rows, _ := tx.Query(ctx, sizeSQL) // the next call returns the error
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[size])
	if err != nil {
		return v, err
	}
	queues := map[string]*Queue{}
	v = Overview{AsOf: s.AsOf, Enqueued: s.Enqueued, Closed: s.Closed, Estimated: s.Blocks > countedBlocks}
	if err := countOpen(ctx, tx, s.Blocks, queues); err != nil {
		return v, err
	}
	if v.Recent, err = recent(ctx, tx, s); err != nil {
		return v, err
	}
	err = oldestDue(ctx, tx, queues)
	if v.NoOldest = isStatementTimeout(err); v.NoOldest {
		err = nil
	}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		v.Queues = append(v.Queues, *queues[name])
	}
	return v, err
}

func named(queues map[string]*Queue, name string) *Queue {
	if queues[name] == nil {
		queues[name] = &Queue{Name: name, Jobs: map[outbox.Status]int64{}}
	}
	return queues[name]
}

const (
	countAllSQL = `SELECT queue, status::text, count(*) FROM outbox.jobs GROUP BY queue, status LIMIT 100000`
	// countSampleSQL reads a sample of the blocks, for a table that is too large.
	countSampleSQL = `SELECT queue, status::text, round(count(*) * 100 / $1::float8)::bigint FROM outbox.jobs TABLESAMPLE SYSTEM ($1) GROUP BY queue, status LIMIT 100000`
	// Each part of countRareSQL scans a small index of its own, or the few leases that are extended beside their rows.
	// It omits leases that lapsed long ago (see ExplainWaits in queries/explain.sql).
	countRareSQL = `
SELECT queue, status::text, count(*)
FROM (
    (SELECT queue, status FROM outbox.jobs
     WHERE status = 'running' AND lease_expires_at > statement_timestamp() - interval '10 minutes'
     ORDER BY lease_expires_at LIMIT $1)
    UNION ALL
    (SELECT jobs.queue, jobs.status
     FROM outbox.lease_extensions AS beside
     JOIN outbox.jobs ON jobs.id = ANY (ARRAY[beside.job_id]) AND jobs.epoch = beside.epoch
     WHERE jobs.status::text = 'running' AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes'
     LIMIT $1)
    UNION ALL
    (SELECT queue, status FROM outbox.jobs WHERE status IN ('failed', 'dead') ORDER BY id LIMIT $1)
) AS rare
GROUP BY queue, status
LIMIT 100000`
	pausedSQL = `SELECT queue, paused_at FROM outbox.queues WHERE paused_at IS NOT NULL ORDER BY queue LIMIT 1000`
)

// countOpen fills in the jobs of each queue, and which queues are paused.
func countOpen(ctx context.Context, tx pgx.Tx, blocks int64, queues map[string]*Queue) error {
	var queue, status string
	var n int64
	add := func() error {
		named(queues, queue).Jobs[outbox.Status(status)] = n
		return nil
	}
	count := func(do func() error, sql string, args ...any) error {
		rows, _ := tx.Query(ctx, sql, args...)
		_, err := pgx.ForEachRow(rows, []any{&queue, &status, &n}, do)
		return err
	}
	var err error
	if blocks <= countedBlocks {
		err = count(add, countAllSQL)
	} else if err = count(add, countSampleSQL, 100*float64(countedBlocks)/float64(blocks)); err == nil {
		err = countRare(queues, func(do func(queue string, status outbox.Status, n int64)) error {
			return count(func() error { do(queue, outbox.Status(status), n); return nil }, countRareSQL, fewEnough)
		})
	}
	if err != nil {
		return err
	}
	var since time.Time
	rows, _ := tx.Query(ctx, pausedSQL)
	_, err = pgx.ForEachRow(rows, []any{&queue, &since}, func() error {
		named(queues, queue).PausedSince = since
		return nil
	})
	return err
}

// countRare replaces the sampled counts of running jobs and dead letters by exact ones, unless there are too many of
// them.
func countRare(queues map[string]*Queue, count func(do func(string, outbox.Status, int64)) error) error {
	type place struct {
		queue  string
		status outbox.Status
	}
	exact, total := map[place]int64{}, map[bool]int64{}
	err := count(func(queue string, status outbox.Status, n int64) {
		exact[place{queue, status}] = n
		total[status == outbox.Running] += n
	})
	if err != nil {
		return err
	}
	for _, s := range []outbox.Status{outbox.Running, outbox.Failed, outbox.Dead} {
		if total[s == outbox.Running] >= fewEnough {
			continue
		}
		for _, q := range queues {
			delete(q.Jobs, s)
		}
		for at, n := range exact {
			if at.status == s {
				named(queues, at.queue).Jobs[s] = n
			}
		}
	}
	return nil
}

// The history is only ever appended to during its day: the jobs that closed last are at its end, and a range of places
// finds them without an index.
const recentSQL = `
SELECT coalesce(kind, ''), count(*), count(*) FILTER (WHERE status <> 'succeeded'), min(finished_at),
       coalesce(percentile_cont(0.5)  WITHIN GROUP (ORDER BY greatest(extract(epoch FROM started_at - run_at), 0)::float8), 0),
       coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY greatest(extract(epoch FROM started_at - run_at), 0)::float8), 0),
       coalesce(percentile_cont(0.5)  WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at)::float8), 0),
       coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at - started_at)::float8), 0)
FROM outbox.history
WHERE finished_at >= date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
  AND finished_at >= statement_timestamp() - interval '5 minutes'
  AND ctid >= $1::text::tid
GROUP BY GROUPING SETS ((), (kind))
ORDER BY grouping(kind) DESC, 2 DESC, 1
LIMIT 1000`

func recent(ctx context.Context, tx pgx.Tx, s size) (found []Recent, err error) {
	first := max(0, s.TodayBlocks-recentBlocks)
	rows, _ := tx.Query(ctx, recentSQL, fmt.Sprintf("(%d,0)", first))
	var r Recent
	var since *time.Time
	var wait50, wait99, run50, run99 float64
	_, err = pgx.ForEachRow(rows, []any{&r.Kind, &r.Jobs, &r.Unsuccessful, &since, &wait50, &wait99, &run50, &run99},
		func() error {
			if since == nil { // a sum without rows
				return nil
			}
			r.Since, r.WaitP50, r.WaitP99, r.RunP50, r.RunP99 = *since, pgvalue.Seconds(wait50), pgvalue.Seconds(wait99),
				pgvalue.Seconds(run50),
				pgvalue.Seconds(run99)
			found = append(found, r)
			return nil
		})
	return found, err
}

// skipScans lists the indexes of due jobs, each of which has the queue, the tenant and the priority before the times:
// oldestSQL goes from one combination of these to the next, and looks at the first entry of each. It reads all or, for
// lack of time, none: a limit on the combinations would leave out the queues behind it.
var skipScans = []skipScan{{"plain", "key IS NULL"}, {"keyed", "key IS NOT NULL"}}

type skipScan struct{ name, which string }

var oldestSQL = func() string {
	var levels, firsts []string
	for _, w := range skipScans {
		levels, firsts = append(levels, w.levels()), append(firsts, w.firsts())
	}
	return `
WITH RECURSIVE` + strings.Join(levels, ",") + `
SELECT first.queue, min(first.run_at)
FROM (` + strings.Join(firsts, `
    UNION ALL`) + `
) AS first
WHERE first.run_at <= statement_timestamp()
GROUP BY first.queue
LIMIT 100000`
}()

func (s skipScan) levels() string {
	return s.in(`
NAME AS (
    (SELECT queue, tenant_id, priority FROM outbox.jobs WHERE WHICH
     ORDER BY queue, tenant_id DESC, priority DESC LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM NAME
    CROSS JOIN LATERAL (
        (SELECT jobs.queue, jobs.tenant_id, jobs.priority FROM outbox.jobs
         WHERE WHICH AND jobs.queue = NAME.queue
           AND (jobs.tenant_id, jobs.priority) < (NAME.tenant_id, NAME.priority)
         ORDER BY jobs.queue, jobs.tenant_id DESC, jobs.priority DESC LIMIT 1)
        UNION ALL
        (SELECT jobs.queue, jobs.tenant_id, jobs.priority FROM outbox.jobs
         WHERE WHICH AND jobs.queue > NAME.queue
         ORDER BY jobs.queue, jobs.tenant_id DESC, jobs.priority DESC LIMIT 1)
        LIMIT 1
    ) AS next
)`)
}

func (s skipScan) firsts() string {
	return s.in(`
    SELECT level.queue, oldest.run_at
    FROM NAME AS level
    CROSS JOIN LATERAL (
        SELECT jobs.run_at FROM outbox.jobs
        WHERE WHICH AND jobs.queue = level.queue AND jobs.tenant_id = level.tenant_id
          AND jobs.priority = level.priority
        ORDER BY jobs.run_at LIMIT 1
    ) AS oldest`)
}

func (s skipScan) in(sql string) string {
	return strings.NewReplacer("NAME", s.name, "WHICH", "status IN ('pending', 'retrying') AND "+s.which).Replace(sql)
}

func oldestDue(ctx context.Context, tx pgx.Tx, queues map[string]*Queue) error {
	if _, err := tx.Exec(ctx, `SELECT set_config('statement_timeout', $1, true)`, oldestPatience); err != nil {
		return err
	}
	var queue string
	var since time.Time
	rows, _ := tx.Query(ctx, oldestSQL)
	_, err := pgx.ForEachRow(rows, []any{&queue, &since}, func() error {
		named(queues, queue).OldestDue = since
		return nil
	})
	return err
}

func isStatementTimeout(err error) bool {
	return pgsession.State(err) == pgsession.QueryCanceled
}
