package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// caller sends requests to the API of a process, and records to which routes.
type caller struct {
	*story
	url, token string
	asked      map[string]bool
}

// called holds the values of a route's parameters.
type called map[string]string

var inBraces = regexp.MustCompile(`\{(\w+)\}`)

// ask sends a request to a route, such as POST /jobs/{id}/retry, and checks that the response has the status, and
// agrees with the API's description.
func (c *caller) ask(route string, names called, body string, want int) string {
	c.Helper()
	method, target := c.target(route, names)
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	req, res := c.send(ctx, method, target, body)
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		c.Fatalf("%s %s: %d %s, %v; want %d", method, target, res.StatusCode, answer, err, want)
	}
	apitest.Check(c, req, res.StatusCode, res.Header, answer)
	return string(answer)
}

// target returns the method and the path of a route, with the names filled in. Names without a place in the path become
// parameters of the query.
func (c *caller) target(route string, names called) (method, target string) {
	c.Helper()
	method, path, _ := strings.Cut(route, " ")
	c.asked[route] = true
	query := url.Values{}
	for name, value := range names {
		if !strings.Contains(path, "{"+name+"}") {
			query.Set(name, value)
		}
	}
	target = inBraces.ReplaceAllStringFunc(path, func(p string) string { return url.PathEscape(names[strings.Trim(p, "{}")]) })
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return method, target
}

