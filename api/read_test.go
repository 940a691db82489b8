package api_test

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
	"github.com/posthaste-dev/posthaste/protect"
)

// What a client must never see of a job that failed, and an operator may.
var hidden = []string{"p4yl0ad", "worker-1", "lease", "epoch", "attempt", "10.0.0.3", "goroutine", "internals"}

func TestClientsSeeOutcomesAndOperatorsTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead, running, done := r.reach(outbox.Dead), r.reach(outbox.Running), r.reach(outbox.Succeeded)
	for _, target := range []string{"/jobs/" + dead, "/jobs/" + running, "/jobs/" + done, "/jobs", "/jobs/" + dead + "/result", "/jobs/" + done + "/result"} {
		body := r.get(target).want(200, nil).Body.String()
		for _, word := range hidden {
			if strings.Contains(strings.ToLower(body), word) {
				t.Errorf("GET %s shows a client %q: %s", target, word, body)
			}
		}
	}
	if j := r.getJob(dead); j.Status != "dead" || j.Kind != "mail" || j.Error == nil || j.Error.Code != "smtp" || j.CreatedAt.IsZero() || j.StartedAt.IsZero() || !j.FinishedAt.IsZero() {
		t.Errorf("a dead letter is %+v", j)
	}
	if j := r.getJob(done); j.Status != "succeeded" || j.FinishedAt.IsZero() {
		t.Errorf("a finished job is %+v", j)
	}
	op := r.as("operator-a")
	j := op.getJob(dead)
	if string(j.JSON) != `{"secret":"p4yl0ad"}` || j.Internals == nil || j.Internals.Attempt != 1 || j.Internals.Tenant != tenantA.String() || j.Error.Message != "dial tcp 10.0.0.3" {
		t.Errorf("an operator sees %+v %+v", j, j.Internals)
	}
	if j := op.getJob(running); j.Internals.Worker != "worker-1" || j.Internals.LeaseExpiresAt.IsZero() {
		t.Errorf("of a running job, an operator sees %+v", j.Internals)
	}
	if body := r.as("no-payload.read").get("/jobs/"+dead).want(200, nil).Body.String(); strings.Contains(body, "p4yl0ad") || !strings.Contains(body, "internals") {
		t.Errorf("without payload.read: %s", body)
	}
	for contains, finds := range map[string]bool{"p4yl0": true, "P4yl0": false} {
		if body := op.get("/jobs?contains="+contains).want(200, nil).Body.String(); strings.Contains(body, dead) != finds {
			t.Errorf("a search of payloads for %s finds %s", contains, body)
		}
	}
	if body := r.as("no-payload.read").get("/jobs?contains=p4yl").want(403, nil).Body.String(); !strings.Contains(body, "payload.read") {
		t.Errorf("a search without payload.read: %s", body)
	}
	var attempts struct{ Attempts []api.Attempt }
	op.get("/jobs/"+dead+"/attempts").want(200, &attempts)
	if len(attempts.Attempts) != 1 || attempts.Attempts[0].Stack != "goroutine 1" || attempts.Attempts[0].Worker != "worker-1" {
		t.Errorf("attempts = %+v", attempts)
	}
}

func TestResultsAreOfFinishedJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var done, dead api.Result
	r.get("/jobs/"+r.reach(outbox.Succeeded)+"/result").want(200, &done)
	if done.Status != "succeeded" || string(done.Result) != `{"sent":1}` || done.Error != nil {
		t.Errorf("result = %+v", done)
	}
	r.get("/jobs/"+r.reach(outbox.Dead)+"/result").want(200, &dead)
	if dead.Status != "dead" || dead.Result != nil || dead.Error == nil || dead.Error.Code != "smtp" {
		t.Errorf("result of a dead letter = %+v", dead)
	}
	cancelled := r.reach(outbox.Pending)
	r.post("/jobs/"+cancelled+"/cancel", "").want(200, nil)
	var called api.Result
	r.get("/jobs/"+cancelled+"/result").want(200, &called)
	if called.Error == nil || called.Error.Code != codes.Cancelled {
		t.Errorf("result of a cancelled job = %+v, want the code that its attempt would have", called)
	}
	r.get("/jobs/"+r.reach(outbox.Running)+"/result").problem(409, "job_not_finished")
}

