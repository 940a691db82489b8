package rpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/outbox"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/nats/rpc"
)

// needs is what each method takes, as docs/operate/nats.md says, and a request that it would answer for.
var needs = map[string]struct {
	capabilities []access.Capability
	body         string // with the id of a job of tenant A
	everything   bool
}{
	"Health":       {[]access.Capability{access.AdminRead}, `{}`, false},
	"ListServices": {[]access.Capability{access.AdminRead}, `{"limit":1}`, true},
	"List":         {[]access.Capability{access.AdminRead, access.JobsRead}, `{"limit":1}`, false},
	"Get":          {[]access.Capability{access.AdminRead, access.JobsRead}, `{"id":"%s"}`, false},
	"GetKey":       {[]access.Capability{access.AdminRead}, `{"service":"default","type":"mail","key":"k"}`, false},
	"Retry":        {[]access.Capability{access.AdminMutate}, `{"id":"%s"}`, false},
	"Cancel":       {[]access.Capability{access.AdminMutate, access.JobsCancel}, `{"id":"%s"}`, false},
	"ListDLQ":      {[]access.Capability{access.AdminRead}, `{"limit":1}`, false},
	"ReplayDLQ":    {[]access.Capability{access.AdminMutate}, `{"id":"%s"}`, false},
	"DismissDLQ":   {[]access.Capability{access.AdminMutate}, `{"id":"%s"}`, false},
}

// Every method asks who it is and whether they may, before it looks at anything.
func TestEveryMethodAsksWhoAndMayThey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("mail", `{"secret":"p4yl0ad"}`, outbox.Options{})
	for method, m := range needs {
		body := m.body
		if strings.Contains(body, "%s") {
			body = fmt.Sprintf(body, id)
		}
		for name, headers := range map[string][]string{
			"no token":         nil,
			"an unknown token": {"Authorization", "Bearer nobody"},
			"another scheme":   {"Authorization", "Basic operator-a"},
			"only the scheme":  {"Authorization", "Bearer "},
			"two tokens":       {"Authorization", "Bearer operator-a", "Authorization", "Bearer root"},
			"two spellings":    {"Authorization", "Bearer operator-a", "authorization", "Bearer root"},
		} {
			f := r.as("").ask(method, body, headers...).fails("AuthError", "401")
			if want := "A valid bearer token is needed in the header Authorization."; f.Message != want || f.Reason != "session_not_found" {
				t.Errorf("%s, %s: got %+v, want one message for all", method, name, f)
			}
		}
		r.as("homeless").ask(method, body).fails("AuthError", "403")
		for _, c := range access.Capabilities() {
			a := r.as("no-"+string(c)).ask(method, body)
			if slices.Contains(m.capabilities, c) {
				if f := a.fails("AuthError", "403"); !strings.Contains(f.Message, string(c)) || f.Reason != "insufficient_permissions" {
					t.Errorf("%s without %s: got %+v", method, c, f)
				}
			} else if a.Header.Get("Nats-Service-Error") == "AuthError" {
				t.Errorf("%s without %s: got %s", method, c, a.Data)
			}
		}
		if a := r.as("operator-b").ask(method, body); m.everything {
			a.fails("AuthError", "403")
		} else if strings.Contains(string(a.Data), id) && !strings.Contains(string(a.Data), "NotFoundError") {
			t.Errorf("%s by an operator of another tenant: %s", method, a.Data)
		}
	}
	if status := r.status(id); status != "cancelled" { // by no-… tokens that may
		t.Errorf("the job is %s", status)
	}
	if len(r.log.lines) > 0 && strings.Contains(strings.Join(r.log.lines, "\n"), "p4yl0ad") {
		t.Errorf("the log has a payload")
	}
}

func (r *rig) status(id string) (status string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), `SELECT status FROM outbox.jobs WHERE id = $1 UNION ALL SELECT status FROM outbox.history WHERE id = $1`, id).Scan(&status); err != nil {
		r.t.Fatal(err)
	}
	return status
}

// fields returns the names of a JSON object's members, and of those within.
func fields(t *testing.T, data []byte) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	var all []string
	var look func(string, any)
	look = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				all = append(all, path+name)
				if name != "payload" && name != "result" {
					look(path+name+".", inner)
				}
			}
		case []any:
			if len(v) > 0 {
				look(path, v[0])
			}
		}
	}
	look("", v)
	slices.Sort(all)
	return all
}

