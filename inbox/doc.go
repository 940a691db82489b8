// Package inbox lets a consumer act once on a message that may be delivered many
// times: an event or a job that was relayed to a broker or a webhook, or any message
// with an id or a position.
//
//	deliver id 7 ─┐                    ┌─ first: true ── effect ── commit
//	              ├─ Once(tx, …, "7") ─┤
//	deliver id 7 ─┘                    └─ first: false ─ nothing to do
//
// [Once] records the message in the transaction that also makes the effect. So
// the record exists exactly when the effect does: of all deliveries of one
// message, exactly one transaction commits with first = true; the others see
// that it did, or wait until it is known. In plain words: the second delivery is
// a no-op, and if the first one failed, the second takes its place.
//
// What it does not do: an effect outside of that transaction (a mail, a call to
// another service) is still made at least once. And a message is remembered only
// while its row is: delete rows by received_at no sooner than the broker could
// deliver them again.
//
// # By position
//
// Messages that are read in the order of a broker's log, such as a partition of
// Kafka or a JetStream stream by an ordered consumer, need no row each: [Position]
// keeps how far a partition has been read, and [Position.Advance] moves it in the
// transaction that makes the effect. docs/guides/consumers.md says which id or which position
// to use with which broker.
//
// # The tables in another database
//
// A consumer with a database of its own needs only the tables, not the rest of
// the schema: run [DDL] there, or put it into that database's migrations. It is
// what Posthaste's own migrations make, and a test compares the two.
package inbox