// A result that a protector sealed is handed out as it is stored, and says so; the
// holder of the key opens it.
func TestASealedResultSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ring, err := protect.NewKeyring(protect.Key{ID: "k", Secret: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	done := r.reach(outbox.Succeeded)
	job, err := outbox.ParseID(done)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := protect.SealResult(t.Context(), ring, tenantA, job, []byte(`{"iban":"DE02"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.history SET result = $1 WHERE id = $2`, sealed, job); err != nil {
		t.Fatal(err)
	}
	var got api.Result
	r.get("/jobs/"+done+"/result").want(200, &got)
	stored, err := base64.StdEncoding.DecodeString(got.Base64)
	if err != nil || got.Sealed != protect.SealedType || got.Result != nil || got.Error != nil {
		t.Fatalf("result = %+v, %v", got, err)
	}
	if opened, err := protect.OpenResult(t.Context(), ring, tenantA, job, stored); err != nil || string(opened) != `{"iban":"DE02"}` {
		t.Errorf("the result opens as %q, %v", opened, err)
	}
	var plain api.Result
	r.get("/jobs/"+r.reach(outbox.Succeeded)+"/result").want(200, &plain)
	if plain.Sealed != "" {
		t.Errorf("a plain result says %+v", plain)
	}
}

// follow reads all pages by one of the two ways to the next.
func follow(t *testing.T, r *rig, target string, byLink bool) (ids []string) {
	t.Helper()
	for range 100 {
		var page struct {
			Jobs []api.Job
			Next string
		}
		answer := r.get(target).want(200, &page)
		for _, j := range page.Jobs {
			ids = append(ids, j.ID)
		}
		link := answer.Header().Get("Link")
		if (link == "") != (page.Next == "") {
			t.Fatalf("Link = %q, next = %q", link, page.Next)
		}
		if page.Next == "" {
			return ids
		}
		if byLink {
			target = "/jobs" + strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
		} else {
			u, _ := url.Parse(target)
			q := u.Query()
			q.Set("cursor", page.Next)
			target = "/jobs?" + q.Encode()
		}
	}
	t.Fatal("the pages have no end")
	return nil
}

func TestJobsAreListedByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all []string
	for i := range 23 {
		kind := "mail"
		if i%3 == 0 {
			kind = "bill"
		}
		all = append(all, r.enqueue(`{"kind":"`+kind+`","key":"ü/&`+strings.Repeat("x", i%2)+`"}`))
	}
	r.as("client-b").enqueue(`{"kind":"bill"}`)
	slices.Reverse(all)
	for _, byLink := range []bool{true, false} {
		if got := follow(t, r, "/jobs?limit=5", byLink); !slices.Equal(got, all) {
			t.Errorf("pages by link %t = %v, want %v", byLink, got, all)
		}
		if got := follow(t, r, "/jobs?kind=bill&limit=2&status=pending,running&key="+url.QueryEscape("ü/&"), byLink); len(got) != 4 {
			t.Errorf("filtered pages by link %t = %d jobs, want 4", byLink, len(got))
		}
	}
	var page struct{ Jobs []api.Job }
	r.get("/jobs?limit=5&offset=20").want(200, &page)
	if len(page.Jobs) != 3 || page.Jobs[0].ID != all[20] {
		t.Errorf("from offset 20: %+v", page.Jobs)
	}
	if got := follow(t, r, "/jobs?kind=bill&limit=2&offset=3", true); len(got) != 5 {
		t.Errorf("bills from offset 3 = %d, want 5", len(got))
	}
	first := r.getJob(all[len(all)-1])
	for query, want := range map[string]int{
		"created_since=" + url.QueryEscape(first.CreatedAt.Format("2006-01-02T15:04:05.999999Z07:00")): 23,
		"created_until=" + url.QueryEscape(first.CreatedAt.Format("2006-01-02T15:04:05.999999Z07:00")): 0,
		"created_since=2100-01-01T00:00:00Z": 0,
		"created_until=2100-01-01T00:00:00Z": 23,
		"limit=200":                          23,
		"status=dead":                        0,
		"queue=default":                      23,
	} {
		r.get("/jobs?"+query).want(200, &page)
		if len(page.Jobs) != want {
			t.Errorf("GET /jobs?%s = %d jobs, want %d", query, len(page.Jobs), want)
		}
	}
	r.as("root").get("/jobs?kind=bill").want(200, &page)
	if len(page.Jobs) != 9 {
		t.Errorf("bills of all tenants = %d, want 9", len(page.Jobs))
	}
	for query, parameter := range map[string]string{
		"limit=0": "limit", "limit=x": "limit", "limit=201": "limit", "offset=10001": "offset", "status=open": "status[0]", "cursor=abc": "cursor",
		"created_since=yesterday": "created_since", "sort=kind": "sort", "cursor=" + strings.Repeat("x", 65): "cursor",
	} {
		p := r.get("/jobs?"+query).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Parameter != parameter {
			t.Errorf("GET /jobs?%s: errors = %+v, want one of %s", query, p.Errors, parameter)
		}
	}
}

// SQL stores times that JSON does not have. A row with one is shown, and so are the
// others of its list, of every tenant.
func TestAFarTimeBlindsNoList(t *testing.T) {
	t.Parallel()
	r := newOwnersRig(t).as("root")
	_, err := r.db.Exec(t.Context(), `
		ALTER TABLE outbox.jobs DROP CONSTRAINT jobs_values;
		ALTER TABLE outbox.schedules DROP CONSTRAINT schedules_next_at_is_a_time;
		INSERT INTO outbox.jobs (id, kind, payload, run_at, created_at, deadline)
		VALUES ('00000000-0000-0000-0000-00000000000a', 'mail', '{}', '4000-01-01 BC', '4000-01-01 BC', '290000-01-01'),
		       ('ffffffff-0000-0000-0000-00000000000b', 'mail', '{}', '20000-01-01', '20000-01-01', '20000-01-02');
		INSERT INTO outbox.jobs (id, kind, payload, run_at, key, status, ordered)
		VALUES (gen_random_uuid(), 'mail', '{}', '20000-01-01', 'far', 'blocked', true), (gen_random_uuid(), 'mail', '{}', '4000-01-01 BC', 'past', 'blocked', true);
		INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT tenant_id, queue, key, '20000-01-01' FROM outbox.jobs WHERE key IS NOT NULL;
		INSERT INTO outbox.jobs (id, kind, payload, run_at, created_at, status, failed_at, error_fingerprint, last_error_code, attempt, epoch, started_at)
		VALUES (gen_random_uuid(), 'mail', '{}', '20000-01-01', '20000-01-01', 'dead', '20000-01-01', 'x', 'x', 1, 1, '20000-01-01');
		INSERT INTO outbox.schedules (name, every, kind, payload, next_at, last_at, paused_at)
		VALUES ('far', '1 h', 'mail', '{}', '20000-01-01', '4000-01-01 BC', '20000-01-01')`)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{
		"/jobs", "/jobs/00000000-0000-0000-0000-00000000000a", "/jobs/ffffffff-0000-0000-0000-00000000000b", "/schedules", "/keys", "/keys?limit=1",
		"/dead-letters", "/dead-letters/groups", "/stats", "/queues",
	} {
		body := r.get(target).want(200, nil).Body.String()
		if !strings.Contains(target, "/stats") && !strings.Contains(target, "/queues") && !strings.Contains(body, "9999-12-31T23:59:59.999999Z") && !strings.Contains(body, "0000-01-01T00:00:00Z") {
			t.Errorf("GET %s does not show the far time: %s", target, body)
		}
	}
}