// A job is sent with the fields of the seed's JobWire, and an empty one is left out.
func TestAJobFieldForField(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.reach(r.enqueue("mail", `{"secret":"p4yl0ad"}`, outbox.Options{
		Queue: "post", Key: outbox.KeyRules{Name: "ada"}, Deadline: time.Now().Add(time.Hour),
	}), outbox.Running)
	r.exec(`INSERT INTO outbox.progress (job_id, epoch, revision, current, total, message, reported_at) VALUES ($1, 1, 1, 3, 10, 'page 3', now())`, id)
	r.exec(`INSERT INTO outbox.job_logs (job_id, slot, epoch, line, logged_at, level, message) VALUES ($1, 0, 1, 0, now(), 'WARN', 'slow')`, id)
	a := r.ask("Get", `{"id":"`+id+`"}`)
	var got struct{ Job job }
	a.ok(&got)
	if diff := cmp.Diff(strings.Fields(`job job.concurrency job.concurrency.key job.concurrency.keyHash job.concurrency.leaseExpiresAt job.createdAt
		job.deadline job.id job.logs job.logs.level job.logs.message job.logs.timestamp job.maxTries job.payload
		job.progress job.progress.current job.progress.message job.progress.total job.service job.startedAt job.state job.tries job.type job.updatedAt`),
		fields(t, a.Data)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	j := got.Job
	if j.ID != id || j.Service != "post" || j.Type != "mail" || j.State != "active" || string(j.Payload) != `{"secret":"p4yl0ad"}` || j.Tries != 1 || j.MaxTries < 2 ||
		j.Concurrency.Key != "ada" || j.Concurrency.KeyHash != "fdee430d40bd57deeac186cd9790033d0f06f909a8806e7ce6e717ab7c7d5029" || j.Progress.Current != 3 || j.Logs[0].Level != "warn" || j.UpdatedAt.Before(j.StartedAt) {
		t.Errorf("got %+v", j)
	}
	if f := r.as("no-payload.read").ask("Get", `{"id":"`+id+`"}`); strings.Contains(string(f.Data), "p4yl0ad") || !strings.Contains(string(f.Data), `"payload":null`) {
		t.Errorf("without payload.read: %s", f.Data)
	}

	done := r.reach(r.enqueue("mail", `{}`, outbox.Options{}), outbox.Succeeded)
	r.ask("Get", `{"id":"`+done+`"}`).ok(&got)
	if got.Job.State != "completed" || string(got.Job.Result) != `{"sent":1}` || got.Job.CompletedAt.IsZero() {
		t.Errorf("got %+v", got.Job)
	}
	dead := r.reach(r.enqueue("mail", `{}`, outbox.Options{}), outbox.Dead)
	r.ask("Get", `{"id":"`+dead+`"}`).ok(&got)
	if got.Job.State != "dead" || got.Job.LastError != "dial tcp 10.0.0.3" {
		t.Errorf("got %+v", got.Job)
	}
	binary, err := outbox.Enqueue(t.Context(), r.db, outbox.Raw{KindName: "mail", Payload: []byte{0xff}, ContentType: "image/png"}, outbox.Options{Tenant: tenantA})
	if err != nil {
		t.Fatal(err)
	}
	r.ask("Get", `{"id":"`+binary.String()+`"}`).ok(&got)
	if want := `{"base64":"/w==","contentType":"image/png"}`; string(got.Job.Payload) != want {
		t.Errorf("got the payload %s, want %s", got.Job.Payload, want)
	}
}

// Every status of ours has a state, and every state of the seed that a filter may have is one.
func TestStates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want := map[outbox.Status]string{
		outbox.Created: "pending", outbox.Pending: "pending", outbox.Running: "active", outbox.Retrying: "retry", outbox.Failed: "failed", outbox.Dead: "dead",
		outbox.Succeeded: "completed", outbox.Cancelled: "cancelled",
	}
	ids := map[string][]string{}
	for status, state := range want {
		id := r.enqueue("mail", `{}`, outbox.Options{Hold: status == outbox.Created})
		switch status {
		case outbox.Created, outbox.Pending:
		case outbox.Cancelled:
			r.ask("Cancel", `{"id":"`+id+`"}`).ok(nil)
		default:
			r.reach(id, status)
		}
		if got := r.status(id); got != string(status) {
			t.Fatalf("the job is %s, want %s", got, status)
		}
		ids[state] = append(ids[state], id)
	}
	for state, some := range ids {
		var got struct{ Entries []job }
		r.ask("List", `{"limit":10,"state":["`+state+`"]}`).ok(&got)
		var found []string
		for _, j := range got.Entries {
			if found = append(found, j.ID); j.State != state {
				t.Errorf("state %s lists one that is %s", state, j.State)
			}
		}
		slices.Sort(found)
		slices.Sort(some)
		if diff := cmp.Diff(some, found); diff != "" {
			t.Errorf("state %s (-want +got):\n%s", state, diff)
		}
	}
	for _, state := range []string{"skipped", "stale", "expired", "dismissed"} {
		var got struct{ Entries []job }
		if r.ask("List", `{"limit":10,"state":["`+state+`"]}`).ok(&got); len(got.Entries) != 0 {
			t.Errorf("state %s: got %+v", state, got.Entries)
		}
	}
	var all struct{ Entries []job }
	if r.ask("List", `{"limit":100,"state":["pending","active"]}`).ok(&all); len(all.Entries) != 3 {
		t.Errorf("two states: got %d", len(all.Entries))
	}
}

