// Package tracing makes OpenTelemetry spans of jobs, events and what carries them out. A program calls [Install] once;
// without it there are no spans, and nothing is paid for them. It depends on OpenTelemetry's API only: which SDK makes
// something of the spans, and where they go, the program says.
//
//	enqueue {kind}     producer   outbox.Enqueue, EnqueueMany, Submit: one for a batch
//	publish {topic}    producer   outbox.Publish, PublishMany
//	process {kind}     consumer   one attempt of a job, or one batch of them, until its outcome is decided
//	post {host}        client     a webhook is called
//	send {sink}        producer   the relay gives a batch of events to a sink
//	{method} {route}   server     package api answers a request; streams of changes have none
//
// The context of an enqueue or publish span is stored in the headers traceparent and tracestate of each job or event;
// that of a post span replaces them in the request, so that the receiver is its child. A follow-up of a job is made in
// the span of the attempt. Claims, extensions of leases and settlements have no spans: there are too many.
//
// A process span is linked to the span that made its job. With [Auto] it is its child as well if it is the first
// attempt and began within a minute after its job was stored and became due; otherwise it begins a trace of its own,
// because a trace that stays open for hours can be shown by few systems. A job that is tried again is linked to its
// newest failed attempt as well; the link has posthaste.attempt, the number of that one. Batches have up to 128 links
// and no parent of another trace.
//
// The span of a failed attempt is stored with its error, if it is sampled. An attempt whose process died left none, and
// what was put off, snoozed or interrupted has not failed.
//
// Attributes are those of OpenTelemetry's conventions for messaging, with messaging.system = posthaste, and
// posthaste.kind, .attempt, .epoch and .outcome. In one thing they differ: a span is named by the kind of its job and
// not by its queue, because that is what is searched for. Keys of jobs are never in spans, because they name customers.
package tracing