func (c *caller) send(ctx context.Context, method, target, body string) (*http.Request, *http.Response) {
	c.Helper()
	req, err := http.NewRequestWithContext(ctx, method, c.url+target, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if strings.HasSuffix(target, "/batch") {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	res, err := client.Transport.RoundTrip(req) // a stream may take longer than client's timeout
	if err != nil {
		c.Fatalf("%s %s: %v", method, target, err)
	}
	return req, res
}

// enqueue stores a job and returns its id.
func (c *caller) enqueue(body string) called {
	c.Helper()
	var accepted struct{ ID string }
	if err := json.Unmarshal([]byte(c.ask("POST /jobs", nil, body, http.StatusAccepted)), &accepted); err != nil {
		c.Fatal(err)
	}
	return called{"id": accepted.ID}
}

// until waits until the job has a status.
func (c *caller) until(job called, status outbox.Status) {
	c.Helper()
	c.awaitStatus(c.parse(job["id"]), status)
}

// wantIn reports an error unless the answer contains each of the words.
func (c *caller) wantIn(answer string, words ...string) {
	c.Helper()
	for _, word := range words {
		if !strings.Contains(answer, word) {
			c.Errorf("got %s, want %q in it", answer, word)
		}
	}
}

// newCaller starts the real binary, which serves the API and dispatches to a hook.
func newCaller(t *testing.T) *caller {
	s := newStory(t)
	release := make(chan struct{})
	h := s.newHook(func(d delivery, _ int) int {
		switch {
		case strings.Contains(d.body, "gone"):
			return http.StatusGone
		case strings.Contains(d.body, "slow"):
			<-release
		}
		return http.StatusOK
	})
	t.Cleanup(func() { close(release) })
	sinks := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(sinks, []byte("sinks: {lake: {redis: {url: \"redis://127.0.0.1:1/0\"}}}\nroutes: [{topics: [\"*\"], to: lake}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.serve("a", "OUTBOX_WEBHOOKS=mail="+h.url, "OUTBOX_ROLE=dispatch,reap,api,relay", "OUTBOX_RELAY_CONFIG="+sinks, "OUTBOX_API_ADDR=127.0.0.1:0").ready()
	c := &caller{story: s, asked: map[string]bool{}}
	s.await("the API's address in the log", func() bool {
		for _, l := range p.logged("API listens") {
			c.url = "http://" + l.Addr
		}
		return c.url != ""
	})
	c.token = posthaste(t, s.url, nil, "tokens", "create", "ops", "--all-tenants",
		"-c", "jobs.enqueue,jobs.read,jobs.cancel,admin.read,admin.mutate,admin.stream,payload.read")
	return c
}

// A story of each route with the real binary, which also runs the jobs. A new route fails this test until it has a
// story here, too.
func TestEveryRouteOfTheAPI(t *testing.T) {
	c := newCaller(t)
	c.tellOfJobs()
	c.tellOfDeadLetters()
	c.tellOfKeys()
	c.tellOfSchedules()
	c.tellOfOperations()
	c.tellOfSinks()

	text, err := os.ReadFile("../api/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Paths map[string]map[string]struct{}
	}
	if err := json.Unmarshal(text, &spec); err != nil || len(spec.Paths) < 10 {
		t.Fatalf("%d paths, %v: this looks at the wrong place", len(spec.Paths), err)
	}
	for path, methods := range spec.Paths {
		for method := range methods {
			if route := strings.ToUpper(method) + " " + path; !c.asked[route] {
				t.Errorf("%s has no story", route)
			}
		}
	}
}

func (c *caller) tellOfJobs() {
	c.wantIn(c.ask("GET /kinds", nil, "", http.StatusOK), `"kinds":[]`)
	done := c.enqueue(`{"kind":"mail","payload":{"to":"ada"}}`)
	c.wantIn(c.ask("GET /jobs/{id}/changes", done, "", http.StatusOK), `"status":"succeeded"`) // it ends with the job
	c.wantIn(c.ask("GET /jobs/{id}", done, "", http.StatusOK), `"status":"succeeded"`, `"payload":{"to":"ada"}`)
	c.wantIn(c.ask("GET /jobs/{id}/result", done, "", http.StatusOK), `"status":"succeeded"`)
	c.wantIn(c.ask("GET /jobs/{id}/progress", done, "", http.StatusOK), done["id"])
	c.wantIn(c.ask("GET /jobs/{id}/logs", done, "", http.StatusOK), `"lines":`)
	c.wantIn(c.ask("GET /jobs/{id}/steps", done, "", http.StatusOK), `"steps":`)
	c.ask("POST /jobs/{id}/cancel", done, "", http.StatusConflict)
	c.wantIn(c.ask("GET /jobs", called{"kind": "mail", "status": "succeeded"}, "", http.StatusOK), done["id"])

	slow := c.enqueue(`{"kind":"mail","payload":"slow"}`)
	c.until(slow, outbox.Running)
	c.ask("GET /jobs/{id}/result", slow, "", http.StatusConflict)
	c.ask("POST /jobs/{id}/cancel", slow, `{"dryRun":true}`, http.StatusBadRequest) // it has no body
	c.wantIn(c.ask("POST /jobs/{id}/cancel", called{"id": slow["id"], "reason": "too slow"}, "", http.StatusAccepted), `"cancelRequestedAt":`)
	c.wantIn(c.ask("GET /audit", called{"job_id": slow["id"]}, "", http.StatusOK), `"reason":"too slow"`, `"cancel_requested":true`)
	c.until(slow, outbox.Cancelled)

	held := c.enqueue(`{"kind":"mail","hold":true}`)
	c.wantIn(c.ask("GET /jobs/{id}/why", held, "", http.StatusOK), `"code":"held"`, "posthaste jobs release "+held["id"])
	c.wantIn(c.ask("POST /jobs/{id}/release", held, "", http.StatusOK), held["id"])
	c.until(held, outbox.Succeeded)
	c.ask("POST /jobs/{id}/release", held, "", http.StatusConflict)
	later := c.enqueue(`{"kind":"mail","delaySeconds":3600}`)
	c.wantIn(c.ask("POST /jobs/{id}/retry", later, "", http.StatusOK), later["id"]) // at once
	c.until(later, outbox.Succeeded)
	c.ask("GET /jobs/{id}", called{"id": outbox.NewID().String()}, "", http.StatusNotFound)

	one := `{"kind":"mail","hold":true}` + "\n"
	var batch struct{ Jobs []struct{ ID string } }
	if err := json.Unmarshal([]byte(c.ask("POST /jobs/batch", nil, one+one, http.StatusAccepted)), &batch); err != nil || len(batch.Jobs) != 2 {
		c.Fatalf("a batch of two = %+v, %v", batch, err)
	}
	ids := func(i int) string { return `{"ids":["` + batch.Jobs[i].ID + `"]}` }
	c.wantIn(c.ask("POST /jobs/release", nil, ids(0), http.StatusOK), `"done":1`)
	c.wantIn(c.ask("POST /jobs/cancel", nil, ids(1), http.StatusOK), `"done":1`)
	c.until(called{"id": batch.Jobs[0].ID}, outbox.Succeeded)
	c.until(called{"id": batch.Jobs[1].ID}, outbox.Cancelled)
}

// buried returns a new dead letter.
func (c *caller) buried() called {
	c.Helper()
	job := c.enqueue(`{"kind":"mail","payload":"gone"}`)
	c.until(job, outbox.Failed)
	return job
}

func (c *caller) tellOfDeadLetters() {
	one, other, third := c.buried(), c.buried(), c.buried()
	c.wantIn(c.ask("GET /jobs/{id}/attempts", one, "", http.StatusOK), `"http_410"`)
	c.wantIn(c.ask("GET /dead-letters", called{"error_code": "http_410"}, "", http.StatusOK), one["id"], other["id"], third["id"])
	c.wantIn(c.ask("GET /dead-letters/groups", nil, "", http.StatusOK), `"http_410"`)
	c.wantIn(c.ask("POST /dead-letters/{id}/replay", one, `{"payload":"mended"}`, http.StatusOK), one["id"])
	c.until(one, outbox.Succeeded)
	c.wantIn(c.ask("POST /jobs/replay", nil, `{"kind":"mail","since":"2020-01-01T00:00:00Z","dryRun":true}`, http.StatusOK), `"jobs":`, `"oldestAt":`)
	c.ask("POST /jobs/replay", nil, `{"kind":"never.seen","since":"2020-01-01T00:00:00Z"}`, http.StatusConflict)
	c.wantIn(c.ask("POST /jobs/{id}/dismiss", other, "", http.StatusOK), `"status":"dismissed"`)
	c.wantIn(c.ask("POST /jobs/retry", nil, `{"ids":["`+third["id"]+`"]}`, http.StatusOK), `"done":1`)
	c.until(third, outbox.Failed) // again
	c.wantIn(c.ask("POST /jobs/dismiss", nil, `{"filter":{"kind":"mail"},"dryRun":true}`, http.StatusOK), `"done":1`, third["id"])
	c.wantIn(c.ask("POST /jobs/dismiss", nil, `{"filter":{"kind":"mail"}}`, http.StatusOK), `"done":1`)
	c.buried()
	c.wantIn(c.ask("POST /dead-letters/replay", nil, `{"filter":{"kind":"mail"},"dryRun":true}`, http.StatusOK), `"matched":1`, `"done":0`)
	c.wantIn(c.ask("POST /dead-letters/replay", nil, `{"filter":{"kind":"mail"}}`, http.StatusOK), `"done":1`)
	c.await("the dead letter to be one again", func() bool { return c.count(`SELECT count(*) FROM outbox.jobs WHERE status = 'failed'`) == 1 })
	c.tellOfProblems()
	c.tellOfOperationsOnLetters()
	c.wantIn(c.ask("POST /dead-letters/dismiss", nil, `{"filter":{"kind":"mail"}}`, http.StatusOK), `"done":1`)
}

// tellOfOperationsOnLetters replays the one dead letter, which dies again.
func (c *caller) tellOfOperationsOnLetters() {
	var started struct{ ID string }
	answer := c.ask("POST /operations", nil, `{"act":"replay","filter":{"kind":"mail"},"ratePerSecond":10,"reason":"again"}`, http.StatusAccepted)
	if err := json.Unmarshal([]byte(answer), &started); err != nil {
		c.Fatal(err)
	}
	c.wantIn(c.ask("POST /operations/preview", nil, `{"act":"cancel","jobs":{"kind":"mail"}}`, http.StatusOK), `"matched":`, `"asOf":"`)
	op := called{"operation": started.ID}
	c.await("the operation to be done", func() bool {
		return strings.Contains(c.ask("GET /operations/{operation}", op, "", http.StatusOK), `"state":"done"`)
	})
	c.wantIn(c.ask("GET /operations", nil, "", http.StatusOK), started.ID, `"matched":1`, `"done":1`, `"reason":"again"`)
	c.wantIn(c.ask("POST /operations/{operation}/stop", op, "", http.StatusOK), `"state":"done"`) // it is too late
	c.wantIn(c.ask("POST /operations/{operation}/resume", op, "", http.StatusOK), `"state":"done"`)
	c.ask("GET /operations/{operation}", called{"operation": outbox.NewID().String()}, "", http.StatusNotFound)
	c.await("the dead letter to be one again", func() bool { return c.count(`SELECT count(*) FROM outbox.jobs WHERE status = 'failed'`) == 1 })
}

// tellOfProblems must be called while there is a dead letter.
func (c *caller) tellOfProblems() {
	c.wantIn(c.ask("GET /me", nil, "", http.StatusOK), `"name":"ops"`, `"allTenants":true`, `"payload.read"`)
	c.wantIn(c.ask("GET /doctor", nil, "", http.StatusOK), `"question":"schema"`, `"severity":"ok"`)
	c.wantIn(c.ask("GET /overview", nil, "", http.StatusOK), `"queue":"default"`, `"recent":[{"jobs":`)
	c.await("a minute to be measured", func() bool {
		return strings.Contains(c.ask("GET /series", called{"queue": "default"}, "", http.StatusOK), `"measuredSeconds":60,`)
	})
	c.wantIn(c.ask("GET /problems", nil, "", http.StatusOK), `"kind":"dead_letters"`, `"errorCode":"http_410"`, `"severity":"problem"`)
}

func (c *caller) tellOfKeys() {
	key := called{"queue": "default", "key": "a/b"}
	dead := c.enqueue(`{"kind":"mail","payload":"gone","key":"a/b","ordered":true}`)
	c.until(dead, outbox.Failed)
	behind := c.enqueue(`{"kind":"mail","key":"a/b","ordered":true}`)
	c.until(behind, outbox.Blocked)
	c.wantIn(c.ask("GET /keys", nil, "", http.StatusOK), `"key":"a/b"`)
	c.wantIn(c.ask("GET /keys/{queue}/{key}", key, "", http.StatusOK), `"blocked":1`, `"deadLetters":1`)
	c.wantIn(c.ask("POST /keys/{queue}/{key}/unblock", key, "", http.StatusOK), `"retried":1`)
	c.until(dead, outbox.Failed)
	c.ask("POST /jobs/{id}/dismiss", dead, "", http.StatusOK)
	c.until(behind, outbox.Succeeded)
	c.ask("GET /keys/{queue}/{key}", called{"queue": "default", "key": "nobody's"}, "", http.StatusNotFound)
}

func (c *caller) tellOfSchedules() {
	c.exec(`INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('report', '1 hour', 'mail', '{}', now() + interval '1 hour')`)
	name := called{"name": "report"}
	c.wantIn(c.ask("GET /schedules", nil, "", http.StatusOK), `"name":"report"`)
	c.wantIn(c.ask("POST /schedules/{name}/pause", name, "", http.StatusOK), `"paused":true`)
	c.wantIn(c.ask("POST /schedules/{name}/resume", name, "", http.StatusOK), `"paused":false`)
	var fired struct{ ID string }
	if err := json.Unmarshal([]byte(c.ask("POST /schedules/{name}/run", name, "", http.StatusAccepted)), &fired); err != nil {
		c.Fatal(err)
	}
	c.until(called{"id": fired.ID}, outbox.Succeeded)
	c.ask("POST /schedules/{name}/change", name, `{"cron":"@daily"}`, http.StatusConflict) // a program's
	c.wantIn(c.ask("POST /schedules/{name}/delete", name, "", http.StatusOK), `"deleted":true`)
	c.wantIn(c.ask("POST /schedules", nil, `{"name":"report","kind":"mail","everySeconds":3600}`, http.StatusOK), `"nextAt":`)
	c.wantIn(c.ask("POST /schedules/{name}/change", name, `{"cron":"@daily"}`, http.StatusOK), `"nextAt":`)
	c.wantIn(c.ask("POST /schedules/{name}/delete", name, "", http.StatusOK), `"deleted":true`)
	c.ask("POST /schedules/{name}/delete", name, "", http.StatusNotFound)
}

func (c *caller) tellOfOperations() {
	queue := called{"queue": "default"}
	c.wantIn(c.ask("POST /queues/{queue}/pause", queue, "", http.StatusOK), `"paused":true`)
	waits := c.enqueue(`{"kind":"mail"}`)
	c.wantIn(c.ask("GET /queues", nil, "", http.StatusOK), `"pausedSince":`)
	c.wantIn(c.ask("GET /stats", nil, "", http.StatusOK), `"pausedQueues":1`)
	c.wantIn(c.ask("POST /queues/{queue}/limits", queue, `{"maxRunning":2}`, http.StatusOK), `"maxRunning":2`)

	// A stream that is open while the job runs reports it.
	ctx, leave := context.WithTimeout(c.Context(), patience)
	defer leave()
	method, target := c.target("GET /changes", called{"job": waits["id"]})
	_, stream := c.send(ctx, method, target, "")
	defer func() { _ = stream.Body.Close() }()
	c.wantIn(c.ask("POST /queues/{queue}/resume", queue, "", http.StatusOK), `"paused":false`)
	lines := bufio.NewScanner(stream.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), `"status":"succeeded"`) {
	}
	c.wantIn(lines.Text(), waits["id"])

	c.await("the worker in GET /workers", func() bool {
		return strings.Contains(c.ask("GET /workers", nil, "", http.StatusOK), `"present":true`)
	})
	c.wantIn(c.ask("GET /audit", called{"act": "queue.pause"}, "", http.StatusOK), `"actor":"ops"`, `"requestId":`)
}

// No broker listens at the sink's address.
func (c *caller) tellOfSinks() {
	sink := called{"sink": "lake"}
	event := posthaste(c.T, c.story.url, nil, "publish", "order.paid", `{"id":7}`)
	c.await("the sink is away", func() bool { return strings.Contains(c.ask("GET /sinks", nil, "", http.StatusOK), `"state":"away"`) })
	c.wantIn(c.ask("GET /sinks/{sink}", sink, "", http.StatusOK), `"sink":"lake"`, `"code":"relay_unavailable"`)
	c.wantIn(c.ask("GET /bridges", nil, "", http.StatusOK), `"bridges":[]`)
	c.wantIn(c.ask("POST /sinks/{sink}/pause", sink, "", http.StatusOK), `"state":"paused"`)
	c.wantIn(c.ask("POST /sinks/{sink}/resume", sink, "", http.StatusOK), `"sink":"lake"`)
	c.wantIn(c.ask("POST /sinks/{sink}/skip", sink, `{"event":"`+event+`"}`, http.StatusOK), `"sink":"lake"`)
	c.await("no event waits for the sink", func() bool { return strings.Contains(c.ask("GET /sinks/{sink}", sink, "", http.StatusOK), `"lag":0`) })
	c.wantIn(c.ask("GET /sinks/{sink}/held", sink, "", http.StatusOK), `"messages":[]`)
	replay := called{"sink": "lake"}
	var started struct{ Replay struct{ ID string } }
	answer := c.ask("POST /sinks/{sink}/replays", sink, `{"since":"`+time.Now().Add(-time.Hour).Format(time.RFC3339)+`","reason":"a story"}`, http.StatusAccepted)
	if err := json.Unmarshal([]byte(answer), &started); err != nil || started.Replay.ID == "" {
		c.Fatalf("%s: %v", answer, err)
	}
	replay["replay"] = started.Replay.ID
	c.wantIn(c.ask("GET /sinks/{sink}/replays", sink, "", http.StatusOK), started.Replay.ID)
	c.wantIn(c.ask("POST /sinks/{sink}/replays/{replay}/stop", replay, "", http.StatusOK), `"state":"stopped"`)
	c.wantIn(c.ask("GET /audit", called{"act": "sink.skip"}, "", http.StatusOK), event)
}
