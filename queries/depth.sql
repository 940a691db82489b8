-- name: SampleDepth :many
-- SampleDepth counts the jobs that wait, for each of the @max_kinds deepest kinds
-- and for the rest together, which is called other; and tells their part of the
-- dead letters, the age of their oldest due job, and how many are blocked by their
-- keys since when. It reads the whole table once.
WITH depth AS (
    SELECT kind,
           count(*) FILTER (WHERE status IN ('pending', 'retrying')) AS waiting,
           count(*) FILTER (WHERE status IN ('failed', 'dead'))      AS dead_letters,
           min(run_at) FILTER (WHERE status IN ('pending', 'retrying') AND run_at <= now()) AS oldest_due,
           count(*) FILTER (WHERE status = 'blocked')                AS blocked,
           min(run_at) FILTER (WHERE status = 'blocked')             AS oldest_blocked
    FROM outbox.jobs
    GROUP BY kind
), ranked AS (
    SELECT depth.*, row_number() OVER (ORDER BY waiting DESC, kind) AS rank
    FROM depth
)
SELECT (CASE WHEN rank <= @max_kinds::integer THEN kind ELSE 'other' END)::text AS job_type,
       sum(waiting)::bigint AS waiting,
       sum(dead_letters)::bigint AS dead_letters,
       coalesce(extract(epoch FROM now() - min(oldest_due)), 0)::double precision AS oldest_due_age_seconds,
       sum(blocked)::bigint AS blocked,
       coalesce(extract(epoch FROM now() - min(oldest_blocked)), 0)::double precision AS oldest_blocked_age_seconds
FROM ranked
GROUP BY 1
LIMIT 10000;
