// Package amqp publishes messages to RabbitMQ by AMQP 0-9-1: a [relay.Sink] whose destinations are an exchange and a
// routing key with a / between them.
//
//	events/order.paid     exchange events, routing key order.paid
//	events/a/b            the first / divides: exchange events, routing key a/b
//	/invoices             the default exchange, which leads to the queue invoices
//
// Messages are persistent and mandatory, and a message is accepted once the server has confirmed it: for a quorum
// queue, once a majority has it on disk. One that no queue takes is returned by the server, and its destination is
// taken for one that is missing until somebody makes it. RabbitMQ drops no repeats: consumers tell them by the
// property message-id, which is the message's ID.
//
// Attributes of CloudEvents are headers by the names of its AMQP binding, cloudEvents:id and so on. The headers CC and
// BCC, by which the server would send a message elsewhere too, are refused.
//
// # Order
//
// No message of a key is stored after one of the same key that was not, and confirms alone do not give that. Each
// message is confirmed or rejected for itself, late, and others behind it are under way by then. Consider a queue that
// is full and rejects (overflow: reject-publish) while its consumers work:
//
//	we send 1 and 2 of a key; 1 is rejected; a consumer takes a message; 2 is stored; we send 1 again
//
// So it is with a message that is returned because no queue is bound while somebody binds one, and with a classic queue
// whose server is killed: of messages that were not confirmed it may have kept a later one. A client cannot see of what
// kind the queues are. So a key's next message waits for its last one to be confirmed, and messages of different keys
// are under way together, 1000 at most. A single key then moves at one message for each round trip and write to disk.
// [Config.Pipelined] gives that up.
//
// When the connection breaks, what was under way is unknown, and is sent again on another. The server may still take it
// from the old one: a repeat, behind which nothing of its key comes first.
//
// # One message can end a channel
//
// The server answers a publication that it cannot take (no such exchange, no permission, too large a body) by
// closing the channel, without the name of the message, and whatever else was under way is unknown then. So a
// message goes alone if it might be the one: the first to an exchange on a connection, and a body larger than any
// that was taken, and than 16 KiB. If a channel is closed with several under way nevertheless, all of them go
// alone the next time.
//
// # Files
//
//	sink.go     Open, Probe, Close
//	publish.go  Publish: what is sent when, and what answers say
//	check.go    what an operator should know about exchanges and queues
//	conn.go     one connection, and its channel
//	message.go  a message as AMQP has it
//	errors.go   what an answer says about a message
//	config.go   Config
package amqp
