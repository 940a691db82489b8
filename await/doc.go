// Package await waits for jobs and returns what they left.
//
//	waiter, err := await.New(pool, await.Config{})
//	go waiter.Run(ctx) // one for the process
//
//	ref, err := await.Enqueue(ctx, waiter, tx, Resize{URL: url}, outbox.Options{})
//	err = tx.Commit(ctx)
//	size, err := ref.Wait(ctx) // a Size, because Resize embeds outbox.Returns[Size]
//
// A reference is an id with a type. [RefTo] makes one from an id that came by
// another way, and [Watched] marks a job that is enqueued without a reference.
//
// # How it waits
//
//	            one NOTIFY for many, no data             one query for all
//	dispatcher ────────────────────────────▶ listener ─▶ Waiter ─────────▶ jobs, history
//	                                            poll ───▶   │
//	                                                        └──▶ each Wait
//
// All waits of a process share one LISTEN connection and one connection for
// queries, and a wake-up costs one query, however many wait.
//
// # Sealed results
//
// What a protector sealed, [Config].Protect opens, with the keys that the dispatcher
// has, or had. It is opened where it is wanted, once for each Wait.
//
// # Guarantees
//
//   - Wait returns the result soon after the settlement has committed: within
//     milliseconds for a job that was enqueued as watched and settled by a
//     dispatcher, also by job.Complete. What nobody announces (the reaper gave the
//     job up, a person cancelled or dismissed it, it was not enqueued as watched, or
//     the notification was lost) is found by polling, after about a second.
//   - A wake-up is a hint. Any number may be lost or forged: the poll finds what
//     was lost, and queries are at least 5 ms and as long as the last one took apart.
//   - An outage of the database is waited out. Only ctx bounds a Wait. The database's refusal is no outage and is
//     returned: that the role has no right to the jobs (42501) at once, that a table or function is not there (SQLSTATE
//     classes 3F and 42) when it has been so for 10 seconds.
//   - A job that ended otherwise than by success is an [*JobError]. Dead
//     letters, which are failed or dead, count as ended although they may be
//     retried: then wait again.
//   - A repeat of an idempotency key gives a reference to the first job, whose end
//     is announced if that was enqueued as watched.
//   - [ErrNotFound] says that Wait has not found the job for 10 seconds: its
//     transaction rolled back or is still open, or the history has trimmed it. A job
//     that was seen and is gone is not found at once. Nor is one found that the pool's role does not see.
//
// # Whose pool
//
// The pool's role has to be a member of outbox_worker, or of outbox_api or outbox_reader in the job's tenant
// (app.tenant_id, which is the role's own setting or the connection's: no transaction is the caller's here). A member
// of outbox_producer alone may not read jobs.
//
// # Waiting in a handler
//
// A handler that waits for a job keeps its worker meanwhile. If the other job is of the same queue, and enough handlers
// wait, none is left to run what they wait for, until their timeouts. Enqueue it in another queue, or have it follow:
// see outbox.Claimed.Then.
//
// Results are kept as long as closed jobs are: 14 days, unless the reaper is
// configured otherwise. Keep succeeded jobs for a day at least where somebody waits
// for results.
package await
