package main

import (
	"context"
	"encoding/hex"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// otlpReceiver takes spans by OTLP over HTTP, as a collector does.
type otlpReceiver struct {
	collector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    map[string][]*otlp.Span // by name, as they ended
	services []string
}

func (r *otlpReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var sent collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &sent) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.take(&sent)
}

// Export takes them over gRPC.
func (r *otlpReceiver) Export(_ context.Context, sent *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.take(sent)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *otlpReceiver) take(sent *collector.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range sent.GetResourceSpans() {
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.services = append(r.services, a.GetValue().GetStringValue())
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans[s.GetName()] = append(r.spans[s.GetName()], s)
			}
		}
	}
}

// only fails the test unless there are as many spans of each name, and none of another: claims, settlements and what
// else the process asks the database have none.
func (r *otlpReceiver) only(t *testing.T, want map[string]int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := map[string]int{}
	for name, spans := range r.spans {
		got[name] = len(spans)
	}
	if !maps.Equal(got, want) {
		t.Errorf("the spans are %v, want %v", got, want)
	}
}

// two returns the spans of a name, of which there have to be two.
func (r *otlpReceiver) two(t *testing.T, name string) (first, second *otlp.Span) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.spans[name]
	if len(s) != 2 {
		t.Fatalf("%d spans are called %q, want 2, among those of %d names", len(s), name, len(r.spans))
	}
	return s[0], s[1]
}

// serve exports its spans as OpenTelemetry's variables say, and the last of them when it is stopped. The job fails
// once: its second attempt begins a trace, and is linked to the first.
func TestServeExportsItsSpans(t *testing.T) {
	t.Parallel()
	received := &otlpReceiver{spans: map[string][]*otlp.Span{}}
	collecting := httptest.NewServer(received)
	defer collecting.Close()
	// One attribute has no value: the spans have the others.
	logs := exportsItsSpans(t, received, "OTEL_EXPORTER_OTLP_ENDPOINT="+collecting.URL, "OTEL_RESOURCE_ATTRIBUTES=team,region=eu")
	if !strings.Contains(logs, "spans lack attributes of the resource: see OTEL_RESOURCE_ATTRIBUTES") || !strings.Contains(logs, "[team]") {
		t.Errorf("no warning names the attribute without a value:\n%s", logs)
	}
}

func TestServeExportsItsSpansOverGRPC(t *testing.T) {
	t.Parallel()
	received := &otlpReceiver{spans: map[string][]*otlp.Span{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	collecting := grpc.NewServer()
	collector.RegisterTraceServiceServer(collecting, received)
	go func() { _ = collecting.Serve(ln) }()
	defer collecting.Stop()
	exportsItsSpans(t, received, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+ln.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
}

// exportsItsSpans returns the log of serve.
func exportsItsSpans(t *testing.T, received *otlpReceiver, variables ...string) string {
	t.Helper()
	parents := make(chan string, 2)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if parents <- r.Header.Get("Traceparent"); len(parents) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer receiver.Close()
	url := pgtest.URL(t)
	cmd, logs := servingWith(t, append(variables, "OTEL_SERVICE_NAME=shop-jobs"),
		"--database-url", url, "--webhook", "greet="+receiver.URL)
	awaitText(t, "admin server listens", logs.String)
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ok(t, env{"DATABASE_URL": url}, "enqueue", "greet", "{}", "--backoff", "10ms", "--header", "traceparent=00-"+trace+"-"+span+"-01")
	awaitText(t, `"event":"job_completed"`, logs.String)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v, want exit status 0", err)
	}
	received.only(t, map[string]int{"process greet": 2, "post " + strings.TrimPrefix(receiver.URL, "http://"): 2})
	process, retry := received.two(t, "process greet")
	post, _ := received.two(t, "post "+strings.TrimPrefix(receiver.URL, "http://"))
	id := func(b []byte) string { return hex.EncodeToString(b) }
	if id(process.GetTraceId()) != trace || id(process.GetParentSpanId()) != span || len(process.GetLinks()) != 1 || id(process.GetLinks()[0].GetSpanId()) != span {
		t.Errorf("the attempt is in trace %s below %s, with %d links", id(process.GetTraceId()), id(process.GetParentSpanId()), len(process.GetLinks()))
	}
	if links := retry.GetLinks(); len(retry.GetParentSpanId()) != 0 || id(retry.GetTraceId()) == trace || len(links) != 2 ||
		id(links[0].GetSpanId()) != span || id(links[1].GetSpanId()) != id(process.GetSpanId()) {
		t.Errorf("the retry is below %s, with the links %v, want a trace of its own that is linked to the producer and the first attempt", id(retry.GetParentSpanId()), links)
	}
	parent := <-parents
	if id(post.GetParentSpanId()) != id(process.GetSpanId()) || parent != "00-"+trace+"-"+id(post.GetSpanId())+"-01" {
		t.Errorf("the post %s is below %s; the receiver got %s", id(post.GetSpanId()), id(post.GetParentSpanId()), parent)
	}
	if len(received.services) == 0 || received.services[0] != "shop-jobs" {
		t.Errorf("the spans are of %q, want shop-jobs", received.services)
	}
	awaitText(t, `"trace_id":"`+trace+`","span_id":"`+id(process.GetSpanId())+`"`, logs.String)
	return logs.String()
}

func TestVariablesOfTracingThatAreWrongAreRefused(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]env{
		`OTEL_TRACES_EXPORTER is "zipkin", want otlp or none`:                    {"OTEL_TRACES_EXPORTER": "zipkin"},
		`OTEL_EXPORTER_OTLP_PROTOCOL is "http/json", want http/protobuf or grpc`: {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
		`OUTBOX_TRACE is "on": want one of auto, link, parent, off`:              {"OUTBOX_TRACE": "on"},
	} {
		e["DATABASE_URL"], e["OUTBOX_ADMIN_ADDR"] = "postgres://nobody@127.0.0.1:1/none", "off"
		if r := posthaste(t, e, "", "serve"); r.code != exitUsage || !strings.Contains(r.errOut, name) {
			t.Errorf("got %d %q, want 2 with %s", r.code, r.errOut, name)
		}
	}
}
