package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Mode selects how the span of an attempt relates to the span that created its job.
type Mode string

// These are the modes.
const (
	Auto   Mode = "auto"   // a link; also a child if it is a first attempt that begins within a minute
	Link   Mode = "link"   // a link only: each attempt is a trace of its own
	Parent Mode = "parent" // always a child, with a link
)

// Config selects which spans are made. Its zero value suits most programs.
type Config struct {
	Provider trace.TracerProvider // nil means otel.GetTracerProvider
	Mode     Mode                 // "" means Auto
	Tenant   bool                 // spans have the attribute posthaste.tenant
	Baggage  bool                 // store a producer's baggage with the job, for its handler
}

// maxLinks is how many links the span of a batch has: the default limit of SDKs.
const maxLinks = 128

// Install makes this process produce spans until the returned function is called. If it is called several times, the
// latest call counts.
func Install(config Config) (remove func(), err error) {
	switch config.Mode {
	case "":
		config.Mode = Auto
	case Auto, Link, Parent:
	default:
		return nil, fmt.Errorf("tracing: Config.Mode is %q, want auto, link or parent", config.Mode)
	}
	if config.Provider == nil {
		config.Provider = otel.GetTracerProvider()
	}
	if config.Provider == nil {
		return nil, errors.New("tracing: Config.Provider is nil, and there is no global one")
	}
	t := &tracer{config: config, tracer: config.Provider.Tracer("github.com/posthaste-dev/posthaste/tracing")}
	t.wire = propagation.TraceContext{}
	if config.Baggage {
		t.wire = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	return engine.SetTracing(t), nil
}

type tracer struct {
	config Config
	tracer trace.Tracer
	wire   propagation.TextMapPropagator
}

// Start begins a span.
func (t *tracer) Start(ctx context.Context, s engine.SpanStart) (context.Context, engine.Span) {
	options := []trace.SpanStartOption{
		trace.WithSpanKind(kindOf(s.Operation)),
		trace.WithAttributes(t.attributes(s)...),
	}
	made := t.madeIn(s.Headers)
	around := trace.SpanContextFromContext(ctx)
	switch s.Operation {
	case engine.OpEnqueue, engine.OpPublish:
		if !around.IsValid() && len(made) > 0 { // over the API, the request's
			ctx = trace.ContextWithRemoteSpanContext(ctx, made[0])
		}
	case engine.OpProcess:
		// An attempt does not belong to the span in which the program was started.
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
		if len(made) == 1 && len(s.Headers) == 1 && (t.config.Mode == Parent || t.config.Mode == Auto && s.Fresh) {
			ctx = trace.ContextWithRemoteSpanContext(ctx, made[0])
		}
		if t.config.Baggage && len(s.Headers) == 1 {
			ctx = propagation.Baggage{}.Extract(ctx, propagation.MapCarrier(s.Headers[0]))
		}
		options = append(options, links(made), failed(s.Failed, maxLinks-len(made)))
	case engine.OpPost:
		// An event's span belongs to the event's trace, with a link to the span of the batch around it; a job's span
		// belongs to the attempt.
		if len(made) == 1 {
			ctx = trace.ContextWithRemoteSpanContext(ctx, made[0])
			if around.IsValid() {
				options = append(options, links([]trace.SpanContext{around}))
			}
		}
	case engine.OpSend:
		options = append(options, links(made))
	case engine.OpServe:
		if len(made) > 0 {
			ctx = trace.ContextWithRemoteSpanContext(ctx, made[0])
		}
	}
	name := s.Operation
	switch {
	case s.Operation == engine.OpServe:
		name = s.Name
	case s.Name != "":
		name += " " + s.Name
	}
	ctx, begun := t.tracer.Start(ctx, name, options...)
	return ctx, &span{begun, ctx, t.wire, s.Operation}
}

// madeIn returns the spans in which jobs or messages were created.
func (t *tracer) madeIn(headers []map[string]string) (made []trace.SpanContext) {
	for _, h := range headers {
		if h[engine.HeaderTraceParent] == "" {
			continue
		}
		if found := read(h); found.IsValid() {
			made = append(made, found)
		}
		if len(made) == maxLinks {
			break
		}
	}
	return made
}

// read returns the span context of headers.
func read(headers map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(),
		propagation.MapCarrier(headers)))
}

