package client

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// route is how the client asks for one route of the API.
type route struct {
	call   func(context.Context, *Client) error
	body   any // a line of it for a batch
	answer any
}

func calling[A any](body any, answer any, call func(context.Context, *Client) (A, error)) route {
	return route{func(ctx context.Context, c *Client) error { _, err := call(ctx, c); return err }, body, answer}
}

const someID = "01976f0e-7a5c-7d3e-8f4b-0123456789ab"

// onID returns a route whose only parameter is the id in its path.
func onID[A any](answer any, call func(*Client, context.Context, string) (A, error)) route {
	return calling(nil, answer, func(ctx context.Context, c *Client) (A, error) { return call(c, ctx, someID) })
}

// acting returns the route of an act on one job, with a reason.
func acting(call func(*Client, context.Context, string) (Job, error)) route {
	return calling(nil, Job{}, func(ctx context.Context, c *Client) (Job, error) { return call(c, WithReason(ctx, "x"), someID) })
}

// onSinks returns the route of an act on a sink, with a reason.
func onSinks(call func(*Client, context.Context, string) (Sink, error)) route {
	return calling(nil, Sink{}, func(ctx context.Context, c *Client) (Sink, error) { return call(c, WithReason(ctx, "x"), "s") })
}

func onSchedules[A any](answer any, call func(*Client, context.Context, ScheduleName) (A, error)) route {
	return calling(nil, answer, func(ctx context.Context, c *Client) (A, error) { return call(c, ctx, filled[ScheduleName]()) })
}

// of returns a route without parameters.
func of[A any](answer any, call func(*Client, context.Context) (A, error)) route {
	return calling(nil, answer, func(ctx context.Context, c *Client) (A, error) { return call(c, ctx) })
}

// stream returns a route whose answer, of which there is nothing here, is no JSON.
func stream(listen func(context.Context, *Client) error) route {
	return route{call: func(ctx context.Context, c *Client) error {
		if err := listen(ctx, c); err == nil || !strings.Contains(err.Error(), "no event stream") {
			return fmt.Errorf("an answer that is no stream: %w", err)
		}
		return nil
	}}
}

