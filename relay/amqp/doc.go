// Package amqp publishes messages to RabbitMQ by AMQP 0-9-1. It provides a [relay.Sink] whose destinations are an
// exchange and a routing key with a / between them.
//
//	events/order.paid     exchange events, routing key order.paid
//	events/a/b            the first / divides: exchange events, routing key a/b
//	/invoices             the default exchange, which leads to the queue invoices
//
// Messages are persistent and mandatory, and a message is accepted once the server has confirmed it: for a quorum
// queue, once a majority has it on disk. The server returns a message that no queue takes; its destination then counts
// as missing until somebody creates it. RabbitMQ does not drop repeats: consumers recognize them by the property
// message-id, which is the message's ID.
//
// CloudEvents attributes are headers with the names of the AMQP binding, cloudEvents:id and so on. The headers CC and
// BCC, by which the server would send a message elsewhere too, are refused.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. Confirms alone do not ensure that: each message
// is confirmed or rejected individually and late, when others have already been sent behind it. Consider a queue that
// is full and rejects (overflow: reject-publish) while its consumers work:
//
//	we send 1 and 2 of a key; 1 is rejected; a consumer takes a message; 2 is stored; we send 1 again
//
// The same happens with a message that is returned because no queue is bound, while somebody binds one, and with a
// classic queue whose server is killed: of the messages that were not confirmed it may have kept a later one. A client
// cannot see which kind the queues are. So a key's next message waits until its last one is confirmed, while up to 1000
// messages of different keys are sent at once. A single key then moves at one message for each round trip and write to
// disk. [Config.Pipelined] trades this guarantee for speed.
//
// When the connection breaks, messages without an answer are unknown, and are sent again on another connection. The
// server may still accept such a message from the old connection: it is then a repeat, and no later message of its key
// precedes it.
//
// # One message can end a channel
//
// When the server cannot take a publication (no such exchange, no permission, too large a body), it closes the channel
// without naming the message, and all other unanswered messages are then unknown. So a message that might be the cause
// goes alone: the first to an exchange on a connection, and a body larger than any that was accepted, and than 16 KiB.
// If a channel is closed with several messages unanswered nevertheless, each of them goes alone the next time.
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
