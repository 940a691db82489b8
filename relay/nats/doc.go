// Package nats publishes messages to JetStream: a [relay.Sink] whose destinations are subjects.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. JetStream decides about each message on its
// own, and a later one can be stored where an earlier one is not: because a stream is full for the large one and not
// for the small one, because a leader was elected in between, or because the connection broke and came back. So this
// package never has two messages of a key under way, unless the stream promises to take them in order or not at all:
//
//   - Streams that allow fast ingest (allow_batched, nats-server 2.14) store a prefix of what is sent and report where
//     they stopped.
//   - Streams that allow atomic batches (allow_atomic, nats-server 2.12) store all of a batch or nothing. It is the
//     faster of the two where acknowledgements take long, as with sync_interval: always.
//   - Other streams get one message of each key at a time, and messages of different keys together. With few keys
//     that is slow: [Sink.Check] says so.
//
// A connection is never re-established under way. nats.go would send what it has buffered on the new connection, in
// front of or behind what is sent again; here, what was under way on the old one is unknown, and is sent again with the
// same IDs, which JetStream drops for as long as it remembers them (a stream's duplicate window).
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
// A [Source] is the other direction: it fetches messages for package bridge.
//
//	source.go        connect, fetch, acknowledge
//	source_order.go  what has to wait for the messages of a process that has died
//	keep.go     a connection for other things than messages
package nats
