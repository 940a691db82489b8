// With this, recover returns nil for panic(nil): programs that are older than Go 1.21
// may ask for it.
//
//go:debug panicnil=1
package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// asked is an authenticator that answers as the test says.
type asked func(context.Context, string) (access.Principal, error)

func (f asked) Authenticate(ctx context.Context, bearer string) (access.Principal, error) {
	return f(ctx, bearer)
}

// The database does not answer: the places are taken, the queue is full, and all
// others are refused at once.
func TestOverloadIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxInFlight, c.MaxQueued = 2, 1 })
	release := r.lock("outbox.jobs")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer release()
	for range 2 {
		wg.Go(func() { r.get("/jobs") })
	}
	r.waitFor(2, "statements that wait for the lock", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	var refused atomic.Int64
	var rest sync.WaitGroup
	begun := time.Now()
	for range 20 {
		rest.Go(func() {
			if answer := r.get("/jobs"); answer.Code == http.StatusTooManyRequests && answer.Header().Get("Retry-After") == "1" {
				refused.Add(1)
			}
		})
	}
	rest.Wait()
	if got := refused.Load(); got != 20 {
		t.Errorf("refused = %d, want all 20", got)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// lock has every statement on a table wait until release is called.
func (r *rig) lock(table string) (release func()) {
	r.t.Helper()
	tx, err := r.db.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := tx.Exec(r.t.Context(), `LOCK TABLE `+table); err != nil {
		r.t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.WithoutCancel(r.t.Context())) }
}

// waitFor waits until the database counts n.
func (r *rig) waitFor(n int, what, query string) {
	r.t.Helper()
	got := -1
	for range 1000 {
		if err := r.db.QueryRow(r.t.Context(), query).Scan(&got); err != nil {
			r.t.Fatal(err)
		}
		if got == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("%d %s after 10 s, want %d", got, what, n)
}

// Bearers that nobody has seen wait for the database's look at them. Meanwhile they hold
// no place that one who is known could be worked for in.
func TestWhoIsBeingLookedUpHoldsNoPlace(t *testing.T) {
	t.Parallel()
	look, began := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(c *api.Config) {
		known := c.Authenticator
		c.MaxInFlight, c.MaxQueued = 1, 1
		c.Authenticator = asked(func(ctx context.Context, bearer string) (access.Principal, error) {
			if bearer == "stranger" {
				began <- struct{}{}
				<-look
			}
			return known.Authenticate(ctx, bearer)
		})
	})
	var strangers sync.WaitGroup
	for range 3 {
		strangers.Go(func() { r.as("stranger").get("/jobs").problem(401, "unauthenticated") })
		<-began
	}
	r.get("/jobs").want(200, nil)
	close(look)
	strangers.Wait()
}

func TestAPrincipalMayOnlyAskSoOften(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.RequestsLimit = 0.01 })
	r.get("/jobs").want(200, nil)
	answer := r.get("/jobs")
	answer.problem(429, "rate_limited")
	if after := answer.Header().Get("Retry-After"); after != "100" && after != "99" {
		t.Errorf("Retry-After = %q, want 100", after)
	}
	r.as("client-b").get("/jobs").want(200, nil)
	r.as("").get("/jobs").problem(401, "unauthenticated")
}

func TestWhatTakesTooLongIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Timeout = 300 * time.Millisecond })
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	r.get("/jobs").problem(504, "timeout")
	r.post("/jobs", `{"kind":"mail"}`).problem(504, "timeout")
}

func TestADatabaseThatIsAwayIsUnavailable(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r := newRig(t, func(c *api.Config) { c.Pool, c.Producer = pool, outbox.NewProducer(pool, outbox.NotifyOff) })
	r.post("/jobs", `{"kind":"not acceptable"}`).problem(422, "invalid_input") // before it joins a group, or asks
	for _, answer := range []response{r.get("/jobs"), r.post("/jobs", `{"kind":"mail"}`), r.as("root").get("/stats")} {
		answer.problem(503, "unavailable")
		if answer.Header().Get("Retry-After") == "" || strings.Contains(answer.Body.String(), "127.0.0.1") {
			t.Errorf("answer = %v %s", answer.Header(), answer.Body)
		}
	}
}

func TestFaultsOfTheServerAreNotShown(t *testing.T) {
	t.Parallel()
	var ask func() error
	r := newRig(t, func(c *api.Config) {
		c.Authenticator = asked(func(context.Context, string) (access.Principal, error) { return access.Principal{}, ask() })
	})
	for _, ask = range []func() error{
		func() error { return errors.New("s3cret") },
		func() error { panic("s3cret") },
		func() error { panic(nil) },
	} {
		answer := r.get("/jobs")
		answer.problem(500, "internal_error")
		if strings.Contains(answer.Body.String(), "s3cret") {
			t.Errorf("shown: %s", answer.Body)
		}
	}
}

func TestRequestIDsComeBackIfTheyAreSafe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, taken := range map[string]bool{"a-B_c.1:/=+": true, "": false, "a b": false, "ü": false, strings.Repeat("x", 129): false, "<script>": false} {
		answer := r.do("GET", "/nothing", "", "X-Request-Id", id)
		got := answer.Header().Get("X-Request-Id")
		if (got == id) != taken || got == "" {
			t.Errorf("X-Request-Id %q came back as %q", id, got)
		}
	}
}

