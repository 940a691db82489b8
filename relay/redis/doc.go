// Package redis publishes messages to streams of Redis or Valkey: a [relay.Sink] whose destinations are streams.
//
// An entry has the fields id, key, content-type and data, the message's body, and one for each header; attributes of
// CloudEvents are ce_id and so on. A header that has the name of one of the four is header.id, header.key and so on.
// Nothing is trimmed: a stream grows until somebody trims it.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. In a pipeline each XADD is taken or refused by
// itself: at the limit of the server's memory the first of a key is refused, a consumer deletes something, and the
// second is stored. So what is sent together is a transaction (MULTI), which the server runs without others in between,
// and not at all if it would refuse one of its commands for want of memory, disk, permission or a master. Where one
// message has caused that, the others are sent again without it. What is found out only when the transaction runs, a
// stream that is missing or no stream, is found out for all of its messages. A key with messages to two streams could
// have one of them stored all the same, and so a transaction has each key in one stream.
//
// One server is the whole of it: of a cluster, a stream would be on one node and others elsewhere, and a server that
// answers MOVED is an outage.
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
