// Package webhook runs a job by an HTTP POST of its payload.
//
//	handler, err := webhook.Handler("https://example.com/hooks/receipts", webhook.Config{})
//	mux.HandleRaw("receipt.send", handler)
//
// The request has the payload's bytes as its body, exactly as they were enqueued, under their own Content-Type. Headers
// describe the attempt:
//
//	Posthaste-Job-Id, Posthaste-Kind, Posthaste-Attempt, Posthaste-Epoch
//	Idempotency-Key         the job's id: the same for every attempt
//	Posthaste-Header-NAME   each header of the job
//	traceparent, tracestate those two under their own names
//
// The answer decides the outcome:
//
//	2xx                      succeeded; the answer's body is not kept
//	101                      tried again; the connection is closed
//	400, 410, 413, 415, 422  failed for good: waits for a person, with the status and
//	                         the beginning of the answer
//	503 with Retry-After     an outage of the receiver: tried again then, without
//	                         spending an attempt; for less than a second, after as
//	                         long as the outage has lasted so far
//	429 with Retry-After     tried again then, but no sooner than the kind's retry
//	                         policy says
//	any other                tried again by the kind's backoff
//	no connection            an outage, too: nobody listens, no route, no name server
//	no answer                tried again
//
// Retry-After counts for a day at most. The status decides; up to 64 KiB of the body are read within two seconds, and a
// body that goes on after that only costs the connection.
//
// 401, 403 and 404 are among those tried again: they more often mean that somebody changed a password or a route than
// that something is wrong with the job, and a receiver that is repaired within the retries gets every job.
//
// A receiver may get a request more than once, because its answer can be lost; also within an attempt, because net/http
// sends a request with an Idempotency-Key again when a connection breaks that was open before. It recognizes repeats by
// Idempotency-Key, and a worker that lost its lease by an epoch lower than the highest one it has seen.
//
// Redirects are not followed. Errors of this package never contain a URL's password, query and path, because errors are
// stored and logged. A relay adds the path of a destination to those of its sink; see [SinkConfig].URL.
//
// # A sink
//
// [Open] returns a [relay.Sink] that posts events, or whatever a relay publishes: signed, with CloudEvents attributes
// in headers, one message of each key after the other, and to no address outside the public internet unless it is
// allowed. docs/operate/sinks.md explains what the answers mean there.
//
// # Files
//
//	webhook.go  Handler: a job as a POST
//	sink.go     Open, Probe, Check; the circuit of a host
//	publish.go  Publish: what is sent when, and what becomes of it
//	target.go   the URL of a destination
//	guard.go    which addresses are connected to
//	sign.go     signatures
//	answer.go   what an answer says
//	headers.go  what a job has in headers
package webhook
