// Package outboxtest tests code that enqueues jobs, and the handlers that run them, in a transaction that is rolled
// back when the test ends.
//
//	db := outboxtest.New(t, pool)                                  // stands for the pool in this test
//	err := pgx.BeginFunc(ctx, db, placeOrder)                      // the code that is tested
//	outboxtest.RequireEnqueued(t, db, SendReceipt{OrderID: 7})     // or says what was enqueued instead
//	outcomes := outboxtest.NewWorker(t, db, &mux, outboxtest.Config{}).Drain()
//
// A [Worker] runs jobs with package dispatcher's own statements and decisions rather than a copy of them: attempts,
// retries, dead letters, results, follow-ups, hooks, batches, steps, reports, keys and their order. [Worker.Advance]
// lets time pass. [CrashEverywhere] kills a handler at every boundary and checks that another run makes up for it.
//
// # What differs from production
//
// There is one transaction, and so one connection and no commit. Nobody is notified, and nobody else sees any of it.
// While a transaction is open, any other statement of the test and its handlers waits for it, and fails after a second:
// here it would see what is not committed, and wait for no lock. The engine's own statements, and those sent on a
// transaction's Conn, do not wait. Therefore anything that runs in parallel is not tested: two workers, lost leases
// (except by CrashEverywhere), limits and rates of queues, outages of a whole kind, retention, relays. Jobs run one
// after the other, in order of urgency.
// In every statement, now() is the beginning of the test; the engine's own statements use the time at which each of
// them begins. Your own deferred constraints are not checked. Settings made by SET LOCAL stay until the end of the
// test, except the tenant. Tests that use the same key, idempotency key or row at once wait for each other, as
// transactions do.
//
// Code that insists on a *pgxpool.Pool cannot use a [DB]: let it accept an interface, such as [outbox.Beginner], or
// begin its transactions by job.Tx.
package outboxtest
