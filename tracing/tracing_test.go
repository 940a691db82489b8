package tracing_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/webhook"
	"github.com/posthaste-dev/posthaste/tracing"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The tracer is the process's: these tests run one after the other.

type greet struct{ Name string }

func (greet) Kind() string { return "greet" }

type greeted struct{ Name string }

func (greeted) Topic() string { return "greeted" }

// rig records the spans of a program.
type rig struct {
	t     *testing.T
	db    *pgxpool.Pool
	spans *tracetest.SpanRecorder
	log   *bytes.Buffer
	reg   *prometheus.Registry
	tp    *sdk.TracerProvider
}

func newRig(t *testing.T, config tracing.Config) *rig {
	t.Helper()
	r := &rig{t: t, db: pgtest.New(t), spans: tracetest.NewSpanRecorder(), log: new(bytes.Buffer), reg: prometheus.NewRegistry()}
	r.tp = sdk.NewTracerProvider(sdk.WithSpanProcessor(r.spans))
	if config.Provider == nil {
		config.Provider = r.tp
	}
	remove, err := tracing.Install(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	return r
}

// work runs a dispatcher until done holds in the database.
func (r *rig) work(mux *dispatcher.Mux, done string) {
	r.t.Helper()
	d, err := dispatcher.New(r.db, mux, dispatcher.Config{
		PollInterval: 20 * time.Millisecond, Registerer: r.reg, Worker: "worker",
		Logger: slog.New(tracing.LogHandler(slog.NewJSONHandler(r.log, nil))),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	var is bool
	for deadline := time.Now().Add(30 * time.Second); !is && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err := r.db.QueryRow(r.t.Context(), done).Scan(&is); err != nil {
			r.t.Error(err)
			break
		}
	}
	stop()
	if err := <-ended; err != nil || !is {
		r.t.Fatalf("%s: %t, %v", done, is, err)
	}
}

func (r *rig) enqueue(ctx context.Context, args outbox.Args, opts outbox.Options) outbox.ID {
	r.t.Helper()
	id, err := outbox.Enqueue(ctx, r.db, args, opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// named returns the spans of a name, in the order in which they ended.
func (r *rig) named(name string, n int) []sdk.ReadOnlySpan {
	r.t.Helper()
	var found []sdk.ReadOnlySpan
	var all []string
	for _, s := range r.spans.Ended() {
		all = append(all, s.Name())
		if s.Name() == name {
			found = append(found, s)
		}
	}
	if len(found) != n {
		r.t.Fatalf("%d spans are called %q, want %d, among %q", len(found), name, n, all)
	}
	return found
}

// only fails the test unless the spans that began have these names, each as often as it is given: claims, settlements
// and looks at the database have none.
func (r *rig) only(names ...string) {
	r.t.Helper()
	var began []string
	for _, s := range r.spans.Started() {
		began = append(began, s.Name())
	}
	slices.Sort(began)
	slices.Sort(names)
	if !slices.Equal(began, names) {
		r.t.Errorf("the spans are %q, want %q", began, names)
	}
}

func attr(s sdk.ReadOnlySpan, name string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// linked reports whether a span is linked to another.
func linked(s sdk.ReadOnlySpan, to trace.SpanContext) bool {
	return slices.ContainsFunc(s.Links(), func(l sdk.Link) bool {
		return l.SpanContext.SpanID() == to.SpanID() && l.SpanContext.TraceID() == to.TraceID()
	})
}

const allDone = `SELECT NOT EXISTS (SELECT FROM outbox.jobs WHERE status IN ('pending', 'running', 'retrying', 'blocked'))`

func TestAFirstAttemptIsAChildAndARetryATraceOfItsOwn(t *testing.T) {
	r := newRig(t, tracing.Config{})
	ctx, request := r.tp.Tracer("shop").Start(t.Context(), "request")
	id := r.enqueue(ctx, greet{"Ada"}, outbox.Options{Queue: "default", Caller: outbox.Caller{CorrelationID: "c-1"}})
	request.End()
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[greet]) error {
		if job.Attempt == 1 {
			return dispatcher.RetryAfter(0, errors.New("not yet"))
		}
		_, inner := r.tp.Tracer("shop").Start(ctx, "inner")
		inner.End()
		_, err := job.Then(farewell{}, outbox.Options{})
		return err
	})
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[farewell]) error { return nil })
	r.work(mux, allDone)

	r.only("request", "enqueue greet", "process greet", "process greet", "inner", "process farewell")
	made := r.named("enqueue greet", 1)[0]
	if made.Parent().SpanID() != request.SpanContext().SpanID() || made.SpanKind() != trace.SpanKindProducer || attr(made, "messaging.message.id") != id.String() {
		t.Errorf("the job was made in %v, a %s, of %q", made.Parent(), made.SpanKind(), attr(made, "messaging.message.id"))
	}
	attempts := r.named("process greet", 2)
	first, second := attempts[0], attempts[1]
	if first.Parent().SpanID() != made.SpanContext().SpanID() || !linked(first, made.SpanContext()) || first.SpanKind() != trace.SpanKindConsumer {
		t.Errorf("the first attempt has the parent %v, want %v and a link to it", first.Parent(), made.SpanContext())
	}
	if second.Parent().IsValid() || second.SpanContext().TraceID() == made.SpanContext().TraceID() || !linked(second, made.SpanContext()) {
		t.Errorf("the retry has the parent %v and the links %v, want none and one", second.Parent(), second.Links())
	}
	if n := len(first.Links()); n != 1 || !linked(second, first.SpanContext()) ||
		!slices.Contains(second.Links()[1].Attributes, attribute.Int("posthaste.attempt", 1)) {
		t.Errorf("the first attempt has %d links, and the retry %v, want 1 and one to attempt 1", n, second.Links())
	}
	for name, want := range map[string]string{
		"messaging.system": "posthaste", "messaging.operation.type": "process", "messaging.destination.name": "default", "messaging.message.id": id.String(),
		"messaging.message.conversation_id": "c-1", "posthaste.kind": "greet", "posthaste.attempt": "1", "posthaste.outcome": "retrying", "error.type": "error", "posthaste.tenant": "",
	} {
		if got := attr(first, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if s := first.Status(); s.Code != codes.Error || s.Description != "not yet" || second.Status().Code == codes.Error || attr(second, "posthaste.outcome") != "succeeded" {
		t.Errorf("they ended with %v and %v", s, second.Status())
	}
	if inner := r.named("inner", 1)[0]; inner.Parent().SpanID() != second.SpanContext().SpanID() {
		t.Error("what the handler does is not in its attempt's span")
	}
	if next := r.named("process farewell", 1)[0]; next.Parent().SpanID() != second.SpanContext().SpanID() {
		t.Error("the follow-up is not a child of the attempt that made it")
	}
	r.wantInLog(`"event":"job_claimed"`, first, second)
	r.wantInLog(`"event":"job_failed"`, first)
	r.wantInLog(`"event":"job_completed"`, second)
	r.wantExemplar(first, second)
}

// Of a batch that fails each job's next attempt is linked to its span, and an outage that lasted too long is a failure
// like others. A span that is not sampled is not stored.
func TestTheSpanOfAFailedAttemptIsStoredIfItIsSampled(t *testing.T) {
	r := newRig(t, tracing.Config{})
	for _, name := range []string{"a", "b"} {
		r.enqueue(t.Context(), greet{name}, outbox.Options{})
	}
	r.enqueue(t.Context(), farewell{}, outbox.Options{})
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET unavailable_since = now() - interval '2 days' WHERE kind = 'farewell'`); err != nil {
		t.Fatal(err)
	}
	mux := new(dispatcher.Mux)
	dispatcher.HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[greet]) []error {
		failures := make([]error, len(jobs))
		if jobs[0].Attempt == 1 {
			for i := range failures {
				failures[i] = dispatcher.RetryAfter(0, errors.New("not yet"))
			}
		}
		return failures
	}, dispatcher.BatchConfig{Wait: time.Second, Max: 2})
	dispatcher.Handle(mux, func(_ context.Context, job *outbox.Job[farewell]) error {
		if job.Attempt == 1 {
			return dispatcher.Unavailable(errors.New("away"), 0)
		}
		return nil
	}, dispatcher.KindConfig{Backoff: func(*outbox.Claimed, error) time.Duration { return 0 }})
	r.work(mux, allDone)
	batches := r.named("process greet", 2)
	if retry := batches[1]; !linked(retry, batches[0].SpanContext()) || len(retry.Links()) != 4 {
		t.Errorf("the second batch has the links %v, want those of two jobs and two to the first batch", retry.Links())
	}
	if outage := r.named("process farewell", 2); !linked(outage[1], outage[0].SpanContext()) {
		t.Errorf("the attempt after the outage has the links %v, want one to the attempt before", outage[1].Links())
	}

	r = newRig(t, tracing.Config{Provider: sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))})
	r.enqueue(t.Context(), greet{}, outbox.Options{MaxAttempts: 1})
	mux = new(dispatcher.Mux)
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[greet]) error { return errors.New("no") })
	r.work(mux, allDone)
	var failed, stored int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*), count(trace) FROM outbox.attempts`).Scan(&failed, &stored); err != nil || failed != 1 || stored != 0 {
		t.Errorf("%d attempts have failed, and %d spans are stored, want 1 and none, %v", failed, stored, err)
	}
}

type farewell struct{}

func (farewell) Kind() string { return "farewell" }

// wantInLog wants a line with the event for each span.
func (r *rig) wantInLog(event string, spans ...sdk.ReadOnlySpan) {
	r.t.Helper()
	for _, s := range spans {
		want := `"trace_id":"` + s.SpanContext().TraceID().String() + `","span_id":"` + s.SpanContext().SpanID().String() + `"`
		found := false
		for line := range strings.Lines(r.log.String()) {
			found = found || strings.Contains(line, event) && strings.Contains(line, want)
		}
		if !found {
			r.t.Errorf("no line has %s and %s:\n%s", event, want, r.log)
		}
	}
}

// wantExemplar wants the trace of one of the spans beside the times of the kind greet.
func (r *rig) wantExemplar(spans ...sdk.ReadOnlySpan) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range []string{"job_processing_seconds", "outbox_dispatcher_enqueue_to_start_seconds"} {
		var found []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, b := range m.GetHistogram().GetBucket() {
					if l := b.GetExemplar().GetLabel(); f.GetName() == name && len(l) == 1 {
						found = append(found, l[0].GetName()+"="+l[0].GetValue())
					}
				}
			}
		}
		if !slices.ContainsFunc(spans, func(s sdk.ReadOnlySpan) bool {
			return slices.Contains(found, "trace_id="+s.SpanContext().TraceID().String())
		}) {
			r.t.Errorf("%s has the exemplars %q", name, found)
		}
	}
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode  tracing.Mode
		age   string // of the job
		child bool
	}{{tracing.Auto, "2 minutes", false}, {tracing.Parent, "2 minutes", true}, {tracing.Link, "0", false}} {
		t.Run(string(c.mode), func(t *testing.T) {
			r := newRig(t, tracing.Config{Mode: c.mode, Tenant: true})
			r.enqueue(t.Context(), greet{}, outbox.Options{})
			if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET run_at = run_at - $1::interval, created_at = created_at - $1::interval`, c.age); err != nil {
				t.Fatal(err)
			}
			mux := new(dispatcher.Mux)
			dispatcher.Handle(mux, func(context.Context, *outbox.Job[greet]) error { return nil })
			r.work(mux, allDone)
			made, done := r.named("enqueue greet", 1)[0], r.named("process greet", 1)[0]
			if child := done.Parent().SpanID() == made.SpanContext().SpanID(); child != c.child || !linked(done, made.SpanContext()) {
				t.Errorf("a child: %t, want %t; links %v", child, c.child, done.Links())
			}
			if attr(done, "posthaste.tenant") != outbox.RootTenant.String() {
				t.Error("the span has no tenant")
			}
		})
	}
	if _, err := tracing.Install(tracing.Config{Mode: "sideways"}); err == nil {
		t.Error("a mode that there is not was accepted")
	}
}

func TestABatchHasOneSpanWithLinks(t *testing.T) {
	r := newRig(t, tracing.Config{})
	requests := []outbox.Request{{Args: greet{"a"}}, {Args: greet{"b"}, Options: outbox.Options{Headers: map[string]string{"x": "y"}}}, {Args: greet{"c"}}}
	own := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	requests = append(requests, outbox.Request{Args: greet{"d"}, Options: outbox.Options{Headers: own}})
	if _, err := outbox.EnqueueMany(t.Context(), r.db, requests); err != nil {
		t.Fatal(err)
	}
	mux := new(dispatcher.Mux)
	dispatcher.HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[greet]) []error { return make([]error, len(jobs)) }, dispatcher.BatchConfig{Wait: time.Second, Max: 4})
	r.work(mux, allDone)
	made, done := r.named("enqueue greet", 1)[0], r.named("process greet", 1)[0]
	if attr(made, "messaging.batch.message_count") != "4" || attr(done, "messaging.batch.message_count") != "4" || attr(done, "posthaste.outcome") != "succeeded" {
		t.Errorf("attributes %v and %v", made.Attributes(), done.Attributes())
	}
	other, err := trace.SpanIDFromHex("b7ad6b7169203331")
	if err != nil {
		t.Fatal(err)
	}
	foreign := slices.ContainsFunc(done.Links(), func(l sdk.Link) bool { return l.SpanContext.SpanID() == other })
	if len(done.Links()) != 4 || !linked(done, made.SpanContext()) || !foreign || done.Parent().IsValid() {
		t.Errorf("the batch is linked to %v and a child of %v", done.Links(), done.Parent())
	}
	if requests[1].Options.Headers["traceparent"] != "" || len(own) != 1 {
		t.Error("the caller's requests were changed")
	}
}

func TestTheReceiverOfAWebhookIsAChildOfThePost(t *testing.T) {
	r := newRig(t, tracing.Config{})
	got := make(chan http.Header, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got <- req.Header }))
	defer receiver.Close()
	handler, err := webhook.Handler(receiver.URL, webhook.Config{})
	if err != nil {
		t.Fatal(err)
	}
	mux := new(dispatcher.Mux)
	mux.HandleRaw("greet", handler)
	r.enqueue(t.Context(), greet{"Ada"}, outbox.Options{})
	r.work(mux, allDone)
	done, post := r.named("process greet", 1)[0], r.named("post "+strings.TrimPrefix(receiver.URL, "http://"), 1)[0]
	if post.Parent().SpanID() != done.SpanContext().SpanID() || post.SpanKind() != trace.SpanKindClient {
		t.Errorf("the post is a %s with the parent %v", post.SpanKind(), post.Parent())
	}
	want := "00-" + post.SpanContext().TraceID().String() + "-" + post.SpanContext().SpanID().String() + "-01"
	if parents := (<-got).Values("Traceparent"); len(parents) != 1 || parents[0] != want {
		t.Errorf("the receiver got %q, want %q", parents, want)
	}
}

func TestARequestOfTheAPIIsAServersSpan(t *testing.T) {
	r := newRig(t, tracing.Config{})
	stopping := make(chan struct{})
	handler, err := api.New(api.Config{Pool: r.db, AnonymousLoopback: true, Stopping: stopping})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(handler)
	defer served.Close()
	defer close(stopping)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, request := range []struct{ method, path, body string }{
		{"POST", "/jobs", `{"kind": "greet", "payload": {}}`},
		{"GET", "/jobs/01890a5d-ac96-774b-bcce-b302099a8057", ""}, // there is none
		{"GET", "/changes", ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		req, err := http.NewRequestWithContext(ctx, request.method, served.URL+request.path, strings.NewReader(request.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Traceparent", parent)
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cancel() // or a stream goes on
		_ = answer.Body.Close()
	}
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[greet]) error { return nil })
	r.work(mux, allDone)

	post := r.named("POST /jobs", 1)[0]
	if post.SpanKind() != trace.SpanKindServer || post.Parent().SpanID().String() != "b7ad6b7169203331" || attr(post, "http.route") != "/jobs" ||
		!slices.Contains(post.Attributes(), attribute.Int("http.response.status_code", http.StatusAccepted)) {
		t.Errorf("the request is a %s below %s, %v", post.SpanKind(), post.Parent().SpanID(), post.Attributes())
	}
	stored, done := r.named("enqueue greet", 1)[0], r.named("process greet", 1)[0]
	if stored.Parent().SpanID() != post.SpanContext().SpanID() || done.Parent().SpanID() != stored.SpanContext().SpanID() {
		t.Errorf("the attempt is below %s, and that below %s, want %s of the request", done.Parent().SpanID(), stored.Parent().SpanID(), post.SpanContext().SpanID())
	}
	if get := r.named("GET /jobs/{id}", 1)[0]; get.Status().Code == codes.Error ||
		!slices.Contains(get.Attributes(), attribute.Int("http.response.status_code", http.StatusNotFound)) {
		t.Errorf("a job that is not there: %v, %v", get.Status(), get.Attributes())
	}
	r.named("GET /changes", 0)
}

func TestEventsCarryTheirSpans(t *testing.T) {
	r := newRig(t, tracing.Config{})
	if _, err := outbox.Publish(t.Context(), r.db, greeted{"Ada"}, outbox.EventOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.PublishMany(t.Context(), r.db, []outbox.PublishRequest{{Event: greeted{"a"}}, {Event: greeted{"b"}}}); err != nil {
		t.Fatal(err)
	}
	spans := r.named("publish greeted", 2)
	for i, want := range []int{1, 2} {
		var events int
		if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.events WHERE headers->>'traceparent' LIKE '%' || $1 || '%'`,
			spans[i].SpanContext().SpanID().String()).Scan(&events); err != nil || events != want {
			t.Errorf("%d events have the context of span %d, want %d, %v", events, i, want, err)
		}
		if kind := spans[i].SpanKind(); kind != trace.SpanKindProducer {
			t.Errorf("events are published in a %s", kind)
		}
	}
	if !slices.Contains(spans[1].Attributes(), attribute.Int("messaging.batch.message_count", 2)) {
		t.Errorf("attributes %v", spans[1].Attributes())
	}
}

