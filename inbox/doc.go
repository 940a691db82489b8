// Package inbox lets a consumer act exactly once on a message that may be delivered many times: an event or a job that
// was relayed to a broker or a webhook, or any message with an id or a position.
//
//	deliver id 7 ─┐                    ┌─ first: true ── effect ── commit
//	              ├─ Once(tx, …, "7") ─┤
//	deliver id 7 ─┘                    └─ first: false ─ nothing to do
//
// [Once] records the message in the transaction that also makes the effect, so the record exists exactly when the
// effect does. Of all deliveries of one message, exactly one transaction commits with first = true; the others see that
// it did, or wait until its outcome is known. In plain words: the second delivery is a no-op, and if the first one
// failed, the second takes its place.
//
// Its limits: an effect outside that transaction (a mail, a call to another service) is still made at least once. And a
// message is remembered only while its row exists: do not delete rows by received_at before the broker has lost the
// ability to deliver them again.
//
// # By position
//
// Messages that are read in the order of a broker's log, such as a partition of Kafka or a JetStream stream by an
// ordered consumer, need no row each: [Position] stores how far a partition has been read, and [Position.Advance] moves
// it in the transaction that makes the effect. docs/guides/consumers.md lists which id or position to use with each
// broker.
//
// # The tables in another database
//
// A consumer with its own database needs only the tables, not the rest of the schema: run [DDL] there, or add it to
// that database's migrations. It creates the same tables as Posthaste's own migrations; a test compares the two.
package inbox
