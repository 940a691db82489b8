// Package dispatcher claims due jobs, runs their Go handlers and stores the outcomes. Most programs use package app,
// which also runs a listener, a reaper and a scheduler.
//
//	var mux dispatcher.Mux
//	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[SendReceipt]) error { … })
//	wake := listener.NewSignal()
//	l, err := listener.New("", dispatcher.Channel, wake, listener.Config{Pool: pool, Canary: pool}) // and go l.Run(ctx)
//	d, err := dispatcher.New(pool, &mux, dispatcher.Config{Wake: wake, Listening: l.Listening})
//	err = d.Run(ctx) // until ctx ends
//
// An attempt passes through these parts:
//
//	wake-up, timer, poll, start
//	        │
//	   ┌────▼────┐ claim    ┌────────┐  ┌─────────┐ outcome ┌─────────┐
//	   │  loop   ├─────────▶│ buffer ├─▶│ workers ├────────▶│ settler ├─▶ history,
//	   │ (queue) │  batch   └────────┘  └─────────┘         └─────────┘   retry, …
//	   └─────────┘                  ▲ extend ▲
//	                                └ leases ┘
//
// Guarantees: a due job starts at least once, unless its attempts run out first. Claims are counted, not starts: a
// process killed with a job in its buffer uses up an attempt. While a lease is live, the job belongs to this process
// alone. Nothing that a worker writes after losing the lease takes effect, because every write names the epoch of its
// claim. Handlers may see a job again after a crash, a lost connection or a stalled process: make them idempotent with
// job.Complete, inbox.Once, or by checking domain state under lock before the side effect.
package dispatcher

// The rest is for people who change this package.
//
// # The life of an attempt
//
// docs/architecture.md follows a job from step to step, and docs/races.md has the interleavings. A claimed job is an
// attempt. It waits in the buffer, or in a batch for others of its kind, until a worker runs its handler or gives it
// back. The handler's result becomes an outcome, which is all that the later parts need.
//
// # Goroutines
//
//	goroutine                       ends                                      owns
//	loop, one a queue               with Run's context                        its scheduler
//	search, at most one a queue     with Run's context, before its loop       one look at the queue; they take turns
//	fan-out of wake-ups             with Run's context                        nothing
//	worker, as many as may run      when the buffer is closed                 the attempt that it runs
//	recorder                        when the last reports are stored          progress, logs, steps; a statement at a time
//	settler, two                    when no outcome is left                   a batch
//	watch for cancellations         after the workers                         ends handlers whose jobs were cancelled
//	heartbeat                       after the workers                         the row in outbox.workers
//	one for each refused outcome    after the settlers                        an outcome that the database refuses for now
//	keeper of leases                after both kinds of settlers              extensions
//	watch over leases               after both kinds of settlers              ends handlers whose lease was not extended
//	notifier of waiters, promoter   after those                               a NOTIFY; the keys that jobs have left
//	notifier of the other processes last                                      a NOTIFY
//
// # Files
//
// Each file uses only files listed below it; read them in this order.
//
//	inline.go       the parts without their goroutines, for package outboxtest
//	life.go         Run: the goroutines, and the order in which they end; what a program may ask of it meanwhile
//	internal/presence  the dispatcher's row in the list of workers
//	dispatcher.go   what a program creates: the settings and their validation, and the parts
//	loop.go         claims for one queue: when to look, what to ask for, how long to sleep
//	search.go       when to look for due jobs that claims do not reach, because a snapshot keeps too many dead entries
//	internal/search such a search
//	claim.go        one claim: leases jobs, gives them to the workers, and looks for those whose answer was lost
//	internal/limit  the limits that operators have set for the queue, and how much of them is used; whether a claimed
//	                job may still start, or its queue has been paused
//	reservation.go  the job that a producer in the same program is about to commit, claimed by its commit
//	claims.go       the claiming statements, and the attempts made from what they lease
//	batches.go      gathers jobs that are handled together
//	workers.go      the workers, which run claimed jobs or give them back
//	internal/buffer the claimed jobs that wait for a worker, and which of them a worker takes
//	handler_call.go one attempt: the handler's context, its panics, its outcome
//	internal/circuit  kinds that wait because their dependency is unavailable
//	settle.go       gathers outcomes and stores them, however long the database is unavailable
//	store.go        the settling statements, for each kind of outcome
//	report.go       counts and logs the ends of attempts, and notifies other processes and waiting callers
//	internal/promote  moves keys on when jobs have left them
//	internal/lease  the leases of the jobs that this process holds, and the ends of handlers whose jobs were cancelled
//	step.go         Step and StepTx: parts of a job that run once
//	many.go         HandleMany: a handler for jobs of a kind together
//	hooks.go        OnSuccess, OnResult and OnDeath, and what hooks receive about a job that has ended
//	protect.go      opens sealed payloads
//	trace.go        the span of an attempt or a batch, if the program uses package tracing
//	attempt.go      one claimed job, or a batch of them, on its way through the process
//	capacity.go     how many jobs a queue holds here, and how many more it should claim
//	internal/wake   makes a claim loop look again, and paces looks that find nothing
//	common.go       what all parts have in common
//	notifier.go     one NOTIFY for many events
//	mux.go          the handler of each kind
//	outcome.go      what a handler may return, the settings for a kind's attempts, and backoff policies;
//	                internal/outcome decides what becomes of its job
//	internal/health whether the latest statement succeeded, complaints about failures, and the wait for recovery
//	internal/slot   a signal with one slot
//	session.go      connections of the dispatcher's own, and what bounds their statements
//	metrics.go      counters and histograms
//
// Package internal/scheduler decides what the next claim asks for, how far it looks and how long a queue may sleep, and
// keeps the promoted jobs that are offered to claims. Package internal/report stores what handlers report.
