// Package redis publishes messages to streams of Redis or Valkey. It provides a [relay.Sink] whose destinations are
// streams.
//
// An entry has the fields id, key, content-type and data, the message's body, and one for each header; CloudEvents
// attributes are ce_id and so on. A header whose name is one of the four becomes header.id, header.key and so on. The
// sink trims nothing: a stream grows until somebody trims it.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. In a pipeline, the server accepts or refuses
// each XADD individually: at its memory limit it refuses the first message of a key, a consumer deletes something, and
// the second is stored. So messages that are sent together form a transaction (MULTI), which the server runs without
// interruption, and not at all if it would refuse one of its commands for lack of memory, disk, permission or a master.
// If one message has caused a refusal, the others are sent again without it. Errors that show only when the transaction
// runs, such as a missing stream or a key that is not a stream, show for all of the messages to that stream. A key with
// messages to two streams could still have one of them stored, and so a transaction has each key in one stream.
//
// The sink works with a single server: in a cluster, a stream would be on one node and others elsewhere, and a server
// that answers MOVED counts as an outage.
//
// # Files
//
//	sink.go     Open, Probe, Close
//	publish.go  Publish: runs, and what became of them
//	check.go    what an operator should know about the server and its streams
//	conn.go     one connection
//	message.go  a message as Redis has it
//	errors.go   what an answer says about a message
//	config.go   Config
package redis
