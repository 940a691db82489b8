// Package relay publishes the events of the log, outbox.events, to brokers: in order for each key, at least once, and
// without writing a row for each message.
//
// A sink is a broker with a cursor in the log (table outbox.sinks). One process at a time publishes to a sink; another
// takes over when its lease lapses.
package relay
