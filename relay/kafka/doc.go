// Package kafka publishes messages to Kafka. It provides a [relay.Sink] whose destinations are topics.
//
// A message is accepted once all in-sync replicas have it (acks=all). Its key selects the partition as in Java's
// clients (murmur2); a message without a key goes to any. CloudEvents attributes are headers with the names of the
// Kafka binding, ce_id and so on; a message without them has its ID in posthaste-id. An empty body is an empty value,
// never a tombstone.
//
// # Order
//
// No message of a key is stored after one of the same key that was not. Kafka orders messages within a partition, and
// when franz-go fails, it fails a suffix of what it has buffered for one, but that is not enough:
//
//   - Messages produced after a failure are not in that suffix. So a run of messages is buffered whole before any of
//     it is sent.
//   - Up to five batches of a partition can be in flight, and before Kafka 4.5 a broker accepts any sequence number
//     as the first from a producer that it does not know: if the first batch is refused, the second is stored. For that
//     reason franz-go waits for the first answer of a partition. Besides, a run has at most as many bytes as one batch,
//     so each partition gets a single batch, which is stored or not.
//   - A key with messages to two topics has two partitions. So a run has each key in one topic.
//   - An abandoned client sends what it has some time later. So it is closed, and its unanswered messages are
//     unknown; the next client has another producer ID, and Kafka does not drop repeats from the previous one.
//
// While a client lives it is idempotent: it bridges the restart of a broker or the election of a leader for three
// seconds, without repeats. A change of the number of partitions moves keys and breaks their order, as with all
// clients.
//
// A broker may refuse a batch because of one of its messages without saying which. Each of its messages is then sent
// alone.
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
