package outbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// enqueueClaimed stores a job and claims it in one statement; see migrations/functions/enqueue_claimed.sql. The answer
// has the columns of ClaimJobs (queries/claim.sql), or no row. The statement is written by hand because the code
// generator does not know a function's columns; the casts are there because the simple protocol does not know the types
// of the arguments.
const enqueueClaimed = `SELECT ` + sqlgen.ClaimedColumns + `, place
FROM outbox.enqueue_claimed($1::uuid, $2::text, $3::text, $4::smallint, $5::integer, $6::interval, $7::text,
	$8::bytea, $9::text, $10::text, $11::boolean, $12::boolean, $13::text, $14::interval)`

// reserve reserves a worker of this process for the job if the transaction enqueued exactly one, and makes the
// statement that stores the job also claim it for that worker. A claimed job needs no wake-up. Any other job of the
// transaction, including one already sent, does need it, so reserve then returns nil.
func (t *producerTx) reserve() engine.Reservation {
	if t.jobs != 1 || len(t.deferred) != 1 || t.deferred[0].plain == nil || t.producer.mode == NotifyOff {
		return nil
	}
	q := &t.deferred[0]
	worker := engine.InternalOf(t.producer).Reserve(q.plain.Kind, q.plain.Queue, q.plain.ID.Bytes)
	if worker != nil {
		q.claimFor(worker)
	}
	return worker
}

// claimFor makes the statement that stores the job also claim it for own.
func (q *queued) claimFor(own engine.Reservation) {
	job := q.plain
	worker, ttl := own.Lease()
	q.own, q.sql = own, enqueueClaimed
	q.args = []any{
		job.ID, job.Queue, job.Kind, job.Priority, job.MaxAttempts, job.Timeout, job.Backoff,
		job.Payload, job.ContentType, job.Headers, job.Watched, job.Notify, worker, pgvalue.IntervalOrNull(ttl),
	}
}

// read reads the answer to the statement that stores the job. It returns a refusal as an error. An answer that cannot
// be read is not an error, because the job may be stored: own then knows, and a broken connection shows as the error of
// the next read.
func (q *queued) read(answers pgx.BatchResults) error {
	if q.own == nil {
		_, err := answers.Exec()
		return err
	}
	rows, err := answers.Query()
	q.own.Read(rows)
	if err == nil {
		err = rows.Err()
	}
	if pgsession.Refused(err) {
		return err
	}
	return nil
}
