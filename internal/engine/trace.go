package engine

import (
	"context"
	"sync/atomic"
)

// Operations that have spans.
const (
	OpEnqueue = "enqueue" // jobs are stored
	OpPublish = "publish" // events are stored
	OpProcess = "process" // a handler is called
	OpPost    = "post"    // a webhook is called
	OpSend    = "send"    // a batch of events is sent to a sink
	OpServe   = "serve"   // a request of the API is answered
)

// Tracer makes spans. Package tracing has the only implementation.
type Tracer interface {
	Start(ctx context.Context, s SpanStart) (context.Context, Span)
}

// SpanStart describes a span that begins.
type SpanStart struct {
	Operation   string
	Name        string              // the kind, topic, sink, receiver or route; "" if there are several
	Destination string              // the queue, or the same as Name
	Count       int                 // jobs or messages
	Headers     []map[string]string // of these jobs or messages, to link the span to those in which they were made
	ID          string              // of the job or message, if there is only one
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

// Span is a span that has begun.
type Span interface {
	// Inject returns a copy of headers in which the trace context is the span's.
	Inject(headers map[string]string) map[string]string
	// TraceID returns the trace's id, or "" if the span is not sampled.
	TraceID() string
	// Identify sets the id of the job or message, once it is known.
	Identify(id string)
	// End ends the span. outcome is what became of a job, or the status of an answer; code and message describe the
	// failure, and are "" without one.
	End(outcome, code, message string)
}

// Headers of a trace context, as the W3C recommends.
const (
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
)

var tracing atomic.Pointer[Tracer]

// SetTracing makes t the source of this process's spans, until remove is called or another is set.
func SetTracing(t Tracer) (remove func()) {
	mine := &t
	tracing.Store(mine)
	return func() { tracing.CompareAndSwap(mine, nil) }
}

// Tracing returns the current tracer, or nil.
func Tracing() Tracer {
	if t := tracing.Load(); t != nil {
		return *t
	}
	return nil
}
