// Package api is the REST face of package operator and of enqueueing: jobs are
// stored, looked at and acted on by HTTP. It never carries a job out.
//
//	handler, err := api.New(api.Config{Pool: pool, Authenticator: tokens})
//	http.Handle("/v1/", http.StripPrefix("/v1", handler))
//
// # Guarantees
//
//   - A 202 comes after the commit. Concurrent requests share a transaction, but a
//     request that the database refuses does not take others along.
//   - A repeat with the same idempotency key answers like the first, byte for byte.
//   - Nobody gets in without a principal, and every route names the capability that
//     it takes: the table is in routes.go, and a route without one is refused by New.
//   - A principal reads and changes jobs of its own tenant. Another tenant's job
//     answers exactly like one that does not exist.
//   - Payloads are shown to payload.read; workers, leases, counters, messages and
//     stacks of errors to admin.read; to nobody else.
//   - Every error is a problem document (RFC 9457) with a code that docs/reference/api.md
//     explains and with the request's id. What is wrong with a request is named by its
//     place; what is wrong with the server is in its log.
//   - Work in progress is bounded: what does not fit into the queue gets a 429 at once.
//
// # Threads
//
// A request runs on the goroutine that net/http made for it. Inserts and look-ups of
// concurrent requests are grouped: while there are some, at most two goroutines
// each (group.go) run them; they end by themselves when nothing waits.
package api
