package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// event is one of the stream; its id may stand alone.
type event struct{ name, id, data string }

// stream opens the stream of somebody who signs in with the rig's token, as a browser does.
func (r *rig) stream(server *httptest.Server, path string) (*http.Response, <-chan event) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, server.URL+"/"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	for _, c := range r.cookies() {
		req.AddCookie(c)
	}
	res, err := server.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = res.Body.Close() })
	events := make(chan event, 1000)
	go func() {
		defer close(events)
		var e event
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				events <- e
				e = event{}
			}
		}
	}()
	return res, events
}

// A change does not tell when its job was created: with a condition on that, the page asks.
func TestALoneConditionOnATimeIsUnsure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for query, unsure := range map[string]bool{"": false, "?kind=k": false, "?since=2001-01-01T00:00:00Z": true, "?until=1h": true, "?key=x": true} {
		r.get("jobs" + query).is(200)
		if got := strings.Contains(r.get("jobs"+query).Body.String(), `unsure&#34;:true`); got != unsure {
			t.Errorf("jobs%s: unsure is %t, want %t", query, got, unsure)
		}
	}
}

// serve serves the console; its streams end with the test.
func serve(t *testing.T, change ...func(*console.Config)) (*rig, *httptest.Server) {
	t.Helper()
	stopping := make(chan struct{})
	r := newRig(t, append(change, func(c *console.Config) { c.Stopping = stopping })...)
	server := httptest.NewServer(r.handler)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stopping) })
	return r, server
}

// next returns the next event that is a change, or the end of the stream, of which ok is false.
func next(t *testing.T, events <-chan event) (e event, ok bool) {
	t.Helper()
	for patience := time.After(30 * time.Second); ; {
		select {
		case e, ok = <-events:
			if !ok || e.name == "job" || e.name == "resync" {
				return e, ok
			}
		case <-patience:
			t.Fatal("the stream says nothing")
		}
	}
}

// begun waits until a stream has its position, which it returns.
func begun(t *testing.T, events <-chan event) string {
	t.Helper()
	for e := range events {
		if e.id != "" {
			return e.id
		}
	}
	t.Fatal("the stream has ended")
	return ""
}

func TestAStreamHasTheChangesOfItsTenant(t *testing.T) {
	t.Parallel()
	r, server := serve(t)
	res, everybody := r.stream(server, "events")
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("got %s", got)
	}
	_, one := r.as("a").stream(server, "events")
	begun(t, everybody)
	at := begun(t, one)
	foreign := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantB})
	own := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	for range 2 {
		e, _ := next(t, everybody)
		if !strings.Contains(e.data, foreign.String()) && !strings.Contains(e.data, own.String()) {
			t.Errorf("got %+v", e)
		}
	}
	if e, _ := next(t, one); !strings.Contains(e.data, own.String()) {
		t.Errorf("a tenant got %+v", e)
	}
	// A browser that comes back is sent what it has missed.
	_, again := r.as("a").stream(server, "events?after="+at)
	if e, _ := next(t, again); !strings.Contains(e.data, own.String()) {
		t.Errorf("a browser that came back got %+v", e)
	}
}

func TestWhoMayNotReadAStreamGetsNone(t *testing.T) {
	t.Parallel()
	r, server := serve(t)
	for token, want := range map[string]int{"": 401, "+jobs.read": 403, "+admin.stream": 403, "+jobs.read,admin.stream": 200, "a+jobs.read,admin.stream": 200} {
		rig := r
		if rig = r.as(token); token == "" {
			rig.token = ""
		}
		if res, _ := rig.stream(server, "events"); res.StatusCode != want {
			t.Errorf("%q: got %d, want %d", token, res.StatusCode, want)
		}
	}
	if res, _ := r.stream(server, "events?after=x"); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a position of nowhere: got %d", res.StatusCode)
	}
	req := httptest.NewRequestWithContext(t.Context(), "GET", "/events", nil)
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	for _, c := range r.cookies() {
		req.AddCookie(c)
	}
	r.send(req).is(http.StatusForbidden).has("came from elsewhere")
}

// More changes at once than a browser has to read are one event, after which it goes on.
func TestABurstIsOneEvent(t *testing.T) {
	t.Parallel()
	for jobs, counted := range map[int]int{3000: 3000, 5001: 5000} {
		t.Run(strconv.Itoa(jobs), func(t *testing.T) { testBurst(t, jobs, counted) })
	}
}