// methods are those of the client by their routes. What the API has and this table
// does not, and the other way round, fails.
var methods = map[string]route{
	"POST /jobs": calling(NewJob{}, Accepted{}, func(ctx context.Context, c *Client) (Accepted, error) { return c.Enqueue(ctx, NewJob{}) }),
	"POST /jobs/batch": calling(nil, batchAnswer{}, func(ctx context.Context, c *Client) ([]Accepted, error) {
		return c.EnqueueBatch(ctx, []NewJob{{}})
	}),
	"GET /jobs": calling(nil, JobPage{}, func(ctx context.Context, c *Client) (JobPage, error) {
		return c.JobPage(ctx, filled[JobFilter](), filled[PageRequest]())
	}),
	"GET /jobs/{id}":              onID(Job{}, (*Client).Job),
	"GET /jobs/{id}/result":       onID(Result{}, (*Client).Result),
	"GET /jobs/{id}/why":          onID(Why{}, (*Client).Why),
	"GET /jobs/{id}/attempts":     onID(attemptsAnswer{}, (*Client).Attempts),
	"POST /jobs/{id}/retry":       acting((*Client).RetryJob),
	"POST /jobs/{id}/dismiss":     acting((*Client).DismissJob),
	"POST /jobs/retry":            calling(Bulk{}, BulkResult{}, func(ctx context.Context, c *Client) (BulkResult, error) { return c.RetryJobs(ctx, Bulk{}) }),
	"POST /jobs/dismiss":          calling(Bulk{}, BulkResult{}, func(ctx context.Context, c *Client) (BulkResult, error) { return c.DismissJobs(ctx, Bulk{}) }),
	"GET /queues":                 calling(nil, Queues{}, func(ctx context.Context, c *Client) (Queues, error) { return c.Queues(ctx, "x") }),
	"POST /queues/{queue}/pause":  onID(QueueState{}, (*Client).PauseQueue),
	"POST /queues/{queue}/resume": onID(QueueState{}, (*Client).ResumeQueue),
	"POST /queues/{queue}/limits": calling(QueueLimits{}, LimitedQueue{}, func(ctx context.Context, c *Client) (LimitedQueue, error) {
		return c.LimitQueue(ctx, someID, QueueLimits{})
	}),
	"GET /sinks":                of(sinksAnswer{}, (*Client).Sinks),
	"GET /bridges":              of(bridgesAnswer{}, (*Client).Bridges),
	"GET /sinks/{sink}":         onID(Sink{}, (*Client).Sink),
	"GET /sinks/{sink}/held":    calling(nil, HeldPage{}, func(ctx context.Context, c *Client) (HeldPage, error) { return c.HeldPage(ctx, "s", 1, "x") }),
	"POST /sinks/{sink}/pause":  onSinks((*Client).PauseSink),
	"POST /sinks/{sink}/resume": onSinks((*Client).ResumeSink),
	"POST /sinks/{sink}/skip": calling(SkippedEvent{}, Sink{}, func(ctx context.Context, c *Client) (Sink, error) {
		return c.SkipEvent(ctx, "s", SkippedEvent{})
	}),
	"POST /jobs/replay": calling(NewHistoryReplay{}, HistoryReplay{}, func(ctx context.Context, c *Client) (HistoryReplay, error) {
		return c.ReplayHistory(ctx, NewHistoryReplay{Tenant: "x", Kind: "x"})
	}),
	"POST /sinks/{sink}/replays": calling(NewReplay{}, ReplayAnswer{}, func(ctx context.Context, c *Client) (ReplayAnswer, error) {
		return c.StartReplay(ctx, "s", NewReplay{Tenant: "x"})
	}),
	"GET /sinks/{sink}/replays": calling(nil, replaysAnswer{}, func(ctx context.Context, c *Client) ([]Replay, error) { return c.Replays(ctx, "s", "x") }),
	"POST /sinks/{sink}/replays/{replay}/stop": calling(nil, Replay{}, func(ctx context.Context, c *Client) (Replay, error) {
		return c.StopReplay(WithReason(ctx, "x"), "s", someID)
	}),
	"POST /operations": calling(NewOperation{}, Operation{}, func(ctx context.Context, c *Client) (Operation, error) {
		return c.StartOperation(ctx, NewOperation{})
	}),
	"POST /operations/preview": calling(NewOperation{}, OperationPreview{}, func(ctx context.Context, c *Client) (OperationPreview, error) {
		return c.PreviewOperation(ctx, NewOperation{})
	}),
	"GET /operations":             calling(nil, OperationPage{}, func(ctx context.Context, c *Client) (OperationPage, error) { return c.OperationPage(ctx, "x", 1, "x") }),
	"GET /operations/{operation}": onID(Operation{}, (*Client).Operation),
	"POST /operations/{operation}/stop": calling(nil, Operation{}, func(ctx context.Context, c *Client) (Operation, error) {
		return c.StopOperation(WithReason(ctx, "x"), someID)
	}),
	"POST /operations/{operation}/resume": calling(nil, Operation{}, func(ctx context.Context, c *Client) (Operation, error) {
		return c.ResumeOperation(WithReason(ctx, "x"), someID)
	}),
	"GET /problems":           calling(nil, Findings{}, func(ctx context.Context, c *Client) (Findings, error) { return c.Problems(ctx, "x") }),
	"GET /overview":           calling(nil, Overview{}, func(ctx context.Context, c *Client) (Overview, error) { return c.Overview(ctx, "x") }),
	"GET /series":             calling(nil, Series{}, func(ctx context.Context, c *Client) (Series, error) { return c.Series(ctx, filled[SeriesFilter]()) }),
	"GET /me":                 of(Me{}, (*Client).Me),
	"GET /doctor":             of(Examination{}, (*Client).Doctor),
	"GET /stats":              calling(nil, Stats{}, func(ctx context.Context, c *Client) (Stats, error) { return c.Stats(ctx, "x") }),
	"GET /workers":            of(workersAnswer{}, (*Client).Workers),
	"POST /jobs/{id}/cancel":  acting((*Client).CancelJob),
	"POST /jobs/{id}/release": acting((*Client).ReleaseJob),
	"POST /jobs/cancel":       calling(Bulk{}, BulkResult{}, func(ctx context.Context, c *Client) (BulkResult, error) { return c.CancelJobs(ctx, Bulk{}) }),
	"POST /jobs/release":      calling(Bulk{}, BulkResult{}, func(ctx context.Context, c *Client) (BulkResult, error) { return c.ReleaseJobs(ctx, Bulk{}) }),
	"GET /jobs/{id}/progress": onID(Progress{}, (*Client).Progress),
	"GET /jobs/{id}/steps":    onID(stepsAnswer{}, (*Client).Steps),
	"GET /jobs/{id}/logs":     calling(nil, Log{}, func(ctx context.Context, c *Client) (Log, error) { return c.Log(ctx, someID, "x") }),
	"GET /dead-letters": calling(nil, DeadLetterPage{}, func(ctx context.Context, c *Client) (DeadLetterPage, error) {
		return c.DeadLetterPage(ctx, filled[DeadLetterFilter](), 1, "x")
	}),
	"GET /dead-letters/groups": calling(nil, groupsAnswer{}, func(ctx context.Context, c *Client) ([]DeadLetterGroup, error) {
		return c.DeadLetterGroups(ctx, filled[DeadLetterFilter](), 1)
	}),
	"POST /dead-letters/replay": calling(ReplayAct{}, LettersActed{}, func(ctx context.Context, c *Client) (LettersActed, error) {
		return c.ReplayDeadLetters(ctx, ReplayAct{})
	}),
	"POST /dead-letters/dismiss": calling(LettersAct{}, LettersActed{}, func(ctx context.Context, c *Client) (LettersActed, error) {
		return c.DismissDeadLetters(ctx, LettersAct{})
	}),
	"POST /dead-letters/{id}/replay": calling(EditedReplay{}, Job{}, func(ctx context.Context, c *Client) (Job, error) {
		return c.ReplayDeadLetter(ctx, someID, EditedReplay{})
	}),
	"GET /keys": calling(nil, KeyPage{}, func(ctx context.Context, c *Client) (KeyPage, error) {
		return c.KeyPage(ctx, filled[KeyFilter](), 1, "x")
	}),
	"GET /keys/{queue}/{key}": calling(nil, Key{}, func(ctx context.Context, c *Client) (Key, error) { return c.Key(ctx, filled[KeyName]()) }),
	"POST /keys/{queue}/{key}/unblock": calling(nil, Unblocked{}, func(ctx context.Context, c *Client) (Unblocked, error) {
		return c.UnblockIf(ctx, filled[KeyName](), "x")
	}),
	"GET /schedules": calling(nil, SchedulePage{}, func(ctx context.Context, c *Client) (SchedulePage, error) { return c.SchedulePage(ctx, "x", 1, "x") }),
	"POST /schedules": calling(newSchedule{}, ScheduleNext{}, func(ctx context.Context, c *Client) (ScheduleNext, error) {
		return c.CreateSchedule(ctx, filled[ScheduleName](), ScheduleFields{})
	}),
	"POST /schedules/{name}/change": calling(ScheduleFields{}, ScheduleNext{}, func(ctx context.Context, c *Client) (ScheduleNext, error) {
		return c.ChangeSchedule(ctx, filled[ScheduleName](), ScheduleFields{})
	}),
	"POST /schedules/{name}/pause":  onSchedules(ScheduleState{}, (*Client).PauseSchedule),
	"POST /schedules/{name}/resume": onSchedules(ScheduleState{}, (*Client).ResumeSchedule),
	"POST /schedules/{name}/run":    onSchedules(Accepted{}, (*Client).RunSchedule),
	"POST /schedules/{name}/delete": onSchedules(DeletedSchedule{}, (*Client).DeleteSchedule),
	"GET /kinds":                    of(kindsAnswer{}, (*Client).Kinds),
	"GET /changes": stream(func(ctx context.Context, c *Client) (err error) {
		for _, err = range c.Changes(ctx, filled[ChangeFilter](), "x") {
			break
		}
		return err
	}),
	"GET /jobs/{id}/changes": stream(func(ctx context.Context, c *Client) (err error) {
		for _, err = range c.JobChanges(ctx, someID) {
			break
		}
		return err
	}),
	"GET /audit": calling(nil, AuditPage{}, func(ctx context.Context, c *Client) (AuditPage, error) {
		return c.AuditPage(ctx, filled[AuditFilter](), 1, "x")
	}),
}