type list struct {
	Entries              []job
	Count, Offset, Limit int
	NextOffset           *int
}

func (l list) ids() (ids []string) {
	for _, j := range l.Entries {
		ids = append(ids, j.ID)
	}
	return ids
}

// Pages by offset neither leave out nor repeat, with a filter that few jobs match, too.
func TestPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mails []string
	for range 7 {
		mails = append(mails, r.enqueue("mail", `{}`, outbox.Options{Queue: "post"}))
		r.enqueue("bill", `{}`, outbox.Options{})
		r.enqueue("mail", `{}`, outbox.Options{Queue: "post", Tenant: tenantB})
	}
	slices.Reverse(mails)
	for _, who := range []string{"operator-a", "root"} {
		extra := map[string]string{"operator-a": "", "root": `,"tenant":"` + tenantA.String() + `"`}[who]
		var found []string
		for offset, n := 0, 0; ; n++ {
			var p list
			r.as(who).ask("List", fmt.Sprintf(`{"limit":3,"offset":%d,"service":"post","type":"mail"%s}`, offset, extra)).ok(&p)
			found = append(found, p.ids()...)
			if p.Offset != offset || p.Limit != 3 {
				t.Fatalf("got %+v", p)
			}
			if p.NextOffset == nil {
				if p.Count != 7 || n != 2 {
					t.Errorf("the last page: %+v", p)
				}
				break
			}
			if *p.NextOffset != offset+3 || p.Count <= *p.NextOffset-1 {
				t.Fatalf("got %+v", p)
			}
			offset = *p.NextOffset
		}
		if diff := cmp.Diff(mails, found); diff != "" {
			t.Errorf("%s (-want +got):\n%s", who, diff)
		}
	}
	var p list
	if r.ask("List", `{"limit":7,"type":"mail"}`).ok(&p); len(p.Entries) != 7 || p.NextOffset != nil || p.Count != 7 {
		t.Errorf("a page that is just full: %d of %d, next %v", len(p.Entries), p.Count, p.NextOffset)
	}
	p = list{}
	if r.ask("List", `{"limit":100000,"offset":5}`).ok(&p); p.Limit != 200 || len(p.Entries) != 9 || p.Count != 14 || p.NextOffset != nil {
		t.Errorf("got %d entries of %d, limit %d, next %v", len(p.Entries), p.Count, p.Limit, p.NextOffset)
	}
	p = list{}
	if r.ask("List", `{"limit":5,"offset":10000}`).ok(&p); len(p.Entries) != 0 || p.NextOffset != nil {
		t.Errorf("far behind: %+v", p)
	}
	p = list{}
	if r.ask("List", `{"limit":5,"since":"`+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+`"}`).ok(&p); len(p.Entries) != 0 {
		t.Errorf("since the future: %+v", p)
	}
	empty := r.ask("List", `{"limit":5,"type":"none"}`)
	if want := `{"entries":[],"count":0,"offset":0,"limit":5}`; string(empty.Data) != want {
		t.Errorf("got %s, want %s", empty.Data, want)
	}
}

// An answer is never larger than the server takes: a page has fewer entries then, and the next one begins behind them.
func TestALargePageIsCut(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, natstest.Options{Config: "max_payload: 8192"})
	var want []string
	for range 30 {
		want = append(want, r.enqueue("mail", `"`+strings.Repeat("x", 9000)+`"`, outbox.Options{}))
	}
	r.exec(`UPDATE outbox.jobs SET last_error_code = 'smtp', last_error_message = repeat('e', 400)`)
	slices.Reverse(want)
	var found []string
	for offset := 0; ; {
		var p list
		a := r.ask("List", fmt.Sprintf(`{"limit":100,"offset":%d}`, offset))
		if a.ok(&p); len(a.Data) > 8192 {
			t.Fatalf("%d bytes", len(a.Data))
		}
		found = append(found, p.ids()...)
		if p.NextOffset == nil {
			break
		}
		if *p.NextOffset != offset+len(p.Entries) || len(p.Entries) == 0 || len(p.Entries) == 30 {
			t.Fatalf("a page at %d has %d entries, and the next begins at %d", offset, len(p.Entries), *p.NextOffset)
		}
		offset = *p.NextOffset
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if f := r.ask("Get", `{"id":"`+want[0]+`"}`).fails("UnexpectedError", "500"); f.Context["code"] != "too_large" {
		t.Errorf("a payload that does not fit: %+v", f)
	}
}

