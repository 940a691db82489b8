package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

const secret = "t0ken-that-must-not-show"

type everybody struct{}

func (everybody) Authenticate(_ context.Context, bearer string) (access.Principal, error) {
	if bearer != secret {
		return access.Principal{}, access.ErrUnauthenticated
	}
	p := access.Principal{Name: "tester", AllTenants: true, Tenant: outbox.RootTenant, Capabilities: map[access.Capability]bool{}}
	for _, c := range []access.Capability{access.JobsEnqueue, access.JobsRead, access.JobsCancel, access.AdminRead, access.AdminMutate, access.AdminStream, access.PayloadRead} {
		p.Capabilities[c] = true
	}
	return p, nil
}

// served serves the API on a database of its own, behind what a test puts before it, and returns a client of it.
func served(t *testing.T, before func(http.Handler) http.Handler) *client.Client {
	t.Helper()
	return servedBy(t, client.Config{Token: secret}, before)
}

func servedBy(t *testing.T, config client.Config, before func(http.Handler) http.Handler) *client.Client {
	t.Helper()
	db := pgtest.New(t)
	handler, err := api.New(api.Config{Pool: db, Authenticator: everybody{}, Producer: outbox.NewProducer(db, outbox.NotifyOff)})
	if err != nil {
		t.Fatal(err)
	}
	handler = apitest.Checked(t, handler)
	if before != nil {
		handler = before(handler)
	}
	return to(t, handler, config)
}

func to(t *testing.T, handler http.Handler, config client.Config) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	config.HTTP = server.Client()
	c, err := client.New(server.URL+"/", config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func problem(t *testing.T, err error) *client.Problem {
	t.Helper()
	p, ok := errors.AsType[*client.Problem](err)
	if !ok {
		t.Fatalf("got %v, want a problem", err)
	}
	return p
}

func TestALifeOfJobs(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), served(t, nil)
	first, err := c.Enqueue(ctx, client.NewJob{Kind: "mail", Payload: map[string]int{"n": 1}, Headers: map[string]string{"user": "7"}})
	if err != nil || first.Status != "pending" {
		t.Fatalf("got %+v, %v", first, err)
	}
	batch, err := c.EnqueueBatch(ctx, []client.NewJob{{Kind: "bill", Payload: json.RawMessage(`[1, 2]`)}, {Kind: "bill", Queue: "a/b"}})
	if err != nil || len(batch) != 2 {
		t.Fatalf("got %+v, %v", batch, err)
	}
	job, err := c.Job(ctx, first.ID)
	if err != nil || job.Kind != "mail" || string(job.Payload) != `{"n":1}` || job.Internals == nil || job.Internals.MaxAttempts != 25 ||
		!strings.Contains(string(job.Internals.Headers), `"user"`) || job.CreatedAt.IsZero() || !job.FinishedAt.IsZero() {
		t.Errorf("got %+v, %v", job, err)
	}
	if job, err = c.Job(ctx, batch[0].ID); err != nil || string(job.Payload) != `[1,2]` {
		t.Errorf("got %+v, %v", job, err)
	}
	if _, err := c.Result(ctx, first.ID); problem(t, err).Code != client.CodeJobNotFinished || problem(t, err).RetryAfter != time.Second {
		t.Errorf("got %+v", err)
	}
	if attempts, err := c.Attempts(ctx, first.ID); err != nil || len(attempts) != 0 {
		t.Errorf("got %v, %v", attempts, err)
	}
	if job, err := c.RetryJob(ctx, first.ID); err != nil || job.ID != first.ID {
		t.Errorf("got %+v, %v", job, err)
	}
	_, err = c.DismissJob(client.WithRequestID(ctx, "mine-1"), first.ID)
	if p := problem(t, err); p.Code != client.CodeJobStatusConflict || p.Status != 409 || p.RequestID != "mine-1" || !strings.Contains(err.Error(), "request mine-1") {
		t.Errorf("got %v", err)
	}
	if r, err := c.RetryJobs(ctx, client.Bulk{IDs: []string{first.ID, outbox.NewID().String()}}); err != nil || r.Done != 1 || r.Refused != 1 || r.Jobs[1].Code != client.CodeJobNotFound {
		t.Errorf("got %+v, %v", r, err)
	}
	if r, err := c.DismissJobs(ctx, client.Bulk{Filter: &client.JobFilter{Kind: "mail"}, DryRun: true}); err != nil || r.Done != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if state, err := c.PauseQueue(ctx, "a/b"); err != nil || state.Queue != "a/b" || !state.Paused {
		t.Errorf("got %+v, %v", state, err)
	}
	if queues, err := c.Queues(ctx, ""); err != nil || len(queues.Queues) != 2 || queues.Queues[0].Queue != "a/b" || queues.Queues[0].PausedSince.IsZero() || queues.Queues[1].Jobs["pending"] != 2 {
		t.Errorf("got %+v, %v", queues, err)
	}
	if limits, err := c.LimitQueue(ctx, "a/b", client.QueueLimits{MaxRunning: new(3), Rate: &client.Rate{Starts: 10, IntervalSeconds: 0.5}}); err != nil || limits.MaxRunning != 3 || *limits.Rate != (client.Rate{Starts: 10, IntervalSeconds: 0.5}) {
		t.Errorf("got %+v, %v", limits, err)
	}
	if limits, err := c.LimitQueue(ctx, "a/b", client.QueueLimits{MaxRunning: new(0)}); err != nil || limits.Queue != "a/b" || limits.MaxRunning != 0 || limits.Rate == nil {
		t.Errorf("got %+v, %v", limits, err)
	}
	if state, err := c.ResumeQueue(ctx, "a/b"); err != nil || state.Paused {
		t.Errorf("got %+v, %v", state, err)
	}
	if stats, err := c.Stats(ctx, ""); err != nil || stats.Open != 3 {
		t.Errorf("got %+v, %v", stats, err)
	}
}

