// Package await waits for jobs and returns their results.
//
//	waiter, err := await.New(pool, await.Config{})
//	go waiter.Run(ctx) // one for the process
//
//	ref, err := await.Enqueue(ctx, waiter, tx, Resize{URL: url}, outbox.Options{})
//	err = tx.Commit(ctx)
//	size, err := ref.Wait(ctx) // a Size, because Resize embeds outbox.Returns[Size]
//
// A reference is an id with a type. [RefTo] makes one from an id that came from elsewhere, and [Watched] marks a job
// that is enqueued without a reference.
//
// # How it waits
//
//	            one NOTIFY for many, no data             one query for all
//	dispatcher ────────────────────────────▶ listener ─▶ Waiter ─────────▶ jobs, history
//	                                            poll ───▶   │
//	                                                        └──▶ each Wait
//
// All waits of a process share one LISTEN connection and one connection for queries, and a wake-up costs one query,
// however many callers wait.
//
// # Sealed results
//
// [Config].Protect opens results that a protector sealed, with the same keys that the dispatcher has, or had. Each Wait
// opens its own result.
//
// # Guarantees
//
//   - Wait returns the result soon after the settlement has committed: within milliseconds for a job that was
//     enqueued as watched and settled by a dispatcher, including by job.Complete. An end that is not announced (the
//     reaper gave the job up, a person cancelled or dismissed it, it was not enqueued as watched, or the notification
//     was lost) is found by polling, after about a second.
//   - A wake-up is a hint. Any number may be lost or forged: polling finds what was lost, and the pause between
//     queries is at least 5 ms and at least as long as the last query took.
//   - Wait survives an outage of the database; only ctx limits it. A refusal by the database is not an outage and is
//     returned: at once if the role has no right to the jobs (42501), and after 10 seconds if a table or function is
//     missing (SQLSTATE classes 3F and 42).
//   - A job that ended in any way but success gives a [*JobError]. Dead letters, which are failed or dead, count as
//     ended although they may be retried: then wait again.
//   - A repeat of an idempotency key gives a reference to the first job, whose end is announced if that job was
//     enqueued as watched.
//   - [ErrNotFound] means that Wait has not found the job for 10 seconds: its transaction rolled back or is still
//     open, or the history has trimmed it. For a job that was seen before and is gone, Wait returns it at once. It also
//     returns it for jobs that the pool's role cannot see.
//
// # Whose pool
//
// The pool's role must be a member of outbox_worker, or of outbox_api or outbox_reader in the job's tenant
// (app.tenant_id, set for the role or for the connection, because these queries do not run in the caller's
// transactions). A member of outbox_producer alone may not read jobs.
//
// # Waiting in a handler
//
// A handler that waits for a job occupies its worker meanwhile. If the other job is in the same queue, and enough
// handlers wait, no worker is left to run the jobs that they wait for, until their timeouts. Enqueue it in another
// queue, or make it a follow-up: see outbox.Claimed.Then.
//
// Results are kept as long as closed jobs are: 14 days, unless the reaper is configured otherwise. If anybody waits for
// results, keep succeeded jobs for at least a day.
package await
