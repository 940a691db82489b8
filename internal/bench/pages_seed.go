package bench

import (
	"context"
	"fmt"
	"time"
)

// Days over which the jobs of the history are spread.
const historyDays = 14

// seeds create the functions that openJobs, closedJobs and around use.
var seeds = []string{
	// An id as package outbox would have made it at a time.
	`CREATE FUNCTION public.id_at(at timestamptz, n bigint) RETURNS uuid LANGUAGE sql STABLE AS $$
		SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || left(md5(n::text), 3) || '8' || substr(md5(n::text), 4, 15))::uuid
	$$`,
	`CREATE FUNCTION public.tenant_of(n bigint) RETURNS uuid LANGUAGE sql STABLE AS $$
		SELECT CASE WHEN n % 10 = 0 THEN md5((n % 97)::text)::uuid ELSE '00000000-0000-0000-0000-000000000001'::uuid END
	$$`,
	`CREATE FUNCTION public.queue_of(n bigint) RETURNS text LANGUAGE sql STABLE AS $$
		SELECT ('{default,mail,mail,mail,payments,reports,stock,exports}'::text[])[1 + n % 8]
	$$`,
	`CREATE FUNCTION public.kind_of(n bigint) RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'kind.' || n % 8 * 3 + n / 8 % 3 $$`,
}

// openJobs stores the jobs with the numbers $1 to $2: nearly all wait; of each thousand 10 are dead letters, 10 wait
// for their next attempt, 5 behind their key, and one is held. 1 of 5 000 is running.
const openJobs = `
	INSERT INTO outbox.jobs (id, tenant_id, run_at, created_at, epoch, status, attempt, priority, queue, kind, payload, key, lease_owner,
		lease_expires_at, started_at, last_error_code, last_error_message, failed_at, error_fingerprint)
	SELECT public.id_at(at, n), public.tenant_of(n), at + CASE WHEN n % 7 = 0 OR status = 'retrying' THEN interval '1 day' ELSE '0' END, at,
		CASE WHEN status IN ('pending', 'created', 'blocked') THEN 0 ELSE 2 END, status::outbox.job_status,
		CASE WHEN status IN ('pending', 'created', 'blocked') THEN 0 ELSE 1 END, n % 3, public.queue_of(n), public.kind_of(n),
		convert_to(format('{"order": %s, "to": "customer-%s@example.com", "text": "%s"}', n, n % 9973, md5(n::text)), 'UTF8'),
		CASE WHEN n % 5 = 0 OR status = 'blocked' THEN 'customer-' || n % 9973 END,
		CASE status WHEN 'running' THEN 'worker-' || n % 20 END, CASE status WHEN 'running' THEN now() + interval '1 hour' END,
		CASE WHEN status IN ('running', 'retrying', 'dead') THEN at END,
		CASE WHEN status IN ('retrying', 'dead') THEN 'http_' || 500 + n % 4 END,
		CASE WHEN status IN ('retrying', 'dead') THEN format('POST https://shop.example.com/orders/%s: the server is away', n) END,
		CASE status WHEN 'dead' THEN at END, CASE status WHEN 'dead' THEN 'http_' || 500 + n % 4 || ' ' || n % 41 END
	FROM (
		SELECT n, now() - interval '6 hours' + n * interval '6 hours' / $3::bigint AS at,
			CASE WHEN n % 5000 = 1 THEN 'running' WHEN n % 1000 < 10 THEN 'dead' WHEN n % 1000 < 20 THEN 'retrying' WHEN n % 1000 < 25 THEN 'blocked'
				WHEN n % 1000 = 25 THEN 'created' ELSE 'pending' END AS status
		FROM generate_series($1::bigint, $2::bigint) AS n
	) AS job`

// closedJobs stores the jobs $1 to $2 of the history.
const closedJobs = `
	INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, finished_at, epoch, status, closed_from, attempt, max_attempts,
		lost_leases, priority, queue, kind, payload, content_type, key, worker, result)
	SELECT public.id_at(at - interval '2 seconds', n), public.tenant_of(n), at - interval '2 seconds', at - interval '2 seconds',
		CASE WHEN n % 100 > 0 THEN at - interval '1 second' END, at, 2,
		(CASE WHEN n % 100 = 0 THEN 'cancelled' ELSE 'succeeded' END)::outbox.job_status,
		(CASE WHEN n % 100 = 0 THEN 'pending' ELSE 'running' END)::outbox.job_status, 1, 25, 0, n % 3, public.queue_of(n), public.kind_of(n),
		convert_to(format('{"order": %s, "to": "customer-%s@example.com", "text": "%s"}', n, n % 9973, md5(n::text)), 'UTF8'), 'application/json',
		CASE WHEN n % 5 = 0 THEN 'customer-' || n % 9973 END, 'worker-' || n % 20, CASE WHEN n % 10 = 1 THEN '{"sent": true}'::bytea END
	FROM (
		SELECT n, now() - make_interval(days => $4::integer) + n * make_interval(days => $4::integer) / $3::bigint AS at FROM generate_series($1::bigint, $2::bigint) AS n
	) AS job`

