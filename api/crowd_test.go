package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// sending is a request whose body has not come in full, though there is room for it.
type sending struct {
	t       *testing.T
	conn    net.Conn
	answers *bufio.Reader
	rest    string
}

// sendHalf begins a request that declares its whole body, and sends half of it when the
// server has made room for it: it asks for the body then.
func (r *rig) sendHalf(server *httptest.Server, path, body string) *sending {
	r.t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	s := &sending{r.t, conn, bufio.NewReader(conn), body[len(body)/2:]}
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n",
		path, r.token, len(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if res, err := http.ReadResponse(s.answers, nil); err != nil || res.StatusCode != http.StatusContinue {
		r.t.Fatalf("the server does not ask for the body: %v, %v", res, err)
	}
	if _, err = io.WriteString(conn, body[:len(body)/2]); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// finish sends the rest, and returns the status of the answer.
func (s *sending) finish() int {
	s.t.Helper()
	if _, err := io.WriteString(s.conn, s.rest); err != nil {
		s.t.Error(err)
	}
	res, err := http.ReadResponse(s.answers, nil)
	if err != nil {
		s.t.Error(err)
		return 0
	}
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode
}

// jobOf returns a job that is some n bytes long.
func jobOf(n int) string {
	return `{"kind":"mail","payload":{"text":"` + strings.Repeat("x", n) + `"}}`
}

// Bodies that are on their way take the memory that there is for them; smaller
// requests beside them are served.
func TestBodiesOnTheirWayHoldUpNobodyWithLess(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.MaxBodyBytes, c.MaxBodies, c.Timeout = 64<<10, 3<<20, time.Hour
		c.BodyTimeout(time.Hour) // the slow ones wait for all the others
	})
	server := r.serve()
	batch := strings.Repeat(jobOf(60<<10)+"\n", 16)
	slow := r.sendHalf(server, "/jobs/batch", batch)
	slowToo := r.as("root").sendHalf(server, "/jobs/batch", batch)

	ask := func(token, path, contentType string, body io.Reader) (int, string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", contentType)
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, res.Header.Get("Retry-After"), string(text)
	}
	full := strings.Repeat(jobOf(60<<10)+"\n", 10)
	for _, c := range []struct {
		what, token, path, body string
		want                    int
		code                    string
	}{
		{"another batch of the caller", "client-a", "/jobs/batch", full, 429, "rate_limited"},
		{"a job of the caller", "client-a", "/jobs", jobOf(100), 202, ""},
		{"another's batch", "client-b", "/jobs/batch", full, 429, "overloaded"},
		{"another's large job", "client-b", "/jobs", jobOf(60 << 10), 202, ""},
		{"another's small batch", "client-b", "/jobs/batch", jobOf(50<<10) + "\n", 202, ""},
	} {
		contentType := "application/json"
		if strings.HasSuffix(c.path, "batch") {
			contentType = "application/x-ndjson"
		}
		for name, body := range map[string]io.Reader{"declared": strings.NewReader(c.body), "not declared": struct{ io.Reader }{strings.NewReader(c.body)}} {
			if name == "not declared" && c.what == "another's small batch" {
				continue // it may be as long as a batch may be
			}
			status, after, text := ask(c.token, c.path, contentType, body)
			if status != c.want || !strings.Contains(text, c.code) || (after != "") != (status == 429) {
				t.Errorf("%s, %s: %d %q %s, want %d %s", c.what, name, status, after, text, c.want, c.code)
			}
		}
	}
	for _, sent := range []*sending{slow, slowToo} {
		if status := sent.finish(); status != 202 {
			t.Errorf("a batch that came slowly: %d", status)
		}
	}
	if status, _, text := ask("client-a", "/jobs/batch", "application/x-ndjson", strings.NewReader(batch)); status != 202 {
		t.Errorf("when there is room again: %d %s", status, text)
	}
}

// stuck is a client that reads nothing of its answer until it is let go.
type stuck struct {
	*httptest.ResponseRecorder
	began chan<- struct{}
	free  <-chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	s.began <- struct{}{}
	<-s.free
	return s.ResponseRecorder.Write(b)
}

