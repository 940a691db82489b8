package api

import (
	"context"
	"maps"
	"net/http"
	"regexp"
	"strings"
)

// trace is the W3C trace context of a request; the job carries it to its handler.
type trace struct{ parent, state string }

// What a later version appends is not known, but it is text that a job can store.
var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$`)

const maxTraceBytes = 512

// traceOf reads the headers. As the standard asks, a trace context that is not well formed is
// ignored, and a state without a parent means nothing.
func traceOf(h http.Header) trace {
	parents := h.Values("Traceparent")
	if len(parents) != 1 || len(parents[0]) > maxTraceBytes || !traceParent.MatchString(parents[0]) {
		return trace{}
	}
	version, rest, _ := strings.Cut(parents[0], "-")
	id, rest, _ := strings.Cut(rest, "-")
	span, rest, _ := strings.Cut(rest, "-")
	if version == "ff" || version == "00" && len(rest) != 2 || strings.Trim(id, "0") == "" || strings.Trim(span, "0") == "" {
		return trace{}
	}
	t := trace{parent: parents[0], state: strings.Join(h.Values("Tracestate"), ",")}
	if len(t.state) > maxTraceBytes || textFault(t.state) != "" {
		t.state = ""
	}
	return t
}

// withTrace adds the request's trace context to a job's headers, unless they have
// one of their own.
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