// failed links a span to those of earlier attempts and adds each attempt's number.
func failed(before []engine.FailedSpan, most int) trace.SpanStartOption {
	before = before[:min(len(before), most)]
	made := make([]trace.Link, 0, len(before))
	for _, b := range before {
		if c := read(map[string]string{engine.HeaderTraceParent: b.TraceParent}); c.IsValid() {
			made = append(made, trace.Link{
				SpanContext: c,
				Attributes:  []attribute.KeyValue{attribute.Int("posthaste.attempt", b.Attempt)},
			})
		}
	}
	return trace.WithLinks(made...)
}

func links(to []trace.SpanContext) trace.SpanStartOption {
	made := make([]trace.Link, len(to))
	for i := range to {
		made[i].SpanContext = to[i]
	}
	return trace.WithLinks(made...)
}

func kindOf(operation string) trace.SpanKind {
	switch operation {
	case engine.OpProcess:
		return trace.SpanKindConsumer
	case engine.OpPost:
		return trace.SpanKindClient
	case engine.OpServe:
		return trace.SpanKindServer
	}
	return trace.SpanKindProducer
}

func (t *tracer) attributes(s engine.SpanStart) []attribute.KeyValue {
	if s.Operation == engine.OpServe { // as the conventions for HTTP require
		method, route, _ := strings.Cut(s.Name, " ")
		return []attribute.KeyValue{
			attribute.String("http.request.method", method),
			attribute.String("http.route", route),
		}
	}
	kind := "send"
	if s.Operation == engine.OpProcess {
		kind = "process"
	}
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", "posthaste"),
		attribute.String("messaging.operation.name", s.Operation),
		attribute.String("messaging.operation.type", kind),
	}
	text := func(name, value string) {
		if value != "" {
			attributes = append(attributes, attribute.String(name, value))
		}
	}
	text("messaging.destination.name", s.Destination)
	text("messaging.message.id", s.ID)
	text("messaging.message.conversation_id", s.Correlation)
	text("messaging.client.id", s.Worker)
	if s.Operation == engine.OpEnqueue || s.Operation == engine.OpProcess {
		text("posthaste.kind", s.Name)
	}
	if t.config.Tenant {
		text("posthaste.tenant", s.Tenant)
	}
	if s.Count > 1 {
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", s.Count))
	}
	if s.Attempt > 0 {
		attributes = append(attributes, attribute.Int("posthaste.attempt", s.Attempt),
			attribute.Int64("posthaste.epoch", s.Epoch))
	}
	return attributes
}

type span struct {
	trace.Span
	ctx       context.Context
	wire      propagation.TextMapPropagator
	operation string
}

// Inject returns a copy of headers with the span's context.
func (s *span) Inject(headers map[string]string) map[string]string {
	injected := make(map[string]string, len(headers)+2)
	maps.Copy(injected, headers)
	delete(injected, engine.HeaderTraceState)
	s.wire.Inject(s.ctx, propagation.MapCarrier(injected))
	return injected
}

// TraceID returns the trace id of a sampled span.
func (s *span) TraceID() string {
	if c := s.SpanContext(); c.IsSampled() {
		return c.TraceID().String()
	}
	return ""
}

// Identify sets the id of the span's single job or message.
func (s *span) Identify(id string) { s.SetAttributes(attribute.String("messaging.message.id", id)) }

// End ends the span.
func (s *span) End(outcome, code, message string) {
	switch status, err := strconv.Atoi(outcome); {
	case s.operation == engine.OpServe && err == nil:
		s.SetAttributes(attribute.Int("http.response.status_code", status))
	case outcome != "":
		s.SetAttributes(attribute.String("posthaste.outcome", outcome))
	}
	if code != "" || message != "" {
		if code == "" {
			code = "_OTHER"
		}
		s.SetAttributes(attribute.String("error.type", code))
		s.SetStatus(codes.Error, message)
	}
	s.Span.End()
}

// LogHandler returns a handler that adds trace_id and span_id to records logged within a span: pass the handler's
// context, as slog.InfoContext does.
func LogHandler(next slog.Handler) slog.Handler { return logHandler{next} }

type logHandler struct{ slog.Handler }

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if c := trace.SpanContextFromContext(ctx); c.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", c.TraceID().String()), slog.String("span_id", c.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }
