package webhook

import (
	"errors"
	"net/http"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/relay"
)

// posting is the span of a request; empty if the program does not use package tracing.
type posting struct{ span engine.Span }

// tracePost begins the span of a request. The span's context replaces the job's or the message's in the request, so
// that the receiver's span is its child.
func tracePost(req *http.Request, s engine.SpanStart) (*http.Request, posting) {
	t := engine.Tracing()
	if t == nil {
		return req, posting{}
	}
	s.Operation, s.Name, s.Count = engine.OpPost, req.URL.Host, 1
	ctx, span := t.Start(req.Context(), s)
	req = req.WithContext(ctx)
	delete(req.Header, engine.HeaderTraceParent) // in the spelling of a message
	delete(req.Header, engine.HeaderTraceState)
	req.Header.Del(engine.HeaderTraceState)
	for name, value := range span.Inject(nil) {
		req.Header[http.CanonicalHeaderKey(name)] = []string{value}
	}
	return req, posting{span}
}

func (p posting) end(err error) {
	if p.span == nil {
		return
	}
	message := ""
	if err != nil {
		message = err.Error()
	}
	p.span.End("", codeOf(err), message)
}

// codeOf returns the code of a failure, or "" if it has none.
func codeOf(err error) string {
	if refused, ok := errors.AsType[*relay.RefusedError](err); ok {
		return refused.Code
	}
	if unavailable, ok := errors.AsType[*relay.UnavailableError](err); ok {
		return unavailable.Code
	}
	return ""
}

// traceOf returns the trace context of a message, in the form of its event's headers.
func traceOf(m *relay.Message) map[string]string {
	found := map[string]string{}
	for _, h := range m.Headers {
		if h.Name == engine.HeaderTraceParent || h.Name == engine.HeaderTraceState {
			found[h.Name] = h.Value
		}
	}
	return found
}
