// Package lifecycle reads the events of streamed jobs (outbox.Options.Streamed) and rebuilds jobs from them.
//
// Each change of a streamed job is an event. It is stored in the transaction that makes the change, and a relay
// (package relay) publishes it in the order of the job's life, at least once. [Decode] decodes an event, and [Reduce]
// applies it to the known state of its job:
//
//	event, err := lifecycle.Decode(message.Body)
//	...
//	known[event.Job], err = lifecycle.Reduce(known[event.Job], event)
//
// After the last event of a job, its [State] equals what the database holds. docs/guides/lifecycle.md lists the events
// and the stream's guarantees.
package lifecycle