// elsewhere are parameters that the client sends in another way.
var elsewhere = map[string]string{
	"Idempotency-Key":                      "NewJob.IdempotencyKey, in the body",
	"GET /jobs/{id}/changes Last-Event-ID": "when a connection was lost",
}

// document is what we look at of api/openapi.json.
type document struct {
	Paths map[string]map[string]struct {
		Parameters []struct {
			Name, In string
		}
		RequestBody struct {
			Content map[string]struct{ Schema *schema }
		}
		Responses map[string]struct {
			Content map[string]struct{ Schema *schema }
		}
	}
	Components struct{ Schemas map[string]*schema }
}

type schema struct {
	Ref                  string `json:"$ref"`
	Type                 any
	Format               string
	Enum                 []string
	Properties           map[string]*schema
	Items                *schema
	AdditionalProperties any
}

func readDocument(t *testing.T) (d document) {
	t.Helper()
	text, err := os.ReadFile("../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Paths) < 10 {
		t.Fatalf("paths = %d: this test looks at the wrong place", len(d.Paths))
	}
	return d
}

func TestEveryRouteHasAMethodThatAsksForIt(t *testing.T) {
	d := readDocument(t)
	described := map[string]bool{}
	for path, operations := range d.Paths {
		for method, op := range operations {
			name := strings.ToUpper(method) + " " + path
			described[name] = true
			r, known := methods[name]
			if !known {
				t.Errorf("%s has no method", name)
				continue
			}
			sent := recorded(t, r)
			if pattern := regexp.MustCompile("^" + regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "[^/]+") + "$"); sent.Method != strings.ToUpper(method) || !pattern.MatchString(sent.URL.EscapedPath()) {
				t.Errorf("%s: the client asks for %s %s", name, sent.Method, sent.URL.EscapedPath())
			}
			for _, p := range op.Parameters {
				known := p.In == "path" || elsewhere[p.Name] != "" || elsewhere[name+" "+p.Name] != ""
				if !known && !(p.In == "query" && sent.URL.Query().Has(p.Name)) && !(p.In == "header" && sent.Header.Get(p.Name) != "") {
					t.Errorf("%s: nothing sends the %s parameter %s", name, p.In, p.Name)
				}
				delete(sent.query, p.Name)
			}
			for left := range sent.query {
				t.Errorf("%s: the API takes no parameter %s", name, left)
			}
			if content, ok := op.RequestBody.Content["application/json"]; ok {
				d.compare(t, name+" body", content.Schema, reflect.TypeOf(r.body))
			}
			for status, response := range op.Responses {
				if content, ok := response.Content["application/json"]; ok && status[0] == '2' {
					d.compare(t, name+" answer", content.Schema, reflect.TypeOf(r.answer))
				}
			}
		}
	}
	for name := range methods {
		if !described[name] {
			t.Errorf("the API has no %s", name)
		}
	}
}

