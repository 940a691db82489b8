// Package lifecycle reads the events of streamed jobs (outbox.Options.Streamed) and rebuilds
// jobs from them.
//
// Each change of a streamed job is an event, stored in the transaction that makes the change
// and published by a relay (package relay) in the order of the job's life, at least once.
// [Decode] reads one, [Reduce] puts it on top of what is known of its job:
//
//	event, err := lifecycle.Decode(message.Body)
//	...
//	known[event.Job], err = lifecycle.Reduce(known[event.Job], event)
//
// After the last event of a job its [State] is what the database holds of it. docs/guides/lifecycle.md
// has a table of events and what the stream promises.
package lifecycle
