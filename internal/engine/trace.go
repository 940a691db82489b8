package engine

import (
	"context"
	"sync/atomic"
)

// Operations of which there are spans.
const (
	OpEnqueue = "enqueue" // jobs are stored
	OpPublish = "publish" // events are stored
	OpProcess = "process" // a handler is called
	OpPost    = "post"    // a webhook is called
	OpSend    = "send"    // a batch of events is given to a sink
	OpServe   = "serve"   // a request of the API is answered
)

// Tracer makes spans. Package tracing has the only one.
type Tracer interface {
	Start(ctx context.Context, s SpanStart) (context.Context, Span)
}

// SpanStart is what is known when a span begins.
type SpanStart struct {
	Operation   string
	Name        string              // of the kind, topic, sink, receiver or route; "" if there are several
	Destination string              // the queue, or as Name
	Count       int                 // of jobs or messages
	Headers     []map[string]string // theirs, by which spans are linked to those in which they were made
	ID          string              // of the job or message, if it is one
	Correlation string
	Worker      string
	Tenant      string
	Attempt     int
	Epoch       int64
	Fresh       bool // a first attempt, begun soon after its job was stored and due
	Failed      []FailedSpan
}

// FailedSpan is the span of an attempt that failed before this one.
type FailedSpan struct {
	TraceParent string
	Attempt     int
}

// Span is one that has begun.
type Span interface {
	// Inject returns a copy of headers in which the trace context is the span's.
	Inject(headers map[string]string) map[string]string
	// TraceID is "" if the span is not sampled.
	TraceID() string
	// Identify says which job or message it is, once that is known.
	Identify(id string)
	// End ends it. An outcome is what became of a job, or the status of an answer; code and message are of the failure,
	// "" for none.
	End(outcome, code, message string)
}

// Headers of a trace context, by W3C's recommendation.
const (
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
)

var tracing atomic.Pointer[Tracer]

// SetTracing has t make the spans of this process, until remove is called or another is set.
func SetTracing(t Tracer) (remove func()) {
	mine := &t
	tracing.Store(mine)
	return func() { tracing.CompareAndSwap(mine, nil) }
}

// Tracing is what makes spans, or nil.
func Tracing() Tracer {
	if t := tracing.Load(); t != nil {
		return *t
	}
	return nil
}