func TestProblemsAreThoseOfTheDocument(t *testing.T) {
	d := readDocument(t)
	d.compare(t, "Problem", d.Components.Schemas["Problem"], reflect.TypeFor[Problem]())
	source, err := os.ReadFile("problem.go")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, m := range regexp.MustCompile(`Code\s+= "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		ours = append(ours, m[1])
	}
	if theirs := d.Components.Schemas["Problem"].Properties["code"].Enum; !slices.Equal(slices.Sorted(slices.Values(ours)), slices.Sorted(slices.Values(theirs))) {
		t.Errorf("codes = %v, the document has %v", ours, theirs)
	}
}

type sent struct {
	*http.Request
	query url.Values
}

// recorded calls a method and returns the request that it makes.
func recorded(t *testing.T, r route) sent {
	t.Helper()
	got := sent{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = sent{r, r.URL.Query()}
		answer := "{}"
		switch r.Method + r.URL.Path {
		case "POST/jobs":
			answer = `{"id": "x"}`
		case "POST/jobs/batch":
			answer = `{"jobs": [{"id": "x"}]}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	c, err := New(server.URL, Config{HTTP: server.Client(), Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.call(WithReason(t.Context(), "x"), c); err != nil {
		t.Fatal(err)
	}
	return got
}

// filled returns a T with something in every field.
func filled[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem())
	return v
}

func fill(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1e9, 0)))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.CanInt():
		v.SetInt(1)
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	default:
		panic("cannot fill a " + v.Type().String())
	}
}

// compare fails unless the type has a field for every property and no other, and can
// hold what the property may be.
func (d document) compare(t *testing.T, at string, s *schema, typ reflect.Type) {
	t.Helper()
	for typ != nil && typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	if typ == nil {
		t.Errorf("%s: the client has no type for it", at)
		return
	}
	if !fits(s, typ) {
		t.Errorf("%s: a %s cannot be a %v %s", at, typ, s.Type, s.Format)
		return
	}
	switch {
	case s.Items != nil:
		d.compare(t, at+"[]", s.Items, typ.Elem())
	case typ.Kind() == reflect.Struct && typ != reflect.TypeFor[time.Time]():
		fields := fieldsOf(typ)
		for name, property := range s.Properties {
			field, ok := fields[name]
			if !ok {
				t.Errorf("%s: %s has no field for %s", at, typ, name)
				continue
			}
			d.compare(t, at+"."+name, property, field)
		}
		for name := range maps.Keys(fields) {
			if s.Properties[name] == nil {
				t.Errorf("%s: the API has no %s", at, name)
			}
		}
	}
}

func fits(s *schema, typ reflect.Type) bool {
	kind, _ := s.Type.(string)
	if list, ok := s.Type.([]any); ok { // array or null
		kind, _ = list[0].(string)
	}
	switch kind {
	case "": // anything
		return typ == reflect.TypeFor[json.RawMessage]() || typ.Kind() == reflect.Interface
	case "string":
		if s.Format == "date-time" {
			return typ == reflect.TypeFor[time.Time]()
		}
		return typ.Kind() == reflect.String || typ == reflect.TypeFor[[]byte]()
	case "integer":
		return typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64
	case "number":
		return typ.Kind() == reflect.Float64
	case "boolean":
		return typ.Kind() == reflect.Bool
	case "array":
		return typ.Kind() == reflect.Slice
	}
	return typ.Kind() == reflect.Struct && s.Properties != nil || typ.Kind() == reflect.Map && s.AdditionalProperties != nil
}

// fieldsOf returns the fields of a type by their names in JSON.
func fieldsOf(typ reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(typ) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	return fields
}