func TestPagesFollowOneAnother(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), served(t, nil)
	many := make([]client.NewJob, 450)
	for i := range many {
		many[i].Kind = "mail"
	}
	if _, err := c.EnqueueBatch(ctx, many); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Enqueue(ctx, client.NewJob{Kind: "other"}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for job, err := range c.Jobs(ctx, client.JobFilter{Kind: "mail", Status: []string{"pending", "running"}, CreatedSince: time.Now().Add(-time.Hour)}) {
		if err != nil {
			t.Fatal(err)
		}
		seen[job.ID] = true
	}
	if len(seen) != 450 {
		t.Errorf("got %d jobs, want 450", len(seen))
	}
	for _, err := range c.Jobs(ctx, client.JobFilter{Status: []string{"odd"}}) {
		if p := problem(t, err); p.Code != client.CodeInvalidInput || len(p.Errors) == 0 || p.Errors[0].Parameter == "" {
			t.Errorf("got %v", err)
		}
	}
	page, err := c.JobPage(ctx, client.JobFilter{}, client.PageRequest{Limit: 3, Offset: 1})
	if err != nil || len(page.Jobs) != 3 || page.Next == "" || page.Jobs[0].Kind != "mail" {
		t.Errorf("got %+v, %v", page, err)
	}
}

func TestProblemsNameTheirPlaces(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), served(t, nil)
	_, err := c.Enqueue(ctx, client.NewJob{Kind: "no spaces"})
	if p := problem(t, err); p.Code != client.CodeInvalidInput || len(p.Errors) != 1 || p.Errors[0].Pointer != "#/kind" || !strings.Contains(err.Error(), "#/kind is") {
		t.Errorf("got %v", err)
	}
	_, err = c.EnqueueBatch(ctx, []client.NewJob{{Kind: "a"}, {Kind: ""}})
	if p := problem(t, err); len(p.Errors) != 1 || p.Errors[0].Line != 2 {
		t.Errorf("got %v", err)
	}
	if _, err := c.RetryJob(ctx, ""); err == nil || !strings.Contains(err.Error(), "is no job's id") {
		t.Errorf("got %v", err)
	}
	for _, id := range []string{".", ".."} {
		_, err := c.RetryJob(ctx, id)
		if p := problem(t, err); p.Code != client.CodeInvalidInput || len(p.Errors) != 1 || p.Errors[0].Parameter != "id" {
			t.Errorf("%q: got %v", id, err)
		}
	}
	if _, err := c.Enqueue(ctx, client.NewJob{Kind: "a", Payload: make(chan int)}); err == nil {
		t.Error("a payload that is no JSON was taken")
	}
}

// The token is in one header and nowhere else, whatever goes wrong.
func TestTheTokenIsNotInErrors(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"odd":     func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	} {
		c := to(t, handler, client.Config{Token: secret, Attempts: 1})
		if _, err := c.Stats(t.Context(), ""); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := client.New("http://user:"+secret+"@host:port", client.Config{}); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("got %v", err)
	}
}