// What is wrong with a request is said, with its place, and nothing is done.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for request, want := range map[string]string{
		`List {}`:                                "/limit is missing",
		`List`:                                   "/limit is missing",
		`List {"limit":0}`:                       "/limit is 0",
		`List {"limit":-1,"offset":10001}`:       "/offset is 10001",
		`List {"limit":"x"}`:                     "/limit is a JSON string",
		`List {"limit":1.5}`:                     "/limit is a JSON number",
		`List {"limit":1,"state":["done"]}`:      "/state/0 is no state",
		`List {"limit":1,"state":"dead"}`:        "/state is a JSON string",
		`List {"limit":1,"since":"yesterday"}`:   "/since is no time",
		`List {"limit":1,"cursor":"x"}`:          `"cursor"`,
		`List {"limit":1} {}`:                    "after its JSON object",
		`List [1]`:                               "is not a JSON object",
		`List {"limit":`:                         "is not a JSON object",
		`List {"limit":1,"type":"\u0000"}`:       "NUL",
		`List {"limit":1,"tenant":"x"}`:          "/tenant is no tenant's id",
		`ListDLQ {"limit":1,"state":["dead"]}`:   `"state"`,
		`Get {"id":"x"}`:                         "/id is no id",
		`Get {}`:                                 "/id is no id",
		`GetKey {"service":"default","key":"k"}`: "/type is missing",
		`GetKey {"service":"default","type":"t","key":"\u0000"}`: "NUL",
		`Retry {"id":"x"}`: "/id is no id",
		`Health {"` + strings.Repeat("long", 1000) + `":1}`: "does not take",
		`Health {"a":1}`: `"a"`,
		`List {"limit":1,"state":["x"` + strings.Repeat(`,"x"`, 100_000) + `]}`: "/state has 100001 states",
		`Get {"id":"x","id":"y"}`:        "has a field twice",
		`Get {"id":"x","ID":"y"}`:        "has a field twice",
		`List {"limit":1,"ſervice":"x"}`: "not spelled in ASCII",
	} {
		method, body, _ := strings.Cut(request, " ")
		if f := r.ask(method, body).fails("ValidationError", "422"); !strings.Contains(f.Message, want) || len(f.Issues) == 0 {
			t.Errorf("%s: got %+v, want %q", request, f, want)
		}
	}
	r.ask("List", `{"limit":1,"tenant":"`+tenantB.String()+`"}`).fails("AuthError", "403")
	none := outbox.NewID().String()
	for _, method := range []string{"Get", "Retry", "Cancel", "ReplayDLQ", "DismissDLQ"} {
		if f := r.ask(method, `{"id":"`+none+`"}`).fails("NotFoundError", "404"); f.Resource != "Job" || f.JobID != none {
			t.Errorf("%s: got %+v", method, f)
		}
	}
	if f := r.ask("GetKey", `{"service":"default","type":"mail","key":"none"}`).fails("NotFoundError", "404"); f.Resource != "Key" {
		t.Errorf("got %+v", f)
	}
}