// What cannot be stored is a failure, and a panic and an exit of a handler end their spans.
func TestSpansEndHoweverAHandlerDoes(t *testing.T) {
	r := newRig(t, tracing.Config{})
	if _, err := outbox.Enqueue(t.Context(), r.db, greet{}, outbox.Options{Queue: "no such name"}); err == nil {
		t.Fatal("a queue of that name was accepted")
	}
	if refused := r.named("enqueue greet", 1)[0]; refused.Status().Code != codes.Error || attr(refused, "error.type") != "_OTHER" {
		t.Errorf("the refused one ended with %v, %v", refused.Status(), refused.Attributes())
	}
	for _, name := range []string{"panic", "exit"} {
		r.enqueue(t.Context(), greet{name}, outbox.Options{MaxAttempts: 1})
	}
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(_ context.Context, job *outbox.Job[greet]) error {
		if job.Args.Name == "exit" {
			runtime.Goexit()
		}
		panic("no")
	})
	r.work(mux, allDone)
	for _, s := range r.named("process greet", 2) {
		if s.Status().Code != codes.Error || attr(s, "posthaste.outcome") != "dead" || attr(s, "error.type") == "" {
			t.Errorf("a span ended with %v, %v", s.Status(), s.Attributes())
		}
	}
}

// The relay has a span for each batch; a POST belongs to the trace of its event, and is linked to the batch.
func TestAnEventIsPostedInItsOwnTrace(t *testing.T) {
	r := newRig(t, tracing.Config{})
	got := make(chan http.Header, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got <- req.Header }))
	defer receiver.Close()
	sink, err := webhook.Open(webhook.SinkConfig{URL: receiver.URL, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	published, err := relay.New(r.db, relay.Config{Sinks: []relay.SinkConfig{{Name: "hooks", Sink: sink, Routes: []relay.Route{{Topics: []string{"*"}, Destination: "/"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- published.Run(ctx) }()
	defer func() {
		stop()
		<-ended
	}()
	awaitRow(t, r.db, `SELECT EXISTS (SELECT FROM outbox.sinks)`) // it begins with events that come after it
	if _, err := outbox.Publish(t.Context(), r.db, greeted{"Ada"}, outbox.EventOptions{}); err != nil {
		t.Fatal(err)
	}
	header := <-got
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ended <- nil
	r.only("publish greeted", "send hooks", "post "+strings.TrimPrefix(receiver.URL, "http://"))
	made, sent := r.named("publish greeted", 1)[0], r.named("send hooks", 1)[0]
	post := r.named("post "+strings.TrimPrefix(receiver.URL, "http://"), 1)[0]
	if post.Parent().SpanID() != made.SpanContext().SpanID() || !linked(post, sent.SpanContext()) || !linked(sent, made.SpanContext()) {
		t.Errorf("the post is below %v with the links %v, the batch has %v", post.Parent(), post.Links(), sent.Links())
	}
	if sent.SpanKind() != trace.SpanKindProducer || post.SpanKind() != trace.SpanKindClient {
		t.Errorf("the batch is a %s, and the post a %s", sent.SpanKind(), post.SpanKind())
	}
	want := "00-" + post.SpanContext().TraceID().String() + "-" + post.SpanContext().SpanID().String() + "-01"
	if parents := header.Values("Traceparent"); len(parents) != 1 || parents[0] != want {
		t.Errorf("the receiver got %q, want %q", parents, want)
	}
}

func awaitRow(t *testing.T, db *pgxpool.Pool, query string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var is bool
		if err := db.QueryRow(t.Context(), query).Scan(&is); err != nil {
			t.Fatal(err)
		}
		if is {
			return
		}
	}
	t.Fatalf("waited in vain for %s", query)
}
