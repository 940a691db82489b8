// Package dispatcher claims due jobs, carries them out with Go handlers, and
// settles them: claim → attempt → settle.
//
//	wake-up, timer, poll, start
//	        │
//	   ┌────▼────┐ claim    ┌────────┐  ┌─────────┐ outcome ┌─────────┐
//	   │  loop   ├─────────▶│ buffer ├─▶│ workers ├────────▶│ settler ├─▶ history,
//	   │ (queue) │  batch   └────────┘  └─────────┘         └─────────┘   retry, …
//	   └─────────┘                  ▲ extend ▲
//	                                └ leases ┘
//
// Guarantees: a due job starts at least once, unless its attempts are used up before, as those are that processes took
// along which were killed while it waited in them: claims are counted, not starts. While its lease is live, it is
// this process's alone; nothing that a worker writes after losing the lease takes
// effect, because every write names the epoch of its claim. Handlers may see a
// job again after a crash, a lost connection or a stalled process: make them
// idempotent with job.Complete, inbox.Once, or by looking at domain state under
// lock before the side effect.
//
// # The life of an attempt
//
// The loop of a queue asks the scheduler for a plan: how many jobs of which tenants and priorities, from which
// cursors on. The claimer leases them with one statement and notes their leases. Each job is an attempt from then
// on. It waits in the buffer, past it if its tenant holds few, or in a batch for others of its kind. A worker takes
// it, gives it back if its queue has been paused or what its kind needs is unavailable, and otherwise runs the
// handler with a context that ends with its cause: timeout, deadline, cancelled, lease lost, shutdown. What the
// handler returns is turned into an outcome, which is all that the rest needs to know. If the handler has reported
// something, the recorder stores the last of it first. The settler gathers outcomes into batches and stores them
// for as long as the database is away; then the lease is forgotten, the key of the job moves on, and those who wait
// for it are notified. What the database does not match was cancelled, has expired, or is another worker's by now.
//
// # Goroutines
//
//	goroutine                       ends                                      owns
//	loop, one a queue               with Run's context                        its scheduler; alone sends to the buffer
//	fan-out of wake-ups             with Run's context                        nothing
//	worker, as many as may run      when the buffer is closed                 the attempt that it runs
//	recorder                        when the last reports are stored          progress, logs, steps; a statement at a time
//	settler, two                    when all outcomes are stored              a batch
//	keeper of leases                after the workers                         extensions
//	watch over leases               after the workers                         ends handlers whose lease was not extended
//	watch for cancellations         after the workers                         ends handlers whose jobs were cancelled
//	heartbeat                       after the workers                         the row in outbox.workers
//	settler of what was refused     after the settlers                        outcomes that the database refuses for now
//	notifier of waiters             after the settlers                        a NOTIFY
//	promoter                        after those                               the keys that jobs have left
//	notifier of the other processes last                                      a NOTIFY
//
// Those that end with Run's context end first. What has not ended some seconds after the grace period is left behind.
//
// # Files
//
// Each file uses only what stands below it, which is the order to read them in, too.
//
//	inline.go       the parts without their goroutines, for package outboxtest
//	dispatcher.go   what a program makes and runs: the parts, their goroutines, and the order in which they end
//	config.go       how a dispatcher works, and what is wrong with that
//	heartbeat.go    keeps the dispatcher in the list of workers
//	loop.go         claims for one queue: when to look, what to ask for, how long to sleep
//	claim.go        one claim: leases jobs, gives them to the workers, and looks for those whose answer was lost
//	limit.go        a claim within what operators have set for the queue
//	usage.go        how much of these limits is used, and the log of starts that keeps a rate
//	reservation.go  the job that a producer in the same program is about to commit, claimed by its commit
//	pace.go         the token bucket of wake-ups that find nothing
//	keys.go         how far claims of jobs with a key look, and the jobs offered to them
//	claims.go       the claiming statements, and attempts made of what they lease
//	batches.go      gathers jobs that are handled together
//	workers.go      what is claimed waits here, and is run, by reserved workers too, or goes back
//	run.go          one attempt: the handler's context, its panics, its outcome
//	pause.go        whether what was claimed may still start, or its queue has been paused
//	outage.go       kinds that wait because what they need is unavailable
//	capacity.go     how many jobs a queue holds here, and how many more it should claim
//	settle.go       gathers outcomes and stores them, however long the database is away
//	store.go        the settling statements, for each kind of outcome
//	report.go       counts and logs what became of attempts, and who is notified
//	promote.go      moves keys on when jobs have left them
//	notify.go       one NOTIFY for many events
//	cancel.go       ends handlers whose jobs were cancelled
//	lease.go        the jobs that this process holds, and the extension of their leases
//	step.go         Step and StepTx: parts of a job that run once
//	many.go         HandleMany: a handler for jobs of a kind together
//	hooks.go        OnSuccess, OnResult and OnDeath
//	floor.go        whether this build is too old for the schema
//	ended.go        what hooks get of a job that has ended
//	protect.go      opens sealed payloads
//	trace.go        the span of an attempt or a batch, if the program uses package tracing
//	attempt.go      one claimed job, or a batch of them, on its way through the process
//	process.go      what all parts have in common
//	waker.go        makes a claim loop look again
//	mux.go          the handler of each kind
//	outcome.go      what a handler may return; internal/outcome decides what becomes of its job
//	kind.go         how a kind is attempted, and its back-off policies
//	health.go       the answer of the latest statement, complaints about bad ones, and the wait for good ones
//	session.go      connections of the dispatcher's own
//	metrics.go      counters and histograms
//
// What the next claim asks for and how long a queue may sleep is decided by the package internal/scheduler. What
// handlers report is stored by the package internal/report.
package dispatcher
