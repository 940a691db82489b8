package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// headersOf returns what is stored of a job's headers.
func (r *rig) headersOf(id string) map[string]string {
	r.t.Helper()
	var text []byte
	if err := r.db.QueryRow(r.t.Context(), `SELECT headers FROM outbox.jobs WHERE id = $1`, id).Scan(&text); err != nil {
		r.t.Fatal(err)
	}
	headers := map[string]string{}
	if err := json.Unmarshal(text, &headers); err != nil {
		r.t.Fatal(err)
	}
	return headers
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestAJobKnowsWhoAskedForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, tt := range map[string]struct {
		request []string
		headers string // of the body
		want    outbox.Caller
	}{
		"the token and the request": {nil, `{}`, outbox.Caller{Service: "client-a", CorrelationID: "req-7"}},
		"what the request says": {
			[]string{"X-User-Id", "ada", "X-Correlation-Id", "order-9"}, `{}`, outbox.Caller{Service: "client-a", User: "ada", CorrelationID: "order-9"},
		},
		"what the job says": {
			[]string{"X-User-Id", "ada", "X-Correlation-Id", "order-9"},
			`{"caller-user":"grace","correlation-id":"c"}`,
			outbox.Caller{Service: "client-a", User: "grace", CorrelationID: "c"},
		},
		"its own name": {nil, `{"caller-service":"client-a"}`, outbox.Caller{Service: "client-a", CorrelationID: "req-7"}},
	} {
		for _, batch := range []bool{false, true} {
			body, target, contentType := `{"kind":"mail","headers":`+tt.headers+`}`, "/jobs", "application/json"
			if batch {
				target, contentType = "/jobs/batch", "application/x-ndjson"
			}
			answer := r.do("POST", target, body, append([]string{"Content-Type", contentType, "X-Request-Id", "req-7", "Traceparent", traceparent, "Tracestate", "a=b"}, tt.request...)...)
			var accepted struct {
				api.Accepted
				Jobs []api.Accepted
			}
			answer.want(202, &accepted)
			if batch {
				accepted.Accepted = accepted.Jobs[0]
			}
			if got := answer.Header().Get("X-Request-Id"); got != "req-7" {
				t.Errorf("%s: X-Request-Id = %q", name, got)
			}
			headers := r.headersOf(accepted.ID)
			text, _ := json.Marshal(headers)
			if diff := cmp.Diff(tt.want, (&outbox.Claimed{RawHeaders: text}).Caller()); diff != "" {
				t.Errorf("%s, batch %v (-want +got):\n%s", name, batch, diff)
			}
			if headers["traceparent"] != traceparent || headers["tracestate"] != "a=b" {
				t.Errorf("%s: trace context = %v", name, headers)
			}
		}
	}
}

func TestNobodyGivesHimselfOutForAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const body = `{"kind":"mail","headers":{"caller-service":"operator-a"}}`
	for line, answer := range []response{r.post("/jobs", body), r.postBatch(body)} {
		p := answer.problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/headers/caller-service" || p.Errors[0].Line != line {
			t.Errorf("errors = %+v", p.Errors)
		}
	}
	for _, headers := range [][]string{
		{"X-User-Id", "a", "X-User-Id", "b"}, {"X-User-Id", strings.Repeat("x", 257)}, {"X-Correlation-Id", "\xff"}, {"X-Correlation-Id", strings.Repeat("x", 257)},
	} {
		if p := r.do("POST", "/jobs", `{"kind":"mail"}`, headers...).problem(400, "malformed_request"); len(p.Errors) != 1 || p.Errors[0].Header != headers[0] {
			t.Errorf("%q: errors = %+v", headers, p.Errors)
		}
	}
}

// Receivers of webhooks that ignore the case of a header's name, or read - and _ alike, would take the value for the
// name of the service.
func TestNobodyGivesHimselfOutForAnotherInOtherLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const job, schedule = `{"kind":"mail","headers":{"%[1]s":"billing","caller-service":"%[2]s"}}`,
		`{"name":"s","kind":"mail","everySeconds":60,"headers":{"%[1]s":"billing","caller-service":"%[2]s"}}`
	for _, token := range []string{"root", "operator-a"} {
		op := r.as(token)
		op.post("/schedules", fmt.Sprintf(schedule, "other", token)).want(200, nil)
		if _, err := r.db.Exec(t.Context(), `UPDATE outbox.schedules SET headers = headers || '{"Caller-Service":"billing"}'`); err != nil {
			t.Fatal(err)
		}
		op.post("/schedules/s/change", `{"priority":1}`).want(200, nil)
		var stored string
		if err := r.db.QueryRow(t.Context(), `SELECT headers FROM outbox.schedules WHERE set_by = $1`, token).Scan(&stored); err != nil || strings.Contains(stored, "Caller") {
			t.Errorf("a schedule that %s has changed has the headers %s, %v", token, stored, err)
		}
		for name, pointer := range map[string]string{
			"Caller-Service": "#/headers/Caller-Service", "caller_service": "#/headers/caller_service",
			"CALLER.service": "#/headers/CALLER.service", "caller~service": "#/headers/caller~0service",
		} {
			body := fmt.Sprintf(job, name, token)
			for what, answer := range map[string]response{
				"a job": op.post("/jobs", body), "a batch": op.postBatch(body),
				"a schedule": op.post("/schedules", strings.Replace(fmt.Sprintf(schedule, name, token), `"s"`, `"new"`, 1)),
				"a change":   op.post("/schedules/s/change", fmt.Sprintf(`{"headers":{"%s":"billing"}}`, name)),
			} {
				if p := answer.problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
					t.Errorf("%s of %s with %s: errors = %+v, want one at %s", what, token, name, p.Errors, pointer)
				}
			}
		}
	}
}
