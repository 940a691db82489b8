// Package nats publishes messages to JetStream. It provides a [relay.Sink] whose destinations are subjects.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. JetStream decides on each message individually,
// and may store a later one where it did not store an earlier one: because a stream is full for the large one and not
// for the small one, because a leader was elected in between, or because the connection broke and came back. So this
// package never has two messages of a key in flight, unless the stream promises to store them in order or not at all:
//
//   - Streams of one replica that allow fast ingest (allow_batched, nats-server 2.14) store a prefix of what is sent
//     and report where they stopped.
//   - Streams that allow atomic batches (allow_atomic, nats-server 2.12) store all of a batch or nothing. This is the
//     faster of the two where acknowledgements take long, as with sync_interval: always.
//   - Other streams get one message of each key at a time, and messages of different keys together. With few keys
//     that is slow; [Sink.Check] reports it.
//
// A connection is never re-established. nats.go would send what it has buffered on the new connection, before or after
// messages that are sent again. Instead, unanswered messages on a broken connection are unknown, and are sent again
// with the same IDs, which JetStream drops for as long as it remembers them (a stream's duplicate window).
//
// # Files
//
//	sink.go     Open, Publish: a batch in runs, a stream each
//	check.go    what an operator should know about a stream
//	window.go   a run, one message of each key at a time
//	fast.go     a run by fast ingest
//	atomic.go   a run as an atomic batch
//	stream.go   which stream takes a subject, and its settings
//	conn.go     one connection, and what comes back on it
//	message.go  a message as NATS has it
//	errors.go   what an answer says about a message
//	config.go   Config
//
// A [Source] works in the other direction: it fetches messages for package bridge.
//
//	source.go        connect, fetch, acknowledge
//	source_order.go  what has to wait for the messages of a process that has died
//	keep.go     a connection for other things than messages
package nats
