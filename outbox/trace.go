package outbox

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// If the program uses package tracing, each call that stores jobs or events gets a span, whose trace context is stored
// with them. Otherwise a call only checks whether tracing is in use.

// traceEnqueue begins the span of storing a job and adds its context to the job's headers.
func traceEnqueue(ctx context.Context, t engine.Tracer, args Args, opts *Options) (context.Context, engine.Span) {
	ctx, span := t.Start(ctx, engine.SpanStart{
		Operation: engine.OpEnqueue, Name: args.Kind(), Destination: queueOf(opts), Count: 1,
		Headers: []map[string]string{opts.Headers}, Correlation: opts.Caller.CorrelationID,
		Tenant: tenantOf(opts.Tenant),
	})
	opts.Headers = span.Inject(opts.Headers)
	return ctx, span
}

// traceMany begins a span as traceEnqueue does, for many jobs, and adds its context in a copy of the requests. A
// request keeps its own trace context if that differs from the first request's.
func traceMany(ctx context.Context, t engine.Tracer, requests []Request) (context.Context, engine.Span, []Request) {
	first := &requests[0].Options
	s := engine.SpanStart{
		Operation: engine.OpEnqueue, Destination: queueOf(first), Count: len(requests),
		Headers:     []map[string]string{first.Headers},
		Correlation: first.Caller.CorrelationID, Tenant: tenantOf(first.Tenant),
	}
	if args := requests[0].Args; args != nil {
		s.Name = args.Kind()
	}
	around := first.Headers[engine.HeaderTraceParent]
	requests = slices.Clone(requests)
	for i := range requests {
		if args := requests[i].Args; args == nil || args.Kind() != s.Name {
			s.Name = ""
		}
	}
	ctx, span := t.Start(ctx, s)
	alone := span.Inject(nil)
	for i := range requests {
		switch headers := requests[i].Options.Headers; {
		case headers == nil:
			requests[i].Options.Headers = alone
		case headers[engine.HeaderTraceParent] == "" || headers[engine.HeaderTraceParent] == around:
			requests[i].Options.Headers = span.Inject(headers)
		}
	}
	return ctx, span, requests
}

// tracePublish begins a span as traceEnqueue does, for events. It changes their options; the headers of the first
// determine the span's parent.
func tracePublish(ctx context.Context, t engine.Tracer, topic string,
	all ...*EventOptions,
) (context.Context, engine.Span) {
	ctx, span := t.Start(ctx, engine.SpanStart{
		Operation: engine.OpPublish, Name: topic, Destination: topic, Count: len(all),
		Headers: []map[string]string{all[0].Headers}, Tenant: tenantOf(all[0].Tenant),
	})
	around := all[0].Headers[engine.HeaderTraceParent]
	for _, opts := range all {
		if own := opts.Headers[engine.HeaderTraceParent]; own == "" || own == around {
			opts.Headers = span.Inject(opts.Headers)
		}
	}
	return ctx, span
}

// endTrace ends the span of storing jobs or events.
func endTrace(span engine.Span, id ID, err error) {
	if !id.IsZero() {
		span.Identify(id.String())
	}
	message := ""
	if err != nil {
		message = err.Error()
	}
	span.End("", "", message)
}

func queueOf(opts *Options) string {
	if opts.Queue == "" {
		return engine.DefaultQueue
	}
	return opts.Queue
}

func tenantOf(tenant ID) string {
	if tenant.IsZero() {
		tenant = RootTenant
	}
	return tenant.String()
}

// withContext returns stored headers with a trace context added.
func withContext(headers *string, trace map[string]string) *string {
	if trace == nil {
		return headers
	}
	all := map[string]any{}
	if headers != nil && json.Unmarshal([]byte(*headers), &all) != nil {
		return headers
	}
	delete(all, engine.HeaderTraceState)
	for name, value := range trace {
		all[name] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		return headers
	}
	return new(string(text))
}