// What each act does, to jobs in which states, and what the audit has of it.
func TestActs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, test := range []struct {
		method  string
		from    outbox.Status
		state   string // of the answer; "" is a refusal
		act     string
		becomes string
	}{
		{"Retry", outbox.Failed, "pending", "job.replay", "pending"},
		{"Retry", outbox.Dead, "", "", "dead"},
		{"Retry", outbox.Retrying, "", "", "retrying"},
		{"Retry", outbox.Succeeded, "", "", "succeeded"},
		{"ReplayDLQ", outbox.Dead, "pending", "job.replay", "pending"},
		{"ReplayDLQ", outbox.Failed, "", "", "failed"},
		{"ReplayDLQ", outbox.Running, "", "", "running"},
		{"DismissDLQ", outbox.Dead, "dismissed", "job.dismiss", "dismissed"},
		{"DismissDLQ", outbox.Failed, "", "", "failed"},
		{"DismissDLQ", outbox.Pending, "", "", "pending"},
		{"Cancel", outbox.Pending, "cancelled", "job.cancel", "cancelled"},
		{"Cancel", outbox.Retrying, "cancelled", "job.cancel", "cancelled"},
		{"Cancel", outbox.Running, "active", "job.cancel", "running"},
		{"Cancel", outbox.Dead, "", "", "dead"},
		{"Cancel", outbox.Succeeded, "", "", "succeeded"},
	} {
		id := r.enqueue("mail", `{"secret":"p4yl0ad"}`, outbox.Options{})
		if test.from != outbox.Pending {
			r.reach(id, test.from)
		}
		r.as("operator-b").ask(test.method, `{"id":"`+id+`"}`).fails("NotFoundError", "404")
		if got := r.status(id); got != string(test.from) {
			t.Fatalf("%s by an operator of another tenant: the job is %s", test.method, got)
		}
		a := r.ask(test.method, `{"id":"`+id+`","reason":"a test"}`, "request-id", "req-"+id)
		var got struct{ Job job }
		if test.state == "" {
			if f := a.fails("ValidationError", "409"); f.Context["state"] == "" || len(f.Issues) != 1 || f.Issues[0].Path != "/id" {
				t.Errorf("%s of one that is %s: %+v", test.method, test.from, f)
			}
		} else if a.ok(&got); got.Job.State != test.state || got.Job.ID != id || strings.Contains(string(a.Data), "p4yl0ad") {
			t.Errorf("%s of one that is %s: %s", test.method, test.from, a.Data)
		}
		if got := r.status(id); got != test.becomes {
			t.Errorf("%s of one that is %s: it is %s, want %s", test.method, test.from, got, test.becomes)
		}
		var acts int
		if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.audit WHERE job_id = $1 AND act = $2 AND actor = 'operator-a' AND reason = 'a test' AND request_id = $3`,
			id, test.act, "req-"+id).Scan(&acts); err != nil || acts != map[bool]int{true: 1}[test.act != ""] {
			t.Errorf("%s of one that is %s: %d rows in the audit, %v", test.method, test.from, acts, err)
		}
	}
	late := r.reach(r.enqueue("mail", `{}`, outbox.Options{Deadline: time.Now().Add(time.Hour)}), outbox.Dead)
	r.exec(`UPDATE outbox.jobs SET deadline = now() - interval '1 minute' WHERE id = $1`, late)
	r.ask("ReplayDLQ", `{"id":"`+late+`"}`).fails("ValidationError", "409")
}

// An operator of one tenant sees its jobs and no others, in every list, by every key.
func TestTenantsSeeTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	of := map[string]string{}
	for _, tenant := range []outbox.ID{tenantA, tenantB, outbox.RootTenant} {
		r.reach(r.enqueue("mail", `{}`, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "ada"}}), outbox.Running)
		of[r.enqueue("mail", `{}`, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: "ada"}})] = tenant.String()
		of[r.reach(r.enqueue("bill", `{}`, outbox.Options{Tenant: tenant}), outbox.Dead)] = tenant.String()
	}
	for _, method := range []string{"List", "ListDLQ"} {
		var a, b, all list
		r.ask(method, `{"limit":100}`).ok(&a)
		r.as("operator-b").ask(method, `{"limit":100}`).ok(&b)
		r.as("root").ask(method, `{"limit":100}`).ok(&all)
		if n := map[string]int{"List": 3, "ListDLQ": 1}[method]; len(a.Entries) != n || len(b.Entries) != n || len(all.Entries) != 3*n {
			t.Errorf("%s: %d, %d and %d jobs, want %d of each tenant", method, len(a.Entries), len(b.Entries), len(all.Entries), n)
		}
		for _, id := range a.ids() {
			if tenant, known := of[id]; known && tenant != tenantA.String() {
				t.Errorf("%s shows tenant A a job of %s", method, tenant)
			}
		}
	}
	for id, tenant := range of {
		if a := r.ask("Get", `{"id":"`+id+`"}`); tenant == tenantA.String() {
			a.ok(nil)
		} else if f := a.fails("NotFoundError", "404"); f.Message != "The job does not exist, or is not visible to this tenant." {
			t.Errorf("got %+v", f)
		}
	}
	type key struct {
		Service, Type, Key, KeyHash string
		Active                      []struct{ JobID, InstanceID string }
		Queued                      []struct{ JobID string }
		QueuedDepth                 int
		StaleTakeoverCount          *int
	}
	for _, who := range []string{"operator-a", "operator-b", "root"} {
		a := r.as(who).ask("GetKey", `{"service":"default","type":"mail","key":"ada"}`)
		var got key
		a.ok(&got)
		tenant := map[string]outbox.ID{"operator-a": tenantA, "operator-b": tenantB, "root": outbox.RootTenant}[who]
		if len(got.Active) != 1 || len(got.Queued) != 1 || got.QueuedDepth != 1 || got.Active[0].InstanceID != "worker-1" || of[got.Queued[0].JobID] != tenant.String() ||
			got.Key != "ada" || got.Type != "mail" || got.Service != "default" || got.StaleTakeoverCount == nil {
			t.Errorf("%s: %s", who, a.Data)
		}
		if diff := cmp.Diff(strings.Fields(`active active.instanceId active.jobId active.leaseExpiresAt active.startedAt active.tries
			key keyHash queued queued.createdAt queued.jobId queuedDepth service staleTakeoverCount type`), fields(t, a.Data)); diff != "" {
			t.Errorf("fields (-want +got):\n%s", diff)
		}
	}
	var got key
	r.as("root").ask("GetKey", `{"service":"default","type":"mail","key":"ada","tenant":"`+tenantB.String()+`"}`).ok(&got)
	if of[got.Queued[0].JobID] != tenantB.String() {
		t.Errorf("got %+v", got)
	}
}

func TestServicesAndHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at) VALUES
		('w1', 'v1', '{default,post}', '{64,8}', '{mail,bill}', true, now()), ('w2', 'v1', '{post}', '{4}', '{mail}', true, now()),
		('w3', 'v1', '{old}', '{4}', '{mail}', true, now() - interval '5 minutes')`)
	a := r.ask("ListServices", `{"limit":2}`)
	var got struct {
		Entries []struct {
			Name    string
			Healthy bool
			Workers []struct {
				Service, JobType, InstanceID, Version string
				Concurrency                           int
				Timestamp                             time.Time
			}
		}
		Count, NextOffset int
	}
	a.ok(&got)
	if got.Count != 3 || got.NextOffset != 2 || got.Entries[0].Name != "default" || got.Entries[1].Name != "old" || got.Entries[1].Healthy || len(got.Entries[1].Workers) != 0 {
		t.Errorf("got %s", a.Data)
	}
	if diff := cmp.Diff(strings.Fields(`count entries entries.healthy entries.name entries.workers entries.workers.concurrency entries.workers.instanceId
		entries.workers.jobType entries.workers.service entries.workers.timestamp entries.workers.version limit nextOffset offset`), fields(t, a.Data)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	a = r.ask("ListServices", `{"limit":2,"offset":2}`)
	got.NextOffset = 0
	a.ok(&got)
	if got.Count != 3 || got.NextOffset != 0 || len(got.Entries) != 1 || !got.Entries[0].Healthy || len(got.Entries[0].Workers) != 3 || got.Entries[0].Workers[2].InstanceID != "w2" ||
		got.Entries[0].Workers[0].JobType != "bill" || got.Entries[0].Workers[1].Concurrency != 8 {
		t.Errorf("got %s", a.Data)
	}
	r.ask("ListServices", `{"limit":2,"offset":50}`).ok(nil)

	a = r.ask("Health", ``)
	if diff := cmp.Diff(strings.Fields(`checks checks.name checks.status service status timestamp`), fields(t, a.Data)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(a.Data), `"status":"ok","timestamp"`) {
		t.Errorf("got %s", a.Data)
	}
}

