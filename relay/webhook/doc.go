// Package webhook carries a job out by an HTTP POST of its payload.
//
//	handler, err := webhook.Handler("https://example.com/hooks/receipts", webhook.Config{})
//	mux.HandleRaw("receipt.send", handler)
//
// The request has the payload's bytes as its body, exactly as they were enqueued,
// under their own Content-Type, and says in headers what is being attempted:
//
//	Posthaste-Job-Id, Posthaste-Kind, Posthaste-Attempt, Posthaste-Epoch
//	Idempotency-Key         the job's id: the same for every attempt
//	Posthaste-Header-NAME   each header of the job
//	traceparent, tracestate those two under their own names
//
// What the answer means:
//
//	2xx                      succeeded; the answer's body is not kept
//	408, 425, 429, 5xx, 3xx  tried again by the kind's retry policy, or after
//	                         Retry-After if a 429 or 503 says so
//	other 4xx                failed for good: waits for a person, with the status and
//	                         the beginning of the answer
//	no answer                tried again
//
// A receiver may get a request more than once, because its answer can be lost: it
// tells repeats by Idempotency-Key, and a worker that lost its lease by an epoch
// lower than the highest one it has seen.
//
// Redirects are not followed. A URL's password, query and path are never part of
// an error, because errors are stored and logged.
package webhook