// around stores everything else.
var around = []string{
	`INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, finished_at, error_code, error_message, stack, tenant_id)
		SELECT id, 1, 1, 'worker-1', started_at, started_at + interval '1 second', last_error_code, last_error_message, repeat('main.go:12\n', 20), tenant_id
		FROM outbox.jobs WHERE last_error_code IS NOT NULL`,
	`INSERT INTO outbox.audit (at, actor, act, tenant_id, queue, job_id, reason, request_id)
		SELECT now() - n * interval '1 minute', 'person-' || n % 9, (ARRAY['job.retry', 'job.cancel', 'job.dismiss', 'job.replay'])[1 + n % 4], public.tenant_of(n),
			public.queue_of(n), public.id_at(now() - n * interval '1 minute', n), 'because ' || n, 'request-' || n / 20
		FROM generate_series(10000, 1, -1) AS n`,
	`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at)
		SELECT DISTINCT ON (tenant_id, queue, key) tenant_id, queue, key, CASE WHEN random() < 0.1 THEN now() END FROM outbox.jobs WHERE status = 'blocked'`,
	`INSERT INTO outbox.queues (queue, max_running, rate, rate_interval, paused_at) VALUES ('reports', 4, NULL, NULL, NULL), ('exports', NULL, 100, '1 minute', now())`,
	`INSERT INTO outbox.schedules (name, expression, time_zone, kind, queue, payload, next_at)
		SELECT 'schedule-' || n, '0 6 * * *', 'Europe/Berlin', public.kind_of(n), public.queue_of(n), '{}', now() + interval '1 day' FROM generate_series(1, 200) AS n`,
	`INSERT INTO outbox.operations (id, act, filter, per_second, matched, done, actor, reason, request_id, finished_at)
		SELECT outbox.uuid_v7(), 'replay', '{}', 100, 1000, 1000, 'person-1', 'the shop is back', 'request-' || n, now() FROM generate_series(1, 300) AS n`,
	`INSERT INTO outbox.sinks (sink, top, published, moved_at) SELECT 'sink-' || n, 1000, 1000, now() FROM generate_series(1, 5) AS n`,
	`INSERT INTO outbox.builds SELECT 'v1.' || n, now() - n * interval '1 day', now() FROM generate_series(0, 13) AS n`,
	// Two weeks of minutes, with 24 parts each.
	`INSERT INTO outbox.measured SELECT m, m - interval '1 min', true
		FROM generate_series(date_trunc('minute', now()) - interval '14 days', date_trunc('minute', now()), '1 min') AS m`,
	`INSERT INTO outbox.measures SELECT at, '00000000-0000-0000-0000-000000000001', public.queue_of(n), public.kind_of(n), 40000, 10, 400, 1000, 990, 10, 3, ARRAY[NULL, 40, 300, 200, 30, 4, 1]
		FROM outbox.measured, generate_series(0, 23) AS n`,
	`INSERT INTO outbox.measured_hours SELECT m, 3600, true
		FROM generate_series(date_trunc('hour', now()) - interval '14 days', date_trunc('hour', now()), '1 hour') AS m`,
	`INSERT INTO outbox.measures_hours SELECT at, '00000000-0000-0000-0000-000000000001', public.queue_of(n), public.kind_of(n), 40000, 10, 400, 60000, 59400, 600, 180, ARRAY[NULL, 2400, 18000, 12000, 1800, 240, 60]
		FROM outbox.measured_hours, generate_series(0, 23) AS n`,
	`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
		SELECT 'worker-' || n, 'v1.0', '{default,mail,payments,reports,stock}', '{64,64,64,4,16}', ARRAY(SELECT 'kind.' || k FROM generate_series(0, 22) AS k), true
		FROM generate_series(0, 19) AS n`,
}

// seed stores the given numbers of jobs, and everything around them, as after two weeks of operation.
func (r *rig) seed(ctx context.Context, open, closed int) error {
	for _, statement := range seeds {
		if _, err := r.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	for day := range historyDays + 1 { // the partitions of past days, which nothing else creates
		at := time.Now().UTC().AddDate(0, 0, -day)
		_, err := r.pool.Exec(
			ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS outbox.history_%s PARTITION OF outbox.history FOR VALUES FROM ('%s 00:00:00+00') TO ('%s 00:00:00+00')`,
				at.Format("20060102"), at.Format(time.DateOnly), at.AddDate(0, 0, 1).Format(time.DateOnly)))
		if err != nil {
			return err
		}
	}
	err := inBatches(closed, func(first, n int) error {
		_, err := r.pool.Exec(ctx, closedJobs, first, first+n-1, closed, historyDays)
		return err
	})
	if err != nil {
		return err
	}
	err = inBatches(open, func(first, n int) error {
		_, err := r.pool.Exec(ctx, openJobs, first, first+n-1, open)
		return err
	})
	if err != nil {
		return err
	}
	for _, statement := range around {
		if _, err := r.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%.60s: %w", statement, err)
		}
	}
	for _, statement := range []string{`VACUUM (ANALYZE)`, `CHECKPOINT`} {
		if _, err := r.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
