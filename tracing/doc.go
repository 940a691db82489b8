// Package tracing makes OpenTelemetry spans of jobs, events and the code that handles them. A program calls [Install]
// once; without it there are no spans and no cost. The package depends on OpenTelemetry's API only: the program chooses
// the SDK that processes the spans and where they go.
//
//	remove, err := tracing.Install(tracing.Config{Provider: provider})
//	if err != nil {
//		return err
//	}
//	defer remove()
//
//	enqueue {kind}     producer   outbox.Enqueue, EnqueueMany, Submit: one for a batch
//	publish {topic}    producer   outbox.Publish, PublishMany
//	process {kind}     consumer   one attempt of a job, or one batch of them, until its outcome is decided
//	post {host}        client     a webhook is called
//	send {sink}        producer   the relay gives a batch of events to a sink
//	{method} {route}   server     package api answers a request; streams of changes have none
//
// The context of an enqueue or publish span is stored in the headers traceparent and tracestate of each job or event;
// the context of a post span replaces them in the request, so that the receiver's span is its child. A follow-up is
// created in the span of the attempt. Claims, extensions of leases and settlements have no spans, because there are too
// many of them.
//
// A process span is linked to the span that created its job. With [Auto] it is also that span's child if it is the
// first attempt and began within a minute after the job was stored and became due. Otherwise it begins a trace of its
// own, because few systems can show a trace that stays open for hours. A retried job's span is also linked to the
// newest failed attempt; the link has posthaste.attempt, the number of that attempt. Batches have up to 128 links and
// no parent from another trace.
//
// The span of a failed attempt is stored with its error, if it is sampled. An attempt whose process died leaves none,
// and an attempt that was postponed, snoozed or interrupted has not failed.
//
// Attributes follow OpenTelemetry's conventions for messaging, with messaging.system = posthaste, and posthaste.kind,
// .attempt, .epoch and .outcome. There is one difference: a span is named by the kind of its job rather than by its
// queue, because people search for kinds. Spans never contain keys of jobs, because keys name customers.
package tracing
