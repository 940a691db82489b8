package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAJobIsStoredAsItWasAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var a api.Accepted
	answer := r.do("POST", "/jobs", `{"kind":"mail","payload":{"b": 1.0,  "a":"ü"},"queue":"post","priority":3,"delaySeconds":3600,"maxAttempts":4,
		"timeoutSeconds":1.5,"key":"k","headers":{"user":"7"}}`,
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate", "x=1").want(202, &a)
	if got, want := answer.Header().Get("Location"), "jobs/"+a.ID; got != want || a.Status != "pending" {
		t.Errorf("Location = %q, status %q, want %q, pending", got, a.Status, want)
	}
	id, err := outbox.ParseID(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	job, err := operator.New(r.db).Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var headers map[string]string
	if err := json.Unmarshal(job.Headers, &headers); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"user": "7", "caller-service": "client-a", "correlation-id": "test", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "x=1"}
	if diff := cmp.Diff(want, headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if job.Tenant != tenantA || job.Kind != "mail" || job.Queue != "post" || job.Priority != 3 || job.MaxAttempts != 4 || job.Timeout != 1500*time.Millisecond ||
		job.Key != "k" || job.RunAt.Sub(job.CreatedAt) != time.Hour || string(job.Payload) != `{"b": 1.0,  "a":"ü"}` {
		t.Errorf("stored job = %+v, payload %s", job, job.Payload)
	}
}

func TestARepeatAnswersExactlyLikeTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.do("POST", "/jobs", `{"kind":"mail"}`, "Idempotency-Key", "k1").want(202, nil)
	for name, repeat := range map[string]response{
		"by header": r.do("POST", "/jobs", `{"kind":"mail","payload":2}`, "Idempotency-Key", "k1"),
		"by body":   r.post("/jobs", `{"kind":"mail","idempotencyKey":"k1"}`),
		"by both":   r.do("POST", "/jobs", `{"kind":"mail","idempotencyKey":"k1"}`, "Idempotency-Key", "k1"),
	} {
		if repeat.Code != 202 || repeat.Body.String() != first.Body.String() || !cmp.Equal(repeat.Header(), first.Header()) {
			t.Errorf("a repeat %s = %d %v %s, want %v %s", name, repeat.Code, repeat.Header(), repeat.Body, first.Header(), first.Body)
		}
	}
	var a, b api.Accepted
	first.want(202, &a)
	r.as("client-b").post("/jobs", `{"kind":"mail","idempotencyKey":"k1"}`).want(202, &b)
	if a.ID == b.ID {
		t.Error("another tenant's key was taken for the same")
	}
	p := r.do("POST", "/jobs", `{"kind":"mail","idempotencyKey":"k2"}`, "Idempotency-Key", "k1").problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" {
		t.Errorf("errors = %+v, want one of the header", p.Errors)
	}
}

// Thirty-two clients at once: some with the same idempotency keys, some with jobs that
// only the database refuses. Each gets its own answer.
func TestConcurrentRequestsShareATransactionButNotAFault(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxInFlight = 400 })
	if _, err := r.db.Exec(t.Context(), `ALTER TABLE outbox.jobs ADD CONSTRAINT no_bad CHECK (kind <> 'bad')`); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ids := map[string]int{}
	var wg sync.WaitGroup
	for i := range 320 {
		wg.Go(func() {
			switch {
			case i%20 == 7:
				r.post("/jobs", `{"kind":"bad"}`).problem(500, "internal_error")
			default:
				key := ""
				if i%2 == 0 {
					key = fmt.Sprintf(`,"idempotencyKey":"k%d"`, i%8)
				}
				id := r.enqueue(`{"kind":"mail"` + key + `}`)
				mu.Lock()
				defer mu.Unlock()
				ids[id]++
			}
		})
	}
	wg.Wait()
	var rows int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if want := 320 - 160 - 16 + 4; rows != want || len(ids) != want {
		t.Errorf("rows = %d, ids = %d, want %d", rows, len(ids), want)
	}
}

// A transaction that somebody left open uses the key: the request that needs it is
// told so soon, and the others are stored.
func TestABusyIdempotencyKeyDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "mail"}, outbox.Options{}); err == nil {
		t.Fatal("an empty payload is JSON?")
	}
	if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "mail", Payload: []byte("1")}, outbox.Options{Tenant: tenantA, IdempotencyKey: "busy"}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if i%10 == 0 {
				answer := r.post("/jobs", `{"kind":"mail","idempotencyKey":"busy"}`)
				answer.problem(409, "idempotency_key_busy")
				if answer.Header().Get("Retry-After") != "1" {
					t.Errorf("headers = %v, want Retry-After", answer.Header())
				}
				return
			}
			r.enqueue(`{"kind":"mail","idempotencyKey":"free` + fmt.Sprint(i) + `"}`)
		})
	}
	wg.Wait()
}

func TestABatchIsStoredWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var out struct{ Jobs []api.Accepted }
	r.postBatch(strings.Repeat("{\"kind\":\"mail\"}\n\n", 1000)).want(202, &out)
	if len(out.Jobs) != 1000 {
		t.Errorf("jobs = %d, want 1000", len(out.Jobs))
	}
	for name, tt := range map[string]struct {
		lines   string
		code    int
		line    int
		pointer string
	}{
		"not JSON":             {"{\"kind\":\"mail\"}\n{\"kind\":", 400, 2, "#/kind"},
		"a duplicate":          {"{\"kind\":\"mail\"}\r\n\r\n{\"kind\":\"a\",\"kind\":\"b\"}", 400, 3, "#/kind"},
		"a wrong type":         {`{"kind":7}`, 422, 1, "#/kind"},
		"a name that is not":   {"{\"kind\":\"mail\"}\n{\"kind\":\"no spaces\"}", 422, 2, "#/kind"},
		"an array in one line": {`[{"kind":"mail"}]`, 422, 1, "#"},
	} {
		t.Run(name, func(t *testing.T) {
			var p api.Problem
			r.postBatch(tt.lines).want(tt.code, &p)
			if len(p.Errors) == 0 || p.Errors[0].Line != tt.line || p.Errors[0].Pointer != tt.pointer {
				t.Errorf("errors = %+v, want line %d, %s", p.Errors, tt.line, tt.pointer)
			}
		})
	}
	r.postBatch(strings.Repeat("{\"kind\":\"mail\"}\n", 1001)).problem(422, "invalid_input")
	r.postBatch("\n \n").problem(400, "malformed_request")
	r.do("POST", "/jobs/batch", `{"kind":"mail"}`).problem(415, "unsupported_media_type")
	var rows int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE tenant_id = $1`, tenantA).Scan(&rows); err != nil || rows != 1000 {
		t.Errorf("rows = %d, %v, want those of the good batch", rows, err)
	}
}