// A browser must not lend its user's machine to a page from elsewhere, under
// whatever name that finds the way here.
func TestOnlyThisMachineMayBeAnonymous(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Authenticator, c.AnonymousLoopback = nil, true })
	for name, tt := range map[string]struct {
		from, host string
		headers    []string
		want       int
	}{
		"this machine":              {"127.0.0.1:5", "localhost:8080", nil, 200},
		"by IPv6":                   {"[::1]:5", "[::1]:8080", nil, 200},
		"mapped":                    {"[::ffff:127.0.0.1]:5", "127.0.0.1", nil, 200},
		"our own page":              {"127.0.0.1:5", "localhost:8080", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8080"}, 200},
		"another machine":           {"192.0.2.1:5", "localhost:8080", nil, 401},
		"a name that leads here":    {"127.0.0.1:5", "evil.example:8080", nil, 401},
		"another site's page":       {"127.0.0.1:5", "localhost:8080", []string{"Sec-Fetch-Site", "cross-site"}, 401},
		"another port's page":       {"127.0.0.1:5", "localhost:8080", []string{"Origin", "http://localhost:9999"}, 401},
		"a proxy on this machine":   {"127.0.0.1:5", "localhost:8080", []string{"X-Forwarded-For", "192.0.2.1"}, 401},
		"a token that nobody knows": {"127.0.0.1:5", "localhost:8080", []string{"Authorization", "Bearer x"}, 401},
		"an address that is none":   {"pipe", "localhost:8080", nil, 401},
	} {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/jobs", nil)
		req.RemoteAddr, req.Host = tt.from, tt.host
		for i := 0; i < len(tt.headers); i += 2 {
			req.Header.Set(tt.headers[i], tt.headers[i+1])
		}
		if answer := r.send(req); answer.Code != tt.want {
			t.Errorf("%s: %d %s, want %d", name, answer.Code, answer.Body, tt.want)
		}
	}
}

func TestMistakesInTheConfigurationAreReported(t *testing.T) {
	t.Parallel()
	_, err := api.New(api.Config{MaxInFlight: -1, Timeout: -1})
	for _, word := range []string{"Pool", "Authenticator", "MaxInFlight", "Timeout"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("New = %v, want it to name %s", err, word)
		}
	}
}

func TestTheExplorerNeedsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("")
	page := r.get("/docs").want(200, nil)
	for _, file := range []string{"start.js", "swagger-ui-bundle.js", "swagger-ui.css", "LICENSE", "NOTICE"} {
		answer := r.get("/docs/"+file).want(200, nil)
		if answer.Body.Len() == 0 || !strings.Contains(answer.Header().Get("Content-Security-Policy"), "connect-src 'self'") {
			t.Errorf("GET /docs/%s: %d bytes, %v", file, answer.Body.Len(), answer.Header())
		}
	}
	if strings.Contains(page.Body.String(), "//") || !strings.Contains(r.get("/docs/start.js").Body.String(), "validatorUrl: null") {
		t.Errorf("the page names another server: %s", page.Body)
	}
	var spec struct{ OpenAPI string }
	r.get("/openapi.json").want(200, &spec)
	if spec.OpenAPI != "3.1.0" {
		t.Errorf("openapi = %q", spec.OpenAPI)
	}
}

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r := newRig(t, func(c *api.Config) { c.Registerer = reg })
	r.get("/jobs")
	r.get("/jobs/" + strings.Repeat("x", 36))
	r.get("/" + strings.Repeat("x", 36))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if c := m.GetCounter(); c != nil && len(m.GetLabel()) == 2 {
				got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = c.GetValue()
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{"GET /jobs 200": 1, "GET /jobs/{id} 422": 1, "none 404": 1}, got); diff != "" {
		t.Errorf("outbox_api_requests_total (-want +got):\n%s", diff)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// slowly is a body of which the rest never comes.
type slowly struct{ sent bool }

func (s *slowly) Read(p []byte) (int, error) {
	if s.sent {
		return 0, errors.New("the client went away")
	}
	s.sent = true
	return copy(p, `{"kind":`), nil
}

func TestHeadersThatCouldBeReadInTwoWays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, values := range [][]string{{"a", "b"}, {""}} {
		req := httptest.NewRequestWithContext(t.Context(), "POST", "/jobs", strings.NewReader(`{"kind":"mail"}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer client-a")
		req.Header["Idempotency-Key"] = values
		if p := r.send(req).problem(400, "malformed_request"); len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" {
			t.Errorf("Idempotency-Key %q: errors = %+v", values, p.Errors)
		}
	}
}

func TestABodyThatEndsEarlyIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/jobs", &slowly{})
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer client-a")
	r.send(req).problem(400, "malformed_request")
}

func TestNumbersAtTheEdges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, field := range []string{
		`"priority":32768`, `"priority":1.5`, `"priority":9223372036854775808`, `"delaySeconds":-1`, `"delaySeconds":1e300`, `"delaySeconds":1e999`,
		`"maxAttempts":0`, `"maxAttempts":32768`, `"runAt":"294276-01-01T00:00:00Z"`, `"runAt":"yesterday"`, `"runAt":"1900-01-01T00:00:00Z"`,
		`"runAt":"2100-01-01T00:00:00Z","delaySeconds":1`, `"headers":{"a":1}`, `"headers":[]`, `"queue":7`, `"key":"` + strings.Repeat("ü", 257) + `"`, `"idempotencyKey":""`,
	} {
		answer := r.post("/jobs", `{"kind":"mail",`+field+`}`)
		var p api.Problem
		if err := json.Unmarshal(answer.Body.Bytes(), &p); err != nil || answer.Code < 400 || answer.Code >= 500 || len(p.Errors) == 0 {
			t.Errorf("%s: %d %s, want a 4xx with its place", field, answer.Code, answer.Body)
		}
	}
	for _, field := range []string{`"payload":null`, `"payload":1e999`, `"payload":123456789012345678901234567890`, `"payload":"` + strings.Repeat("x", 1<<19) + `"`, `"runAt":"2000-01-01T00:00:00Z"`, `"priority":-32768`} {
		r.enqueue(`{"kind":"mail",` + field + `}`)
	}
}