// failing answers the first requests in its own way, and has the API answer the rest.
func failing(times int32, asked *atomic.Int32, fail http.HandlerFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) <= times {
				fail(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func answer(status int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
	}
}

func cutOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestOnlyWhatIsSafeIsRepeated(t *testing.T) {
	t.Parallel()
	look := func(ctx context.Context, c *client.Client) error { _, err := c.Stats(ctx, ""); return err }
	enqueue := func(ctx context.Context, c *client.Client) error {
		_, err := c.Enqueue(ctx, client.NewJob{Kind: "mail"})
		return err
	}
	keyed := func(ctx context.Context, c *client.Client) error {
		_, err := c.Enqueue(ctx, client.NewJob{Kind: "mail", IdempotencyKey: "k"})
		return err
	}
	halfKeyed := func(ctx context.Context, c *client.Client) error {
		_, err := c.EnqueueBatch(ctx, []client.NewJob{{Kind: "mail", IdempotencyKey: "k"}, {Kind: "mail"}})
		return err
	}
	retry := func(ctx context.Context, c *client.Client) error {
		_, err := c.RetryJobs(ctx, client.Bulk{Filter: &client.JobFilter{Kind: "x"}})
		return err
	}
	for _, test := range []struct {
		name  string
		call  func(context.Context, *client.Client) error
		fail  http.HandlerFunc
		asked int32
	}{
		{"a look that was cut off", look, cutOff, 2},
		{"a look that was unavailable", look, answer(503), 2},
		{"a look that was refused", look, answer(403), 1},
		{"a look that broke the server", look, answer(500), 1},
		{"a keyed job that was cut off", keyed, cutOff, 2},
		{"a keyed job that timed out", keyed, answer(504), 2},
		{"a keyed batch but for one job", halfKeyed, cutOff, 1},
		{"a job that was cut off", enqueue, cutOff, 1},
		{"a job that was unavailable", enqueue, answer(503, "Retry-After", "1"), 1},
		{"a job that was turned away", enqueue, answer(429), 2},
		{"an act that was cut off", retry, cutOff, 1},
		{"an act that was turned away", retry, answer(429), 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			err := test.call(t.Context(), served(t, failing(1, &asked, test.fail)))
			if asked.Load() != test.asked || (err == nil) != (test.asked == 2) {
				t.Errorf("asked %d times, got %v, want %d times", asked.Load(), err, test.asked)
			}
		})
	}
}

// The answer of the first attempt is lost after the commit: the second one gets the
// same, and there is one job.
func TestAKeyedJobWhoseAnswerIsLostIsStoredOnce(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := served(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	if _, err := c.Enqueue(t.Context(), client.NewJob{Kind: "mail", IdempotencyKey: "k"}); err != nil {
		t.Fatal(err)
	}
	if page, err := c.JobPage(t.Context(), client.JobFilter{}, client.PageRequest{}); err != nil || len(page.Jobs) != 1 || asked.Load() != 3 {
		t.Errorf("got %d jobs after %d requests, %v", len(page.Jobs), asked.Load(), err)
	}
}

// The body of a 101 is the connection itself, which no context closes.
func TestAnUpgradeIsAProblem(t *testing.T) {
	t.Parallel()
	c := to(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // until the other side hangs up
		conn.Close()
	}), client.Config{})
	_, err := c.Stats(t.Context(), "")
	if p := problem(t, err); p.Status != http.StatusSwitchingProtocols {
		t.Errorf("got %v, want a problem with the status 101", err)
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	began := time.Now()
	c := served(t, failing(1, &asked, answer(503, "Retry-After", "1")))
	if _, err := c.Stats(t.Context(), ""); err != nil || time.Since(began) < time.Second {
		t.Errorf("got %v after %s, want an answer after a second", err, time.Since(began))
	}
	// But not for longer than MaxWait, nor than the context.
	asked.Store(0)
	_, err := to(t, failing(9, &asked, answer(503, "Retry-After", "600"))(nil), client.Config{Attempts: 2, MaxWait: time.Millisecond}).Stats(t.Context(), "")
	if p := problem(t, err); p.RetryAfter != 10*time.Minute || asked.Load() != 2 {
		t.Errorf("asked %d times, got %v, want two attempts", asked.Load(), err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	began = time.Now()
	asked.Store(0)
	_, err = to(t, failing(9, &asked, answer(503, "Retry-After", "25"))(nil), client.Config{}).Stats(ctx, "")
	if took := time.Since(began); err == nil || took > 20*time.Second {
		t.Errorf("got %v after %s, want it to end with its context", err, took)
	}
}

// An attempt without an answer may have stored the job: that later ones did nothing does not change that.
func TestAnEarlierAttemptLeavesItOpen(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := served(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"code":"unavailable","status":503,"outcome":"none"}`)
		})
	})
	_, err := c.Enqueue(t.Context(), client.NewJob{Kind: "mail", IdempotencyKey: "k"})
	p, ok := errors.AsType[*client.Problem](err)
	if !ok || p.Outcome != client.OutcomeUnknown || asked.Load() < 2 {
		t.Errorf("after %d attempts: %+v, want a problem whose outcome is unknown", asked.Load(), err)
	}
	_, err = c.Stats(t.Context(), "")
	if p, ok = errors.AsType[*client.Problem](err); !ok || p.Outcome != client.OutcomeNone {
		t.Errorf("a look: %+v, want a problem whose outcome is none", err)
	}
}
