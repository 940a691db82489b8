package api_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestDeadLettersAreListedAndGrouped(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	oldest, newest := r.reach(outbox.Failed), r.reach(outbox.Dead)
	r.as("client-b").reach(outbox.Dead)
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET error_fingerprint = 'f1' WHERE id = $1`, newest); err != nil {
		t.Fatal(err)
	}
	type page struct {
		DeadLetters []api.DeadLetter
		Next        string
	}
	list := func(query string) (ids []string, p page) {
		t.Helper()
		r.get("/dead-letters"+query).want(200, &p)
		for _, l := range p.DeadLetters {
			if l.FailedAt.IsZero() {
				t.Errorf("%s failed at no time", l.ID)
			}
			ids = append(ids, l.ID)
		}
		return ids, p
	}
	deadline := time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET deadline = $2, parent_id = $3 WHERE id = $1`, oldest, deadline, newest); err != nil {
		t.Fatal(err)
	}
	if _, p := list("?status=failed"); !p.DeadLetters[0].Deadline.Equal(deadline) || p.DeadLetters[0].Parent != newest {
		t.Errorf("a dead letter is %+v, want its deadline and its parent", p.DeadLetters[0])
	}
	ids, first := list("?limit=1")
	if diff := cmp.Diff([]string{newest}, ids); diff != "" || first.Next == "" || first.DeadLetters[0].Error.Code != "smtp" {
		t.Errorf("the first page (-want +got):\n%s%+v", diff, first)
	}
	if ids, _ := list("?limit=1&cursor=" + first.Next); !cmp.Equal(ids, []string{oldest}) {
		t.Errorf("the second page = %v, want %s", ids, oldest)
	}
	for query, want := range map[string][]string{
		"?kind=mail":                         {newest, oldest},
		"?status=dead":                       {newest},
		"?status=dead,failed":                {newest, oldest},
		"?error_code=smtp":                   {newest, oldest},
		"?error_code=other":                  nil,
		"?error_fingerprint=f1":              {newest},
		"?failed_since=2100-01-01T00:00:00Z": nil,
		"?failed_until=2100-01-01T00:00:00Z": {newest, oldest},
		"?queue=none":                        nil,
	} {
		if ids, _ := list(query); !cmp.Equal(ids, want) {
			t.Errorf("GET /dead-letters%s = %v, want %v", query, ids, want)
		}
	}
	var jobs struct{ Jobs []api.Job }
	r.get("/jobs?error_fingerprint=f1").want(200, &jobs)
	if len(jobs.Jobs) != 1 || jobs.Jobs[0].ID != newest {
		t.Errorf("jobs by fingerprint = %+v", jobs.Jobs)
	}
	var groups struct{ Groups []api.DeadLetterGroup }
	r.get("/dead-letters/groups").want(200, &groups)
	if len(groups.Groups) != 2 || groups.Groups[0].Jobs != 1 || groups.Groups[0].Kind != "mail" || groups.Groups[0].Oldest.IsZero() {
		t.Errorf("groups = %+v", groups.Groups)
	}
	if p := r.get("/dead-letters?cursor=abc").problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Parameter != "cursor" {
		t.Errorf("errors = %+v", p.Errors)
	}
}

// kill has a pending job run and end dead.
func (r *rig) kill(id string) {
	r.t.Helper()
	for _, move := range []string{
		`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`,
		`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, failed_at = clock_timestamp() WHERE id = $1`,
	} {
		if _, err := r.db.Exec(r.t.Context(), move, id); err != nil {
			r.t.Fatal(err)
		}
	}
}

// die makes n dead letters of a tenant.
func (r *rig) die(n int, tenant outbox.ID) {
	r.t.Helper()
	_, err := r.db.Exec(r.t.Context(), `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, failed_at, attempt)
		SELECT ('01976f0e-7a5c-7d3e-8f4b-' || to_char(n, 'FM000000000000'))::uuid, $2, 'bill', '{}', 'dead', now(), 1
		FROM generate_series(1, $1::integer) AS n`, n, tenant)
	if err != nil {
		r.t.Fatal(err)
	}
}

