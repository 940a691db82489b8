package integration

import (
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/tracing"
)

// spans receives what programs export by OTLP over HTTP.
type spans struct {
	mu  sync.Mutex
	all map[string][]*otlp.Span // by the name of the service
}

func (r *spans) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var sent collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &sent) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range sent.GetResourceSpans() {
		service := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			r.all[service] = append(r.all[service], scope.GetSpans()...)
		}
	}
}

// of returns the spans of a service by name. There have to be one of each name, and no others.
func (r *spans) of(t *testing.T, service string, names ...string) map[string]*otlp.Span {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	byName := map[string]*otlp.Span{}
	for _, s := range r.all[service] {
		byName[s.GetName()] = s
	}
	if got := slices.Sorted(maps.Keys(byName)); !slices.Equal(got, names) || len(r.all[service]) != len(names) {
		t.Fatalf("%s exported %d spans, called %q, want one of each of %q", service, len(r.all[service]), got, names)
	}
	return byName
}

// A Go program stores a job in its request's span, and serve posts it: both export their spans to one collector, where
// the attempt is below the producer's span and linked to it. It is no parallel test, because the tracer is the
// process's.
func TestTraceFromAGoProducerToTheReceiver(t *testing.T) {
	s := begin(t, pgtest.URL(t), nil)
	collected := &spans{all: map[string][]*otlp.Span{}}
	collecting := httptest.NewServer(collected)
	defer collecting.Close()
	parents := make(chan string, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		parents <- r.Header.Get("Traceparent")
	}))
	defer hook.Close()
	serve := s.serve("serve", "OUTBOX_WEBHOOKS=greet="+hook.URL, "OTEL_EXPORTER_OTLP_ENDPOINT="+collecting.URL,
		"OTEL_SERVICE_NAME=jobs").ready()
	s.produce(collecting.URL)
	s.awaitClosed(1)
	serve.terminate()
	if code := serve.exit(30 * time.Second); code != 0 {
		t.Errorf("serve ended with %d, want 0", code)
	}
	post := "post " + strings.TrimPrefix(hook.URL, "http://")
	shop, jobs := collected.of(t, "shop", "enqueue greet", "request"), collected.of(t, "jobs", post, "process greet")
	request, made, process := shop["request"], shop["enqueue greet"], jobs["process greet"]
	above := id(made.GetParentSpanId())
	if made.GetKind() != otlp.Span_SPAN_KIND_PRODUCER || above != id(request.GetSpanId()) {
		t.Errorf("the job was stored in a %s below %s, want a producer's below the request", made.GetKind(), above)
	}
	links := process.GetLinks()
	if len(links) != 1 || id(links[0].GetTraceId()) != id(made.GetTraceId()) ||
		id(links[0].GetSpanId()) != id(made.GetSpanId()) {
		t.Errorf("the attempt has the links %v, want one to %s", links, id(made.GetSpanId()))
	}
	above = id(process.GetParentSpanId())
	if process.GetKind() != otlp.Span_SPAN_KIND_CONSUMER || above != id(made.GetSpanId()) {
		t.Errorf("the attempt is a %s below %s, want a consumer's below %s", process.GetKind(), above, id(made.GetSpanId()))
	}
	if above := id(jobs[post].GetParentSpanId()); above != id(process.GetSpanId()) {
		t.Errorf("the post is below %s, want the attempt's %s", above, id(process.GetSpanId()))
	}
	want := "00-" + id(request.GetTraceId()) + "-" + id(jobs[post].GetSpanId()) + "-01"
	if parent := <-parents; parent != want {
		t.Errorf("the receiver was called by %s, want %s", parent, want)
	}
}

// id returns the id of a span or a trace as it is written.
func id(b []byte) string { return hex.EncodeToString(b) }

// produce stores a job as a program does that exports its spans, and is over.
func (s *story) produce(endpoint string) {
	s.Helper()
	exporter, err := otlptracehttp.New(s.Context(), otlptracehttp.WithEndpointURL(endpoint+"/v1/traces"))
	if err != nil {
		s.Fatal(err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "shop"))))
	remove, err := tracing.Install(tracing.Config{Provider: provider})
	if err != nil {
		s.Fatal(err)
	}
	defer remove()
	ctx, request := provider.Tracer("shop").Start(s.Context(), "request")
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, greeting{"Ada"}, outbox.Options{})
		return err
	})
	request.End()
	if err != nil {
		s.Fatal(err)
	}
	if err := provider.Shutdown(s.Context()); err != nil {
		s.Fatal(err)
	}
}

type greeting struct{ Name string }

func (greeting) Kind() string { return "greet" }