// A client that does not read holds no place of another request, and has no more than
// its share of the responses on their way.
func TestSlowReadersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxInFlight, c.MaxQueued = 1, 1 })
	began, free := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	for range 2 { // twice as many as are worked on
		reading.Go(func() {
			req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs", nil)
			req.Header.Set("Authorization", "Bearer client-a")
			r.handler.ServeHTTP(stuck{httptest.NewRecorder(), began, free}, req)
		})
		<-began
	}
	r.as("client-a").get("/jobs").problem(429, "rate_limited")
	for range 3 {
		if res := r.as("client-b").get("/jobs"); res.Code != 200 {
			t.Errorf("another: %d %s", res.Code, res.Body)
		}
	}
	close(free)
	reading.Wait()
	if res := r.as("client-a").get("/jobs"); res.Code != 200 {
		t.Errorf("when they have read: %d %s", res.Code, res.Body)
	}
}

// The body of a request whose answer is being read takes no memory any more.
func TestWhoReadsSlowlyKeepsNoRoomForBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxBodyBytes, c.MaxBodies = 64<<10, 3<<20 })
	batch := strings.Repeat(jobOf(60<<10)+"\n", 16)
	began, free := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/jobs/batch", strings.NewReader(batch))
		req.Header.Set("Authorization", "Bearer client-a")
		req.Header.Set("Content-Type", "application/x-ndjson")
		r.handler.ServeHTTP(stuck{httptest.NewRecorder(), began, free}, req)
	})
	<-began
	r.postBatch(batch).want(202, nil)
	close(free)
	reading.Wait()
}

// Payloads and results, of steps too, that one caller asks for and does not read leave room to others.
func TestUnreadAnswersLeaveRoomToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxBodyBytes, c.MaxBodies = 64<<10, 3<<20 }).as("operator-a")
	id, done := r.reach(outbox.Dead), r.reach(outbox.Succeeded)
	large := `"` + strings.Repeat("x", 600<<10) + `"`
	for _, sql := range []string{`UPDATE outbox.jobs SET payload = $1 WHERE id = $2`, `UPDATE outbox.history SET result = $1 WHERE id = $2`} {
		of := map[bool]string{true: done, false: id}[strings.Contains(sql, "result")]
		if tag, err := r.db.Exec(t.Context(), sql, []byte(large), of); err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %v", sql, tag, err)
		}
	}
	stored := `INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) SELECT $2, n, 1, '0', $1 FROM generate_series(1, 3) AS n`
	if _, err := r.db.Exec(t.Context(), stored, []byte(large[:200<<10]+`"`), id); err != nil {
		t.Fatal(err)
	}
	replaced := `INSERT INTO outbox.audit (actor, act, job_id, tenant_id, before) SELECT 'ada', 'job.replay_edited', id, tenant_id, jsonb_build_object('payload_base64', $1::text) FROM outbox.jobs WHERE id = $2`
	if _, err := r.db.Exec(t.Context(), replaced, large, id); err != nil {
		t.Fatal(err)
	}
	payload, result, steps := "/jobs/"+id, "/jobs/"+done+"/result", "/jobs/"+id+"/steps"
	began, free := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	for _, path := range []string{payload, result} {
		reading.Go(func() {
			req := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
			req.Header.Set("Authorization", "Bearer operator-a")
			r.handler.ServeHTTP(stuck{httptest.NewRecorder(), began, free}, req)
		})
		<-began
	}
	is := func(status int, answers ...response) {
		t.Helper()
		for i, answer := range answers {
			if answer.Code != status {
				t.Errorf("answer %d: status = %d, want %d", i, answer.Code, status)
			}
		}
	}
	acts := "/audit?job_id=" + id
	is(429, r.get(payload), r.get(result), r.get(steps), r.get(acts), r.post("/dead-letters/"+id+"/replay", `{"payload":1}`))
	is(200, r.get("/jobs"), r.as("root").get(payload), r.as("no-payload.read").get(steps), r.as("no-payload.read").get(acts))
	var status string
	if err := r.db.QueryRow(t.Context(), `SELECT status::text FROM outbox.jobs WHERE id = $1`, id).Scan(&status); err != nil || status != "dead" {
		t.Errorf("after a replay that found no room the job is %q, %v", status, err)
	}
	close(free)
	reading.Wait()
	is(200, r.get(payload), r.get(result), r.get(steps), r.get(acts))
}