// A token that is revoked is refused within five seconds, and one of our own is good for what it says.
func TestTokens(t *testing.T) {
	t.Parallel()
	var issued *access.Tokens
	r := newRig(t, func(c *rpc.Config) {
		issued = access.NewTokens(c.Pool, access.TokensConfig{})
		c.Authenticator = issued
	})
	admin := access.NewTokens(r.db, access.TokensConfig{})
	token, info, err := admin.Create(t.Context(), access.Grant{
		Name: "ops", Tenant: tenantA, Capabilities: []access.Capability{access.AdminRead, access.JobsRead}, CreatedBy: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	bearer := token.Reveal()
	r.as(bearer).ask("List", `{"limit":1}`).ok(nil)
	r.as(bearer).ask("Cancel", `{"id":"`+r.enqueue("mail", `{}`, outbox.Options{})+`"}`).fails("AuthError", "403")
	wrong := bearer[:len(bearer)-1] + map[bool]string{true: "b", false: "a"}[strings.HasSuffix(bearer, "a")]
	r.as(wrong).ask("List", `{"limit":1}`).fails("AuthError", "401")
	if _, err := admin.Revoke(t.Context(), info.ID, "test"); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	r.await("it is refused", func() bool { return r.as(bearer).ask("List", `{"limit":1}`).Header.Get("status") == "error" })
	if took := time.Since(revoked); took > 30*time.Second {
		t.Errorf("a revoked token was good for %s", took)
	}
	r.as(bearer).ask("List", `{"limit":1}`).fails("AuthError", "401")
	if r.log.count("bearer refused") < 2 || r.log.count(bearer) > 0 || r.log.count(wrong) > 0 {
		t.Errorf("the log has %q", r.log.lines)
	}
}

// The statistics that the service answers with need no token, and have nothing of anybody's in them.
func TestStatisticsTellNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.reach(r.enqueue("mail", `{}`, outbox.Options{}), outbox.Succeeded)
	r.ask("Retry", `{"id":"`+id+`"}`).fails("ValidationError", "409")
	r.ask("Get", `{"id":"`+outbox.NewID().String()+`"}`).fails("NotFoundError", "404")
	r.as("no-admin.read").ask("GetKey", `{"service":"default","type":"mail","key":"k3y"}`).fails("AuthError", "403")
	for _, verb := range []string{"STATS", "INFO", "PING"} {
		m, err := r.client.Request("$SRV."+verb+".posthaste-jobs", nil, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{id, "succeeded", "k3y", "admin.read", "tenant", "operator"} {
			if strings.Contains(string(m.Data), secret) {
				t.Errorf("%s tells %q: %s", verb, secret, m.Data)
			}
		}
		if verb == "STATS" && !strings.Contains(string(m.Data), `"num_requests":1`) {
			t.Errorf("got %s", m.Data)
		}
	}
}

// What has no subject for its answer is nobody's request.
func TestARequestWithoutAnAnswerDoesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("mail", `{}`, outbox.Options{})
	m := nats.NewMsg("rpc.v1.Jobs.Cancel")
	m.Header.Set("Authorization", "Bearer root")
	m.Data = []byte(`{"id":"` + id + `"}`)
	if err := r.client.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	r.ask("Cancel", `{"id":"`+outbox.NewID().String()+`"}`).fails("NotFoundError", "404") // behind it
	if got := r.status(id); got != "pending" {
		t.Errorf("the job is %s", got)
	}
}

// Two services share the requests; each is answered once, and one that stops answers what it has taken.
func TestTwoServices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := r.serve()
	if n := len(r.instances()); n != 2 {
		t.Fatalf("%d services", n)
	}
	served := func() (used, requests int) {
		inbox := nats.NewInbox()
		answers, err := r.client.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answers.Unsubscribe() }()
		_ = r.client.PublishRequest("$SRV.STATS.posthaste-jobs", inbox, nil)
		for {
			m, err := answers.NextMsg(100 * time.Millisecond)
			if err != nil || len(m.Data) == 0 {
				return used, requests
			}
			var stats struct {
				Endpoints []struct {
					Requests int    `json:"num_requests"`
					Group    string `json:"queue_group"`
				}
			}
			if err := json.Unmarshal(m.Data, &stats); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, e := range stats.Endpoints {
				if n += e.Requests; e.Group != "posthaste-jobs" {
					t.Errorf("the group is %s", e.Group)
				}
			}
			if requests += n; n > 0 {
				used++
			}
		}
	}
	for range 40 {
		r.ask("Health", ``).ok(nil)
	}
	if used, requests := served(); used != 2 || requests != 40 {
		t.Errorf("%d services have answered %d requests, want 2 and 40", used, requests)
	}

	// Requests that come while one stops are all answered.
	over := make(chan error, 1)
	asked := make(chan struct{})
	go func() {
		for i := range 300 {
			if i == 20 {
				close(asked)
			}
			m := nats.NewMsg("rpc.v1.Jobs.Health")
			m.Header.Set("Authorization", "Bearer operator-a")
			if a, err := r.client.RequestMsg(m, 5*time.Second); err != nil || a.Header.Get("status") != "" {
				over <- fmt.Errorf("request %d: %v", i, err)
				return
			}
		}
		over <- nil
	}()
	<-asked
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
	r.await("it is gone", func() bool { return len(r.instances()) == 1 })
}

