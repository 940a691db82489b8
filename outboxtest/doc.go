// Package outboxtest tests code that enqueues jobs and handlers that carry them out, in a transaction that is rolled
// back when the test ends.
//
//	db := outboxtest.New(t, pool)                                  // stands for the pool in this test
//	err := pgx.BeginFunc(ctx, db, placeOrder)                      // the code that is tested
//	outboxtest.RequireEnqueued(t, db, SendReceipt{OrderID: 7})     // or says what was enqueued instead
//	outcomes := outboxtest.NewWorker(t, db, &mux, outboxtest.Config{}).Drain()
//
// A [Worker] carries jobs out by the statements and decisions of package dispatcher, not by a copy of them: attempts,
// retries, dead letters, results, follow-ups, hooks, batches, steps, reports, keys and their order. [Worker.Advance]
// lets time pass. [CrashEverywhere] kills a handler at every boundary and looks whether another run makes up for it.
//
// # What differs from production
//
// One transaction, so one connection, and no commit. Nobody is notified, and nobody else sees anything, so what runs in
// parallel is not tested: two workers, lost leases (but by CrashEverywhere), limits and rates of queues, outages of a
// whole kind, retention, relays. Jobs run one after the other, in the order of their urgency. now() is the beginning of
// the test in every statement; the engine's own statements go by the time at which each of them begins. Your own
// deferred constraints are not checked. Settings that a transaction makes by SET LOCAL stay until the end of the test,
// but for the tenant. Tests that use the same key, idempotency key or row at once wait for each other, as transactions
// do.
//
// Code that insists on a *pgxpool.Pool cannot be handed a [DB]: let it take an interface, such as [outbox.Beginner], or
// begin by job.Tx.
package outboxtest
