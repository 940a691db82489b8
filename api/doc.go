// Package api is the REST interface to package operator and to enqueueing: clients store, inspect and act on jobs by
// HTTP. It never runs a job.
//
//	handler, err := api.New(api.Config{Pool: pool, Authenticator: tokens})
//	http.Handle("/v1/", http.StripPrefix("/v1", handler))
//
// # Guarantees
//
//   - A 202 comes after the commit. Concurrent requests share a transaction, but a request that the database refuses
//     does not make others fail.
//   - A repeat with the same idempotency key gets the same answer as the first request, byte for byte.
//   - Every request needs a principal, and every route names the capability that it requires: the table is in
//     routes.go, and New refuses a route without one.
//   - A principal reads and changes jobs of its own tenant. Another tenant's job gets exactly the same answer as one
//     that does not exist.
//   - Payloads are shown only with payload.read; workers, leases, counters, messages and stacks of errors only with
//     admin.read.
//   - Every error is a problem document (RFC 9457) with the request's id and a code that docs/reference/api.md
//     explains. A mistake in the request is named by its place; a fault of the server is in the server's log.
//   - Work in progress is bounded: a request that does not fit into the queue gets a 429 at once.
//
// # Threads
//
// A request runs on the goroutine that net/http made for it. Inserts and look-ups of concurrent requests are grouped:
// while there are some, at most two goroutines for each (group.go) run them; they end when nothing waits.
package api