// A caller that asks for too much at once is refused, and others are not.
func TestOneCallerDoesNotTakeAll(t *testing.T) {
	t.Parallel()
	slow := &slowly{Fixed: tokens(), wait: make(chan struct{})}
	r := newRig(t, func(c *rpc.Config) { c.RequestsLimit, c.Authenticator = 1, slow })
	r.ask("Health", ``).ok(nil)
	if f := r.ask("Health", ``).fails("UnexpectedError", "429"); f.Context["code"] != "rate_limited" {
		t.Errorf("got %+v", f)
	}
	r.as("operator-b").ask("Health", ``).ok(nil)

	// Requests whose tokens are being judged fill the service; more are refused at once.
	inbox := nats.NewInbox()
	answers, err := r.client.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 70 {
		m := nats.NewMsg("rpc.v1.Jobs.Health")
		m.Reply = inbox
		m.Header.Set("Authorization", "Bearer slow")
		if err := r.client.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 6 {
		m, err := answers.NextMsg(5 * time.Second)
		if err != nil || !strings.Contains(string(m.Data), "overloaded") {
			t.Fatalf("answer %d: %v, %v", n, m, err)
		}
	}
	close(slow.wait)
	for n := range 64 {
		if m, err := answers.NextMsg(5 * time.Second); err != nil || m.Header.Get("Nats-Service-Error-Code") != "401" {
			t.Fatalf("answer %d: %v, %v", n, m, err)
		}
	}
}

// A client that may publish requests only cannot have the service publish where the service may.
func TestAnswersGoToInboxesOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for reply, want := range map[string]bool{"orders.paid": false, "$JS.API.STREAM.PURGE.X": false, nats.NewInbox(): true, "_INBOX_ada.1": true} {
		answers, err := r.client.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, bearer := range []string{"", "Bearer operator-a"} {
			m := nats.NewMsg("rpc.v1.Jobs.Health")
			m.Reply = reply
			m.Header.Set("Authorization", bearer)
			if err := r.client.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		r.ask("Health", ``).ok(nil) // the service has come to the others
		wait := 5 * time.Second
		if !want {
			wait = 200 * time.Millisecond
		}
		if _, err := answers.NextMsg(wait); (err == nil) != want {
			t.Errorf("an answer to %s: %t, want %t", reply, err == nil, want)
		}
	}
}

// slowly judges the token slow when the test says so.
type slowly struct {
	Fixed
	wait chan struct{}
}

func (s *slowly) Authenticate(ctx context.Context, bearer string) (access.Principal, error) {
	if bearer == "slow" {
		<-s.wait
	}
	return s.Fixed.Authenticate(ctx, bearer)
}

// A server that is killed and comes back is served again; meanwhile one line in ten seconds says so.
func TestTheServerGoesAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ask("Health", ``).ok(nil)
	r.server.Kill()
	time.Sleep(2 * time.Second)
	if n := r.log.count("no connection to NATS"); n < 1 || n > 2 {
		t.Errorf("%d lines in two seconds: %q", n, r.log.lines)
	}
	r.server.Restart()
	r.await("the service", func() bool { return r.client.IsConnected() && len(r.instances()) == 1 })
	r.ask("Health", ``).ok(nil)
}

