package api

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// trace is the W3C trace context of a request, or of the span in which it is answered; the job carries it to its
// handler.
type trace struct{ parent, state string }

// The suffix that a later version may append is unknown, but it is text that a job can store.
var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$`)

const maxTraceBytes = 512

// traceOf parses the headers. As the standard requires, it ignores a malformed trace context, and a state without a
// parent.
func traceOf(h http.Header) trace {
	parents := h.Values("Traceparent")
	if len(parents) != 1 || len(parents[0]) > maxTraceBytes || !traceParent.MatchString(parents[0]) {
		return trace{}
	}
	version, rest, _ := strings.Cut(parents[0], "-")
	id, rest, _ := strings.Cut(rest, "-")
	span, rest, _ := strings.Cut(rest, "-")
	if version == "ff" || version == "00" && len(rest) != 2 || strings.Trim(id, "0") == "" ||
		strings.Trim(span, "0") == "" {
		return trace{}
	}
	t := trace{parent: parents[0], state: strings.Join(h.Values("Tracestate"), ",")}
	if len(t.state) > maxTraceBytes || textFault(t.state) != "" {
		t.state = ""
	}
	return t
}

// withTrace adds the request's trace context to a job's headers, unless they have their own.
func withTrace(ctx context.Context, headers map[string]string) map[string]string {
	t, _ := ctx.Value(traceKey).(trace)
	if _, own := headers["traceparent"]; own || t.parent == "" {
		return headers
	}
	headers = maps.Clone(headers)
	if headers == nil {
		headers = map[string]string{}
	}
	headers["traceparent"] = t.parent
	delete(headers, "tracestate")
	if t.state != "" {
		headers["tracestate"] = t.state
	}
	return headers
}

// traced begins the span of a request. It returns a context in which a job's trace context is the span's, and the
// function that ends the span with the answer. Without package tracing, and for a stream, which may last for hours,
// there is no span, and the trace context is the request's own.
func traced(ctx context.Context, op *huma.Operation, h http.Header, w http.ResponseWriter) (context.Context, func()) {
	own := traceOf(h)
	t := engine.Tracing()
	if t == nil || isStream(op) {
		return context.WithValue(ctx, traceKey, own), func() {}
	}
	ctx, span := t.Start(ctx, engine.SpanStart{
		Operation: engine.OpServe, Name: op.Method + " " + op.Path,
		Headers: []map[string]string{{engine.HeaderTraceParent: own.parent, engine.HeaderTraceState: own.state}},
	})
	made := span.Inject(nil)
	return context.WithValue(ctx, traceKey, trace{made[engine.HeaderTraceParent], made[engine.HeaderTraceState]}),
		func() {
			status := http.StatusInternalServerError // after a panic nothing has been written yet
			if a, ok := w.(*answer); ok && a.status != 0 {
				status = a.status
			}
			code := ""
			if status >= http.StatusInternalServerError {
				code = strconv.Itoa(status)
			}
			span.End(strconv.Itoa(status), code, "")
		}
}

func isStream(op *huma.Operation) bool {
	usual := op.Responses["200"]
	return usual != nil && usual.Content[eventStream] != nil
}
