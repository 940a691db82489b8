// Package kafka publishes messages to Kafka: a [relay.Sink] whose destinations are topics.
//
// A message is accepted once all replicas that are in sync have it (acks=all). Its key selects the partition, as Java's
// clients do (murmur2); one without a key goes to any. Attributes of CloudEvents are headers by the names of its Kafka
// binding, ce_id and so on; a message without them has its ID in posthaste-id. An empty body is an empty value, never a
// tombstone.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. Kafka orders within a partition, and franz-go
// fails a suffix of what it has buffered for one, but that is not enough:
//
//   - What is produced after a failure is not in that suffix. So a run of messages is buffered whole before any of it
//     is sent.
//   - Up to five batches of a partition are under way, and before Kafka 4.5 a broker takes any sequence number as the
//     first of a producer that it does not know: if the first batch is refused, the second is stored. franz-go waits
//     for the first answer of a partition, for that reason; a run has at most as many bytes as one batch in any case,
//     so to each partition one batch goes, which is stored or not.
//   - A key with messages to two topics has two partitions. So a run has each key in one topic.
//   - A client that is not waited for any more sends what it has some time later. So it is closed, and what was under
//     way is unknown; the next client has another producer ID, and Kafka drops no repeats of the last.
//
// While a client lives it is idempotent: it bridges the restart of a broker or a new leader for three seconds, without
// repeats. A change of the number of partitions moves keys, and breaks their order, as with all clients.
//
// A broker refuses a batch for one message of it, and need not say which. Then each of its messages is sent by itself.
//
// # Files
//
//	sink.go         Open, Probe, Close
//	publish.go      Publish: runs, and what became of them
//	transaction.go  the same in transactions
//	check.go        what an operator should know about topics
//	client.go       one client of franz-go
//	message.go      a message as Kafka has it
//	errors.go       what an answer says about a message
//	config.go       Config
//	source.go   Source, which fetches messages for package bridge
package kafka
