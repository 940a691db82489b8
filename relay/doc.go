// Package relay publishes the events of the log, outbox.events, to brokers: in order for
// each key, at least once, and without a row written for each message.
//
// A sink is a broker with a cursor in the log (table outbox.sinks). One process at a time
// publishes to it; others take over when its lease lapses.
package relay