// More than one request's worth is acted on by asking again, and what its deadline
// keeps from running is passed once, not for ever.
func TestManyDeadLettersAreReplayedInParts(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	const n = 1300
	r.die(n, tenantA)
	foreign := r.as("client-b").reach(outbox.Dead)
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.jobs SET deadline = now() - interval '1 s' WHERE id::text LIKE '%-000000000007'`); err != nil {
		t.Fatal(err)
	}
	const filter = `{"filter":{"status":["failed","dead"]},"reason":"mended"`
	var got api.LettersActed
	r.post("/dead-letters/replay", filter+`,"dryRun":true}`).want(200, &got)
	if got.FailedUntil.IsZero() || got != (api.LettersActed{Matched: n, FailedUntil: got.FailedUntil}) {
		t.Errorf("a dry run = %+v", got)
	}
	got = api.LettersActed{}
	r.post("/dead-letters/replay", filter+`}`).want(200, &got)
	if got.Matched != n || got.Done != 999 || got.Passed != 1 || got.Next == "" || got.AfterSeconds != 0 {
		t.Errorf("the first request = %+v", got)
	}
	// One fails again meanwhile: it is a new dead letter, which the act does not mean.
	r.kill("01976f0e-7a5c-7d3e-8f4b-000000000001")
	next := got.Next
	got = api.LettersActed{}
	r.post("/dead-letters/replay", filter+`,"cursor":"`+next+`"}`).want(200, &got)
	if got != (api.LettersActed{Done: 300}) {
		t.Errorf("the second request = %+v", got)
	}
	if j := r.as("client-b").getJob(foreign); j.Status != "dead" {
		t.Errorf("another tenant's dead letter is %s", j.Status)
	}
	var acts struct{ Acts []api.Act }
	r.get("/audit?act=job.replay&limit=1").want(200, &acts)
	if len(acts.Acts) != 1 || acts.Acts[0].Reason != "mended" || acts.Acts[0].Actor != "operator-a" || acts.Acts[0].RequestID != "test" {
		t.Errorf("audit = %+v", acts.Acts)
	}
	r.post("/dead-letters/dismiss", filter+`}`).want(200, &got)
	if got.Done != 2 || got.Next != "" {
		t.Errorf("dismiss = %+v, want what was left and what failed again", got)
	}
}

// What a dry run counted can be acted on, and nothing that came after it.
func TestADryRunBoundsTheAct(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	r.die(2, tenantA)
	var would, got api.LettersActed
	r.post("/dead-letters/dismiss", `{"filter":{"kind":"bill"},"dryRun":true}`).want(200, &would)
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, failed_at, attempt) SELECT outbox.uuid_v7(), $1, 'bill', '{}', 'dead', now(), 1`, tenantA); err != nil {
		t.Fatal(err)
	}
	bound, _ := would.FailedUntil.MarshalText()
	r.post("/dead-letters/dismiss", `{"filter":{"kind":"bill","failedUntil":"`+string(bound)+`"}}`).want(200, &got)
	if would.Matched != 2 || got.Matched != 2 || got.Done != 2 {
		t.Errorf("a dry run = %+v, and then %+v: want the two that were counted", would, got)
	}
}

// The answer to a replay was lost, and one of its jobs has failed again. A repeat with the bound of the dry run replays
// nothing twice; without a bound, it is a new act.
func TestAReplayIsRepeatedWithTheBoundOfItsDryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	r.die(2, tenantA)
	var would api.LettersActed
	r.post("/dead-letters/replay", `{"filter":{"kind":"bill"},"dryRun":true}`).want(200, &would)
	bound, _ := would.FailedUntil.MarshalText()
	bounded := `{"filter":{"kind":"bill","failedUntil":"` + string(bound) + `"}}`
	for _, c := range []struct {
		body string
		done int64
	}{{bounded, 2}, {bounded, 0}, {`{"filter":{"kind":"bill"}}`, 1}} {
		var got api.LettersActed
		r.post("/dead-letters/replay", c.body).want(200, &got)
		if got.Done != c.done {
			t.Errorf("%s has replayed %d, want %d", c.body, got.Done, c.done)
		}
		if c.done == 2 {
			r.kill("01976f0e-7a5c-7d3e-8f4b-000000000001")
		}
	}
}

// At a rate, a request does not wait for its turn longer than it may: the client does.
func TestARateIsKeptFromRequestToRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	r.die(3, tenantA)
	body := `{"filter":{"kind":"bill"},"ratePerSecond":0.001`
	var got api.LettersActed
	r.post("/dead-letters/replay", body+`}`).want(200, &got)
	if got.Matched != 3 || got.Done != 1 || got.Next == "" || got.AfterSeconds != 1000 {
		t.Errorf("at a job in a quarter of an hour: %+v", got)
	}
	next := got.Next
	got = api.LettersActed{}
	r.post("/dead-letters/replay", body+`,"cursor":"`+next+`"}`).want(200, &got)
	if got.Done != 1 || got.AfterSeconds != 1000 {
		t.Errorf("then: %+v", got)
	}
}

func TestActsOnDeadLettersNeedACondition(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	for body, pointer := range map[string]string{
		`{}`:                                "#",
		`{"filter":{}}`:                     "#/filter",
		`{"filter":{"status":["pending"]}}`: "#/filter/status/0",
		`{"filter":{"kind":"a"},"cursor":"AQAA"}`:        "#/cursor",
		`{"filter":{"kind":"a"},"ratePerSecond":0.0001}`: "#/ratePerSecond",
	} {
		p := r.post("/dead-letters/replay", body).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: errors = %+v, want one at %s", body, p.Errors, pointer)
		}
	}
}

