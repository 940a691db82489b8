package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// described is every route of openapi.json with what it takes.
type described struct {
	method, path string
	needs, also  access.Capability // also is "" for most
	everything   bool
	body         string // a content type, "" for none
}

func everyRoute(t *testing.T) []described {
	t.Helper()
	text, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Paths map[string]map[string]struct {
			Description string
			Security    []map[string][]string
			RequestBody *struct{ Content map[string]any }
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	var routes []described
	for path, methods := range spec.Paths {
		for method, op := range methods {
			d := described{method: strings.ToUpper(method), path: path, everything: strings.Contains(op.Description, "of all tenants")}
			parts := strings.Split(op.Description, "`")
			if len(parts) != 3 && len(parts) != 5 || len(op.Security) != 1 {
				t.Fatalf("%s %s names no capability or asks for no token", method, path)
			}
			d.needs = access.Capability(parts[1])
			if len(parts) == 5 {
				d.also = access.Capability(parts[3])
			}
			if op.RequestBody != nil {
				for contentType := range op.RequestBody.Content {
					d.body = contentType
				}
			}
			routes = append(routes, d)
		}
	}
	if len(routes) < 14 {
		t.Fatalf("routes = %d: this test looks at the wrong place", len(routes))
	}
	return routes
}

func (d described) target(id string) string {
	return strings.NewReplacer("{id}", id, "{queue}", "default", "{key}", "k", "{name}", "report", "{sink}", "orders", "{replay}", "01976f0e-7a5c-7d3e-8f4b-0123456789ab").Replace(d.path)
}

// do sends the route a request with a body, if it takes one.
func (d described) do(r *rig, id, body string) response {
	r.t.Helper()
	if d.body == "" {
		return r.do(d.method, d.target(id), "")
	}
	return r.do(d.method, d.target(id), body, "Content-Type", d.body)
}

// Generated from the description, so that a new route is covered by itself.
func TestEveryRouteAsksWhoAndMayThey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.reach(outbox.Dead)
	for _, d := range everyRoute(t) {
		t.Run(d.method+" "+d.path, func(t *testing.T) {
			for name, answer := range map[string]response{
				"without a token":     d.do(r.as(""), id, "{}"),
				"with an unknown one": d.do(r.as("nobody"), id, "{}"),
				"with two": r.send(func() *http.Request {
					req := httptest.NewRequestWithContext(t.Context(), d.method, d.target(id), nil)
					req.Header["Authorization"] = []string{"Bearer root", "Bearer root"}
					return req
				}()),
				"with another scheme": r.send(func() *http.Request {
					req := httptest.NewRequestWithContext(t.Context(), d.method, d.target(id), nil)
					req.Header.Set("Authorization", "Basic cm9vdDo=")
					return req
				}()),
			} {
				answer.problem(401, "unauthenticated")
				if got := answer.Header().Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") {
					t.Errorf("%s: WWW-Authenticate = %q", name, got)
				}
			}
			d.do(r.as("no-"+string(d.needs)), id, "{}").problem(403, "forbidden")
			if d.also != "" {
				d.do(r.as("no-"+string(d.also)), id, "{}").problem(403, "forbidden")
			}
			d.do(r.as("powerless"), id, "{}").problem(403, "forbidden")
			d.do(r.as("homeless"), id, "{}").problem(403, "forbidden")
			if d.everything {
				d.do(r.as("operator-a"), id, "{}").problem(403, "forbidden")
			}
		})
	}
	if j := r.getJob(id); j.Status != "dead" {
		t.Errorf("the job became %s", j.Status)
	}
}

// A job that another tenant has answers like one that nobody has, byte for byte, and
// stays as it is.
func TestAForeignJobAnswersLikeAnAbsentOne(t *testing.T) {
	t.Parallel()
	absent, present := newRig(t), newRig(t)
	for _, status := range []outbox.Status{outbox.Dead, outbox.Succeeded} {
		id := present.reach(status)
		before := present.as("root").get("/jobs/"+id).want(200, nil).Body.String()
		for _, d := range everyRoute(t) {
			if !strings.Contains(d.path, "{id}") {
				continue
			}
			foreign, none := d.do(present.as("operator-b"), id, "{}"), d.do(absent.as("operator-b"), id, "{}")
			foreign.problem(404, "job_not_found")
			if foreign.Body.String() != none.Body.String() || headerText(foreign) != headerText(none) {
				t.Errorf("%s %s of a foreign job:\n%s%s\nof none:\n%s%s", d.method, d.path, headerText(foreign), foreign.Body, headerText(none), none.Body)
			}
		}
		for _, act := range []string{"/jobs/retry", "/jobs/dismiss", "/jobs/cancel", "/jobs/release"} {
			for _, body := range []string{`{"ids":["` + id + `"]}`, `{"ids":["` + id + `"],"dryRun":true}`, `{"filter":{"status":["dead","succeeded"]}}`} {
				foreign, none := present.as("operator-b").post(act, body), absent.as("operator-b").post(act, body)
				if foreign.want(200, nil).Body.String() != none.Body.String() {
					t.Errorf("POST %s %s: foreign %s, none %s", act, body, foreign.Body, none.Body)
				}
			}
		}
		for _, act := range []string{"/dead-letters/replay", "/dead-letters/dismiss"} {
			for _, body := range []string{`{"filter":{"kind":"mail"}}`, `{"filter":{"kind":"mail"},"dryRun":true}`} {
				foreign, none := present.as("operator-b").post(act, body), absent.as("operator-b").post(act, body)
				if clock.ReplaceAllString(foreign.want(200, nil).Body.String(), "") != clock.ReplaceAllString(none.Body.String(), "") {
					t.Errorf("POST %s %s: foreign %s, none %s", act, body, foreign.Body, none.Body)
				}
			}
		}
		for _, target := range []string{"/jobs", "/jobs?status=dead,succeeded", "/dead-letters", "/dead-letters/groups", "/audit"} {
			if body := present.as("operator-b").get(target).want(200, nil).Body.String(); strings.Contains(body, id) {
				t.Errorf("GET %s shows a foreign job: %s", target, body)
			}
		}
		for _, target := range []string{"/stats", "/queues"} {
			if body := present.as("operator-b").get(target).want(200, nil).Body.String(); strings.Contains(body, `"dead"`) {
				t.Errorf("GET %s counts foreign jobs: %s", target, body)
			}
		}
		if after := present.as("root").get("/jobs/"+id).want(200, nil).Body.String(); after != before {
			t.Errorf("the foreign job became %s, want %s", after, before)
		}
	}
}

