// Package examples holds programs to read and to copy from:
//
//	shop         two handlers, a producer and a worker; `make demo` runs it
//	events       a shop that publishes, NATS, and a consumer; `make demo` runs it, too
//	points       that consumer
//	producer     the README's producer
//	worker       the README's worker
//	sqlproducer  the producer with database/sql
//	orm          jobs in transactions of GORM, bun and ent; a module of its own
//
// The Go code of the README and of docs/guides/publish-events.md is taken from them, and a test compares.
package examples
