// Package operator is what an operator asks and does: look at jobs and queues,
// pause and resume, retry, dismiss, cancel and release. It holds no state and runs nothing; the
// API, the console and the CLI are skins over it.
//
// Every act is one statement, legal by the same rules that bind workers: it raises
// the job's epoch, so that a worker that still believes that it owns the job can
// write nothing any more. Only [Operator.Cancel] leaves a running job to its worker,
// and asks it to stop. The same statement writes a row of outbox.audit: who acted,
// what was changed, and why ([Operator.As], [Operator.Because]). [Operator.In] makes an act part of a
// caller's transaction.
//
// An act that is added here records itself in the same way. If it is one
// statement, with a CTE that inserts what was really changed (queries/jobs.sql,
// RetryJob):
//
//	), recorded AS (
//	    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
//	    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.cancel', …
//	    FROM cancelled
//	)
//
// with o.by.actor, o.by.requestID and o.by.reason as the parameters; if it needs
// more statements than one, with InsertAudit in their transaction (queries/audit.sql).
package operator