// clock is when a dry run counted, which no two do at once.
var clock = regexp.MustCompile(`"failedUntil":"[^"]+"`)

func headerText(r response) string {
	var text strings.Builder
	_ = r.Header().Write(&text)
	return text.String()
}

// Every body that no route can take, at every route that takes one.
func TestBadBodiesAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	for _, d := range everyRoute(t) {
		if d.body == "" {
			continue
		}
		t.Run(d.method+" "+d.path, func(t *testing.T) {
			id := outbox.NewID().String()
			for name, tt := range map[string]struct {
				body   string
				code   string
				status int
				place  string // "" is not looked at
			}{
				"nothing":          {"", "malformed_request", 400, ""},
				"a field too many": {`{"tenant":"x"}`, "malformed_request", 400, "#/tenant"},
				"another case":     {`{"KIND":"x","IDS":[],"Filter":{}}`, "malformed_request", 400, ""},
				"a duplicate":      {`{"kind":"a","ids":["x"],"\u006bind":"b","ids":[]}`, "malformed_request", 400, ""},
				"trailing data":    {`{} {}`, "malformed_request", 400, "#"},
				"a NUL":            {`{"\u0000":1}`, "malformed_request", 400, "#"},
				"a lone surrogate": {`{"\ud800":1}`, "malformed_request", 400, "#"},
				"half a pair":      {`{"\ud800\u0041":1}`, "malformed_request", 400, "#"},
				"invalid UTF-8":    {"{\"\xff\":1}", "malformed_request", 400, "#"},
				"too large":        {strings.Repeat(" ", 17<<20), "body_too_large", 413, ""},
			} {
				answer := d.do(r, id, tt.body)
				p := answer.problem(tt.status, tt.code)
				if tt.place != "" && (len(p.Errors) != 1 || p.Errors[0].Pointer != tt.place) {
					t.Errorf("%s: errors = %+v, want one at %s", name, p.Errors, tt.place)
				}
			}
			for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "application/json;", ""} {
				answer := r.do(d.method, d.target(id), "{}", "Content-Type", contentType)
				if contentType == "application/json;" && d.body == "application/json" {
					continue // that is how it may be written
				}
				answer.problem(415, "unsupported_media_type")
			}
		})
	}
}

func TestBadParametersAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	id := outbox.NewID().String()
	for _, d := range everyRoute(t) {
		if strings.Contains(d.path, "{id}") {
			p := d.do(r, "not-an-id", "{}").problem(422, "invalid_input")
			if len(p.Errors) == 0 || p.Errors[0].Parameter != "id" {
				t.Errorf("%s %s: errors = %+v, want one of id", d.method, d.path, p.Errors)
			}
		}
		for query, status := range map[string]int{"a=1&a=2": 400, "a=%00": 400, "%00=a": 400, "a=%ff": 400, "a=%zz": 400, "a;b=1": 400} {
			answer := r.do(d.method, d.target(id)+"?"+query, "")
			answer.problem(status, "malformed_request")
		}
		if d.method == "GET" {
			r.get(d.target(id)+"?unknown=1").problem(422, "invalid_input")
		}
	}
	r.do("GET", "/jobs/%00", "").problem(400, "malformed_request")
	r.get("/queues/%00").problem(404, "route_not_found")
}

func TestPathsAndMethodsThatAreNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.get("/nothing").problem(404, "route_not_found")
	r.get("/jobs/").problem(404, "route_not_found")
	r.get("//jobs").problem(404, "route_not_found")
	r.get("/jobs/x/../y").problem(404, "route_not_found")
	answer := r.do("DELETE", "/jobs", "")
	answer.problem(405, "method_not_allowed")
	if got := answer.Header().Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("Allow = %q", got)
	}
}