// A database that is away is an error that says so, and nothing of how it is reached.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *rpc.Config) {
		config := c.Pool.Config()
		config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.Fallbacks = "127.0.0.1", 1, nil
		away, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(away.Close)
		c.Pool = away
	})
	for method, m := range needs {
		if method == "Health" {
			continue
		}
		body := m.body
		if strings.Contains(body, "%s") {
			body = fmt.Sprintf(body, outbox.NewID())
		}
		f := r.as("root").ask(method, body).fails("UnexpectedError", "503")
		if f.Context["code"] != "unavailable" || strings.Contains(f.Message, "127.0.0.1") {
			t.Errorf("%s: %+v", method, f)
		}
	}
	if a := r.ask("Health", ``); !strings.Contains(string(a.Data), `"status":"failed","timestamp"`) {
		t.Errorf("got %s", a.Data)
	}
	if n := r.log.count("request failed"); n < 1 || n > 2 {
		t.Errorf("%d lines", n)
	}
}

func TestMistakesInTheConfiguration(t *testing.T) {
	t.Parallel()
	_, err := rpc.New(rpc.Config{NATS: relaynats.Config{URLs: []string{"nats://u:p@h:1"}}, SubjectPrefix: "a..b", RequestsLimit: -1})
	for _, want := range []string{"URLs[0] has credentials", `SubjectPrefix is "a..b"`, "no Pool", "no Authenticator", "RequestsLimit is negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %s", err, want)
		}
	}
	for _, bad := range []string{"*", "a.>", "a b", "$SRV", ".", "a.", "\x00"} {
		if _, err := rpc.New(rpc.Config{SubjectPrefix: bad}); !strings.Contains(err.Error(), "SubjectPrefix") {
			t.Errorf("the prefix %q is taken", bad)
		}
	}
}

// The permissions that docs/operate/nats.md names are enough for the service and for its clients.
func TestTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, natstest.Options{Config: `
		no_auth_user: admin
		accounts: { A: { users: [
			{ user: admin, password: admin },
			{ user: rpc, password: rpc, permissions: { subscribe: ["rpc.v1.Jobs.>", "$SRV.>"], allow_responses: true } },
			{ user: client, password: client, permissions: { publish: ["rpc.v1.Jobs.>"], subscribe: ["_INBOX.>"] } } ] } }
		`}, func(c *rpc.Config) { c.NATS.User, c.NATS.Password = "rpc", "rpc" })
	r.client = r.server.Connect(nats.UserInfo("client", "client")).Conn()
	id := r.enqueue("mail", `{}`, outbox.Options{})
	for method, m := range needs {
		body := m.body
		if strings.Contains(body, "%s") {
			body = fmt.Sprintf(body, id)
		}
		r.as("root").ask(method, body)
	}
	if n := r.log.count("NATS reported an error"); n > 0 {
		t.Errorf("the log has %q", r.log.lines)
	}
}