func TestADeadLetterIsReplayedWithAnotherPayload(t *testing.T) {
	t.Parallel()
	r := newOwnersRig(t).as("operator-a")
	id := r.reach(outbox.Dead)
	for body, pointer := range map[string]string{
		`{}`:                               "#",
		`{"payload":1,"payloadBase64":""}`: "#",
		`{"payloadBase64":"*"}`:            "#/payloadBase64",
		`{"payloadBase64":"Kg=="}`:         "#/payload", // * is no JSON
	} {
		p := r.post("/dead-letters/"+id+"/replay", body).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: errors = %+v, want one at %s", body, p.Errors, pointer)
		}
	}
	var j api.Job
	if p := r.post("/dead-letters/"+id+"/replay", `{"payloadBase64":"Kg==","dryRun":true}`).problem(422, "invalid_input"); p.Errors[0].Pointer != "#/payload" {
		t.Errorf("a dry run: errors = %+v", p.Errors)
	}
	if r.post("/dead-letters/"+id+"/replay", `{"payload":{},"dryRun":true}`).want(200, &j); j.Status != "dead" || string(j.JSON) == `{}` {
		t.Errorf("after a dry run it is %+v, payload %s", j, j.JSON)
	}
	j = api.Job{}
	r.exec(`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) VALUES ($1, 'quote', 1, '1 s', '1')`, id)
	r.post("/dead-letters/"+id+"/replay", `{"payload":{"b": 1,"a":2},"reason":"typo","forget":true}`).want(200, &j)
	if j.Status != "pending" || string(j.JSON) != `{"b":1,"a":2}` && string(j.JSON) != `{"b": 1,"a":2}` {
		t.Errorf("after the replay it is %+v, payload %s", j, j.JSON)
	}
	r.post("/dead-letters/"+id+"/replay", `{"payload":{}}`).problem(409, "job_status_conflict")

	// The audit keeps the old payload, for those who may see payloads.
	var acts struct{ Acts []api.Act }
	r.get("/audit?job_id="+id).want(200, &acts)
	if len(acts.Acts) != 1 || acts.Acts[0].Reason != "typo" || !strings.Contains(string(acts.Acts[0].Before), "payload_base64") || !strings.Contains(string(acts.Acts[0].After), `"forgotten_steps":1`) {
		t.Errorf("audit = %+v", acts.Acts)
	}
	var before map[string]any
	r.as("no-payload.read").get("/audit?job_id="+id).want(200, &acts)
	if err := json.Unmarshal(acts.Acts[0].Before, &before); err != nil || before["payload_base64"] != nil || before["status"] != "dead" {
		t.Errorf("without payload.read: %v, %v", before, err)
	}
}

func TestTheAuditIsListedByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	began := time.Now().Add(-time.Hour)
	for i := range 3 {
		r.post(fmt.Sprintf("/queues/q%d/pause", i), "").want(200, nil)
	}
	var got []string
	target := "/audit?limit=2&act=queue.pause&since=" + url.QueryEscape(began.UTC().Format(time.RFC3339))
	for range 3 {
		var page struct {
			Acts []api.Act
			Next string
		}
		answer := r.get(target).want(200, &page)
		for _, a := range page.Acts {
			got = append(got, a.Queue)
		}
		if page.Next == "" {
			break
		}
		target = "/audit" + strings.TrimSuffix(strings.TrimPrefix(answer.Header().Get("Link"), "<"), `>; rel="next"`)
	}
	if diff := cmp.Diff([]string{"q2", "q1", "q0"}, got); diff != "" {
		t.Errorf("acts (-want +got):\n%s", diff)
	}
	var page struct{ Acts []api.Act }
	r.as("operator-a").get("/audit").want(200, &page)
	if len(page.Acts) != 0 {
		t.Errorf("a tenant sees what concerns all: %+v", page.Acts)
	}
	for query, parameter := range map[string]string{"cursor=abc": "cursor", "job_id=x": "job_id", "limit=0": "limit", "tenant=x": "tenant"} {
		if p := r.get("/audit?"+query).problem(422, "invalid_input"); len(p.Errors) == 0 || p.Errors[0].Parameter != parameter {
			t.Errorf("GET /audit?%s: errors = %+v", query, p.Errors)
		}
	}
}

// What was done before something failed is answered; the next request meets the
// failure.
func TestAnActOnDeadLettersThatFailsTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	r.die(600, tenantA)
	_, err := r.db.Exec(t.Context(), `
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER fail BEFORE DELETE ON outbox.jobs FOR EACH ROW WHEN (OLD.id::text LIKE '%0550') EXECUTE FUNCTION fail()`)
	if err != nil {
		t.Fatal(err)
	}
	var got api.LettersActed
	r.post("/dead-letters/dismiss", `{"filter":{"kind":"bill"}}`).want(200, &got)
	if got.Done != 500 || got.Matched != 600 || got.Next == "" {
		t.Errorf("%+v, want that 500 were dismissed", got)
	}
	r.post("/dead-letters/dismiss", `{"filter":{"kind":"bill"},"cursor":"`+got.Next+`"}`).problem(500, "internal_error")
}