func testBurst(t *testing.T, jobs, counted int) {
	r, server := serve(t)
	_, events := r.stream(server, "events")
	begun(t, events)
	many := slices.Repeat([]outbox.Request{{Args: outbox.Raw{KindName: "greet", Payload: []byte(`{}`)}}}, jobs)
	if _, err := outbox.EnqueueMany(t.Context(), r.db, many); err != nil {
		t.Fatal(err)
	}
	e, _ := next(t, events)
	var said struct {
		Changes int
		More    bool
		Sample  []struct{ ID, Kind, Status string }
	}
	if err := json.Unmarshal([]byte(e.data), &said); err != nil || e.name != "resync" || e.id == "" {
		t.Errorf("got %+v, want a resync with a position: %v", e, err)
	}
	if said.Changes != counted || said.More != (jobs > counted) || len(said.Sample) != 100 || said.Sample[99].Status != "pending" {
		t.Errorf("it says %d changes (more: %t) with %d of them, want %d of %d with 100", said.Changes, said.More, len(said.Sample), counted, jobs)
	}
	id := r.enqueue("greet", `{}`, outbox.Options{}).String()
	if e, _ := next(t, events); !strings.Contains(e.data, id) {
		t.Errorf("then got %+v", e)
	}
}

// fickle knows tokens until they are revoked.
type fickle struct {
	revoked atomic.Bool
	less    atomic.Bool // its capabilities are fewer
}

func (f *fickle) Authenticate(ctx context.Context, bearer string) (access.Principal, error) {
	if f.revoked.Load() {
		return access.Principal{}, access.ErrUnauthenticated
	}
	p, err := fixed{}.Authenticate(ctx, bearer)
	p.Capabilities[access.AdminStream] = p.Capabilities[access.AdminStream] && !f.less.Load()
	return p, err
}

func TestAStreamEndsWithItsLogin(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fickle){
		"a token that is revoked":      func(f *fickle) { f.revoked.Store(true) },
		"a capability that is revoked": func(f *fickle) { f.less.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			auth := &fickle{}
			r, server := serve(t, func(c *console.Config) { c.Authenticator = auth })
			_, events := r.stream(server, "events")
			begun(t, events)
			end(auth)
			ended := time.Now()
			if e, ok := next(t, events); ok {
				t.Errorf("got %+v, want the end", e)
			}
			if took := time.Since(ended); took > 30*time.Second {
				t.Errorf("it went on for %s", took)
			}
		})
	}
}

func TestALoginCannotTakeAllStreams(t *testing.T) {
	t.Parallel()
	r, server := serve(t)
	for n := range 64 {
		res, events := r.stream(server, "events")
		if begun(t, events); res.StatusCode != 200 {
			t.Fatalf("stream %d: got %d", n, res.StatusCode)
		}
	}
	if res, _ := r.stream(server, "events"); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more: got %d", res.StatusCode)
	}
	if res, _ := r.as("a").stream(server, "events"); res.StatusCode != 200 {
		t.Errorf("another login: got %d", res.StatusCode)
	}
	r.get("jobs").is(200) // streams keep no page from being made
}

func TestRowsByThemselves(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	own, foreign := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA}).String(), r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantB}).String()
	body := r.as("a").get("rows?id=" + own + "," + foreign).is(200).Body.String()
	if !strings.Contains(body, `data-job="`+own+`"`) || strings.Contains(body, foreign) || strings.Contains(body, "<html") {
		t.Errorf("got %s", body)
	}
	r.get("rows?id=x").is(400)
	r.get("rows").is(400)
	r.get("rows?id=" + strings.Repeat(own+",", 200) + own).is(400)
}

// The script writes statuses as the pages do.
func TestTheScriptKnowsTheShapesOfStatuses(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("assets/live.js")
	if err != nil {
		t.Fatal(err)
	}
	got := map[outbox.Status]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t([a-z]+): "(M[^"]*)",$`).FindAllStringSubmatch(string(text), -1) {
		got[outbox.Status(m[1])] = m[2]
	}
	if want := console.Shapes(); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var solid []outbox.Status
	list := regexp.MustCompile(`(?m)^const solid = (\[.*\]);$`).FindStringSubmatch(string(text))
	if list == nil || json.Unmarshal([]byte(list[1]), &solid) != nil {
		t.Fatal("which shapes are filled is not found")
	}
	for s, filled := range console.Solid() {
		if filled != strings.Contains(list[1], `"`+string(s)+`"`) {
			t.Errorf("%s is filled: %t", s, filled)
		}
	}
}
