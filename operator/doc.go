// Package operator provides the questions and acts of operators: list and explain jobs and queues, pause and resume,
// retry, dismiss, cancel and release. It holds no state and runs nothing; the API, the console and the CLI are thin
// layers over it.
//
// Most acts are one statement; the others are one transaction. They obey the same rules as workers: an act on a job
// raises the job's epoch, so that a worker that still believes that it owns the job can no longer write anything. Only
// [Operator.Cancel] leaves a running job to its worker, and asks it to stop. The same statement or transaction writes a
// row of outbox.audit: who acted, what was changed, and why ([Operator.As], [Operator.Because]). [Operator.WithTx]
// makes an act part of a caller's transaction.
package operator

// Any act added here must record itself in the same way. If it is one statement, use a CTE that inserts what was really
// changed, like RetryJob in queries/jobs.sql:
//
//	), recorded AS (
//	    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
//	    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.retry', moved.tenant_id, …
//	    FROM moved
//	    JOIN found ON found.id = moved.id
//	)
//
// with o.by.actor, o.by.requestID and o.by.reason as the parameters. If it needs several statements, use InsertAudit in
// their transaction (queries/audit.sql).
