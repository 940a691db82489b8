// Package relay publishes the events of the log, outbox.events, to brokers: in order for each key, at least once, and
// without writing a row for each message.
//
//	sink, err := nats.Open(nats.Config{URLs: urls})                 // or kafka, amqp, redis, webhook, watermill, jobs
//	r, err := relay.New(pool, relay.Config{Sinks: []relay.SinkConfig{{
//		Name: "orders", Sink: sink,
//		Routes: []relay.Route{{Topics: []string{"order.*"}, Destination: "shop.{topic}"}},
//	}}})
//	err = r.Run(ctx)                                                // until ctx ends
//
// A sink is a broker with a cursor in the log (table outbox.sinks). One process at a time publishes to a sink; another
// takes over when its lease lapses. [Config] has the settings, [Sink] is what a broker of your own implements, and
// [Tail] follows the log without a sink. "posthaste serve --relay-config" does the same without a program.
//
// # Refused messages
//
// If a sink refuses a message, that message becomes a job, and so does every later message of its key while such a job
// is open. One transaction stores the jobs and moves the cursor past them. The jobs of a key are ordered by their
// positions in the log. Other keys go on by the cursor.
package relay

// The rest is for people who change this package.
//
// Order of a key. Only the sink's owner makes these jobs, and it knows which exist: it reads them when it becomes the
// owner, adds those that it makes, and removes those that a look at the database finds closed. A job is closed when the
// broker has stored its message, or when an operator has decided that it never will:
//
//	owner        2 of the key: there is job 1, so 2 becomes a job    look: both closed    3 by the cursor
//	job 1, 2                                        1 published, 2 published
//
// A look concerns only the jobs that it has seen. A job that is made during a look counts as open until the next look:
//
//	look         begins, sees job 1 closed             ends: forgets job 1, and knows nothing of 2
//	owner                                  makes job 2
//
// An owner that is killed, or whose transaction fails, leaves neither job nor cursor behind: the next owner publishes
// the page again, and the same messages are refused again. An owner that is paused and replaced meanwhile stores
// nothing, because the transaction also moves the cursor, and so carries the fence of [ownership]. The transaction
// holds the lock on the sink's row until it commits, so the jobs that the next owner reads after it has got the sink
// are complete.
//
//	A (paused)   publishes 1..9, 5 is refused                              stores job 5: not ours any more
//	B                                          owns, publishes 1..9, 5 is refused, stores job 5
//
// After a failover the sink goes back and meets events again that are or were jobs. An event becomes a job of a sink
// only once: its ID is the job's idempotency key, which is kept as long as the job's history. So a message that an
// operator has dismissed does not come back, and an open job keeps its place. Earlier events of its key, which the
// cursor had published, may become jobs now: they are repeats, ordered before it. An operator who moves the sink back
// wants its events published again, to a broker that may have lost them, and one who removes the sink may give its name
// to another broker: both acts free the IDs of closed jobs.
//
// Unlike the relay's other transactions, these wait for the disk. If a crash lost such a job, its key would be blocked
// without a job, and the message lost.
//
// # Goroutines
//
// Each sink has these; all but the first exist only while this process owns it:
//
//	goroutine                 ends                                          owns
//	publisher                 with Run's context, after its batch           calls of the sink
//	reader of the log         with Run's context, or at the first error     the next page
//	keeper of the ownership   after the publisher and the held messages     the stored cursor and the lease
//	replayer                  with Run's context                            positions of replays
//	runner of held messages   with Run's context                            a dispatcher, while there are jobs to run
//
// A publisher that ends stores the cursor and leaves the sink to other processes. One goroutine of the relay hands each
// wake-up to all publishers. A call of the sink has a goroutine of its own, which may outlast its time.
//
// # Files
//
//	relay.go         New, Run; fans wake-ups out to the sinks
//	config.go        Config
//	publish.go       publishes to a sink while this process owns it, and waits for the sink's recovery
//	delivery.go      sends a page of the log, and decides about messages that are not accepted
//	unanswered.go    messages without an answer
//	destinations.go  destinations that accept nothing, and what waits for them
//	replay.go        publishes past events again
//	held_run.go      runs the jobs that were made of refused messages
//	held.go          which messages are jobs
//	own.go           the lease and the cursor in the database
//	call.go          calls a sink within a time
//	shared.go        pages that several sinks of this process read
//	cursor.go        how far a sink has come, and the holes behind that
//	log.go           reads pages of the log
//	event.go         a row of the log
//	tail.go          Tail: the events as a sink would see them, without one
//	message.go       the message of an event
//	route.go         which events are for a sink
//	preset.go        formats that other systems define
//	template.go      destinations with placeholders
//	topics.go        checks topics against the routes
//	sink.go          what a sink implements, and its errors
//	metrics.go       what is counted
