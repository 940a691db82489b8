package outbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// enqueueClaimed stores a job and claims it, in one statement; see
// migrations/functions/enqueue_claimed.sql. The answer has the columns of ClaimJobs
// (queries/claim.sql), or no row. The code generator does not know those of a function,
// and the simple protocol not the types of its arguments.
const enqueueClaimed = `SELECT ` + sqlgen.ClaimedColumns + `, place
FROM outbox.enqueue_claimed($1::uuid, $2::text, $3::text, $4::smallint, $5::integer, $6::interval, $7::text,
	$8::bytea, $9::text, $10::text, $11::boolean, $12::boolean, $13::text, $14::interval)`

// reserve keeps a worker for the one job that was enqueued, if there is one here, and has
// the job claimed for it. Any other job of the transaction, also one that has been sent, needs
// the wake-up that a claimed one does without.
func (t *producerTx) reserve() engine.Reservation {
	if t.jobs != 1 || len(t.later) != 1 || t.later[0].plain == nil || t.producer.mode == NotifyOff {
		return nil
	}
	q := &t.later[0]
	worker := engine.Of(t.producer).Reserve(q.plain.Kind, q.plain.Queue, q.plain.ID.Bytes)
	if worker != nil {
		q.claimFor(worker)
	}
	return worker
}

// claimFor has the statement that stores the job claim it for own.
func (q *queued) claimFor(own engine.Reservation) {
	job := q.plain
	worker, ttl := own.Lease()
	q.own, q.sql = own, enqueueClaimed
	q.args = []any{
		job.ID, job.Queue, job.Kind, job.Priority, job.MaxAttempts, job.Timeout, job.Backoff,
		job.Payload, job.ContentType, job.Headers, job.Watched, job.Notify, worker, pgvalue.IntervalOrNull(ttl),
	}
}

// read reads the answer to the statement that stores the job. A refusal is an error; an
// answer that cannot be read is not, because the job may be stored: then own knows, and
// a broken connection is the error of whatever is read next.
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
