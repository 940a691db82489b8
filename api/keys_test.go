package api_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// parked has a key of the token's tenant set aside for a dead letter.
func (r *rig) parked(key string) (dead string) {
	r.t.Helper()
	dead = r.enqueue(`{"kind":"mail","key":"` + key + `","ordered":true,"onDeath":"park"}`)
	r.kill(dead)
	_, err := r.db.Exec(r.t.Context(), `
		INSERT INTO outbox.keys (tenant_id, queue, key, parked_at, parked_for) SELECT tenant_id, queue, key, now(), id FROM outbox.jobs WHERE id = $1
		ON CONFLICT (tenant_id, queue, key) DO UPDATE SET parked_at = now(), parked_for = excluded.parked_for`, dead)
	if err != nil {
		r.t.Fatal(err)
	}
	return dead
}

func TestKeysAreListedAndUnblocked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const key = "a/../b//ü ?" // a key may be any text
	const path = "/keys/default/a%2F..%2Fb%2F%2F%C3%BC%20%3F"
	dead := r.parked(key)
	r.as("client-b").parked(key)
	op := r.as("operator-a")
	var list struct{ Keys []api.Key }
	op.get("/keys?parked=true").want(200, &list)
	if len(list.Keys) != 1 || list.Keys[0].Key != key || list.Keys[0].Tenant != tenantA.String() || list.Keys[0].ParkedFor != dead || list.Keys[0].DeadLetters != 1 {
		t.Fatalf("keys = %+v", list.Keys)
	}
	var k api.Key
	op.get(path).want(200, &k)
	blocks := k.Blocks
	if k.Blocks = ""; blocks == "" {
		t.Error("the key by itself has no blocks")
	}
	if diff := cmp.Diff(list.Keys[0], k); diff != "" {
		t.Errorf("the key by itself (-listed +got):\n%s", diff)
	}
	r.as("root").get("/keys").want(200, &list)
	if len(list.Keys) != 2 {
		t.Errorf("keys of all tenants = %+v", list.Keys)
	}
	r.as("root").get(path).problem(404, "key_not_found") // the root tenant's
	r.as("root").get(path+"?tenant="+tenantB.String()).want(200, nil)
	op.get(path+"?tenant="+tenantB.String()).problem(403, "forbidden")
	op.get("/keys/default/none").problem(404, "key_not_found")
	op.post("/keys/default/none/unblock", "").problem(404, "key_not_found")

	var unblocked struct{ Retried int }
	r.enqueue(`{"kind":"mail","key":"new"}`) // which no claim has looked at
	op.get("/keys/default/new").want(200, nil)
	op.post("/keys/default/new/unblock", "").want(200, &unblocked)
	if unblocked.Retried != 0 {
		t.Errorf("retried = %d of a key that nothing holds up", unblocked.Retried)
	}
	r.as("operator-b").post("/keys/default/new/unblock", "").problem(404, "key_not_found")
	// It is unblocked only as it was seen.
	if p := op.post(path+"/unblock?blocks=another", "").problem(409, "blocks_changed"); p.Outcome != "none" {
		t.Errorf("the outcome is %s", p.Outcome)
	}
	op.post(path+"/unblock?blocks=", "").problem(422, "invalid_input")
	if j := op.getJob(dead); j.Status != "dead" {
		t.Errorf("what was refused has made the dead letter %s", j.Status)
	}
	op.post(path+"/unblock?blocks="+blocks, "").want(200, &unblocked)
	if j := op.getJob(dead); unblocked.Retried != 1 || j.Status != "pending" {
		t.Errorf("retried = %d, the dead letter is %s", unblocked.Retried, j.Status)
	}
	r.as("operator-b").get(path).want(200, &k)
	if k.ParkedSince.IsZero() {
		t.Error("another tenant's key was unblocked")
	}
	var acts struct{ Acts []api.Act }
	op.get("/audit?job_id="+dead).want(200, &acts)
	if len(acts.Acts) != 1 || acts.Acts[0].Act != "job.replay" || acts.Acts[0].Actor != "operator-a" {
		t.Errorf("audit of the dead letter = %+v", acts.Acts)
	}
	op.get("/audit?act=key.unblock&target="+url.QueryEscape(key)).want(200, &acts)
	if len(acts.Acts) != 1 || acts.Acts[0].Target != key || acts.Acts[0].Actor != "operator-a" ||
		!strings.Contains(string(acts.Acts[0].Before), `"parked_for":"`+dead+`"`) || string(acts.Acts[0].After) != `{"retried":1,"parked_at":null}` {
		t.Errorf("audit = %+v", acts.Acts)
	}
}

func TestKeysAreListedByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := []string{"a", "b&?/", strings.Repeat("ü", 256), "z"}
	for _, key := range keys {
		r.as("operator-a").parked(key)
	}
	r.as("operator-b").parked("theirs")
	// A blocked job each, due at one time: in the order of their names then.
	if _, err := r.db.Exec(t.Context(), `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload, key, status, run_at)
		SELECT outbox.uuid_v7(), tenant_id, 'mail', '', key, 'blocked', '2026-01-01Z' FROM outbox.jobs WHERE key <> 'z'`); err != nil {
		t.Fatal(err)
	}
	for token, tenant := range map[string]string{"operator-a": "", "root": "&tenant=" + tenantA.String()} {
		for _, byLink := range []bool{true, false} {
			var got []string
			first := "/keys?limit=1&parked=true&queue=default" + tenant
			for target := first; target != "" && len(got) < 9; {
				var page struct {
					Keys []api.Key
					Next string
				}
				link := r.as(token).get(target).want(200, &page).Header().Get("Link")
				for _, k := range page.Keys {
					got = append(got, k.Key)
				}
				switch target = ""; {
				case (link == "") != (page.Next == ""):
					t.Fatalf("Link = %q, next = %q", link, page.Next)
				case page.Next == "":
				case byLink:
					target = "/keys" + strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
				default:
					target = first + "&cursor=" + page.Next
				}
			}
			if diff := cmp.Diff(keys, got); diff != "" {
				t.Errorf("pages for %s by link %t (-want +got):\n%s", token, byLink, diff)
			}
		}
	}
	for _, cursor := range []string{"abc", "AQAA", strings.Repeat("x", 901)} {
		if p := r.as("root").get("/keys?cursor="+cursor).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Parameter != "cursor" {
			t.Errorf("cursor %s: errors = %+v", cursor, p.Errors)
		}
	}
}

func TestSchedulesArePausedAndRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tenant := range []outbox.ID{tenantA, tenantB} {
		_, err := r.db.Exec(t.Context(), `
			INSERT INTO outbox.schedules (tenant_id, name, expression, time_zone, kind, payload, next_at, streamed)
			VALUES ($1, 'daily report', '0 7 * * *', 'Europe/Berlin', 'mail', '{"n":1}', now() + interval '1 hour', CASE WHEN $2 THEN true END)`, tenant, tenant == tenantA)
		if err != nil {
			t.Fatal(err)
		}
	}
	op := r.as("operator-a")
	list := func(r *rig) (schedules []api.Schedule) {
		var out struct{ Schedules []api.Schedule }
		r.get("/schedules").want(200, &out)
		return out.Schedules
	}
	if got := list(op); len(got) != 1 || got[0].Name != "daily report" || got[0].Cron != "0 7 * * *" || got[0].Tenant != tenantA.String() || got[0].NextAt.Before(time.Now()) {
		t.Fatalf("schedules = %+v", got)
	}
	if got := list(r.as("root")); len(got) != 2 {
		t.Errorf("schedules of all tenants = %+v", got)
	}
	if !list(op)[0].Streamed || list(r.as("operator-b"))[0].Streamed {
		t.Error("streamed is another than the tenant's own")
	}
	for range 2 {
		op.post("/schedules/daily%20report/pause", "").want(200, nil)
	}
	if list(op)[0].PausedSince.IsZero() || !list(r.as("operator-b"))[0].PausedSince.IsZero() {
		t.Error("paused is another than the tenant's own")
	}
	var a api.Accepted
	answer := op.post("/schedules/daily%20report/run", "").want(202, &a)
	ran := a.ID
	if j := op.getJob(a.ID); j.Kind != "mail" || answer.Header().Get("Location") != "../../jobs/"+a.ID {
		t.Errorf("it ran as %+v, %s", j, answer.Header().Get("Location"))
	}
	if a.Status != "pending" {
		t.Errorf("its job was stored as %s, they say", a.Status)
	}
	if p := op.do("POST", "/schedules/daily%20report/run", "", "Idempotency-Key", "k").problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" {
		t.Errorf("a run with a key: %+v", p.Errors)
	}
	op.post("/schedules/daily%20report/resume", "").want(200, nil)
	if !list(op)[0].PausedSince.IsZero() {
		t.Error("it is still paused")
	}
	for _, act := range []string{"pause", "resume", "run", "delete"} {
		op.post("/schedules/none/"+act, "").problem(404, "schedule_not_found")
		r.as("root").post("/schedules/daily%20report/"+act, "").problem(404, "schedule_not_found") // the root tenant's
	}
	// The jobs of another are held.
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.schedules SET hold = true WHERE tenant_id = $1`, tenantB); err != nil {
		t.Fatal(err)
	}
	if r.as("operator-b").post("/schedules/daily%20report/run", "").want(202, &a); a.Status != "created" || r.as("operator-b").getJob(a.ID).Status != "created" {
		t.Errorf("a held job was stored as %s, they say", a.Status)
	}
	var acts struct{ Acts []api.Act }
	op.get("/audit?target=daily+report").want(200, &acts)
	var got []string
	for _, act := range acts.Acts {
		got = append(got, act.Act+" "+string(act.Before)+string(act.After))
	}
	want := []string{`schedule.resume {"paused":true}{"paused":false}`, `schedule.run {"status":"pending"}`, `schedule.pause {"paused":false}{"paused":true}`}
	if diff := cmp.Diff(want, got); diff != "" || acts.Acts[1].JobID != ran {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

func TestSchedulesAreMadeAndChanged(t *testing.T) {
	t.Parallel()
	r := withKinds(t)
	op := r.as("operator-a")
	var next struct {
		Name   string
		NextAt time.Time
	}
	op.post("/schedules", `{"name":"s","kind":"receipt.send","payload":{"orderId":7,"to":"ada@example.org"},"cron":"0 7 * * *","timeZone":"Europe/Berlin","headers":{"a":"b"},"key":"k"}`).want(200, &next)
	if at := next.NextAt.In(time.FixedZone("", 3600)); next.Name != "s" || at.Minute() != 0 || !at.After(time.Now()) {
		t.Errorf("made, it says %+v", next)
	}
	op.post("/schedules", `{"name":"s","kind":"mail","everySeconds":60}`).problem(409, "schedule_exists")
	r.as("operator-b").post("/schedules/s/change", `{"priority":1}`).problem(404, "schedule_not_found")
	r.as("operator-b").post("/schedules", `{"name":"s","kind":"mail","everySeconds":60}`).want(200, nil) // its own
	op.post("/schedules/s/change", `{"priority":1,"everySeconds":3600}`).want(200, &next)
	op.post("/schedules/s/change", `{"priority":1}`).want(200, nil) // which it has: no act

	for body, pointers := range map[string][]string{
		`{"cron":"61 0 * * *","timeZone":"Mars"}`:       {"#/timeZone", "#/cron"},
		`{"cron":"0 0 30 2 *"}`:                         {"#/cron"},
		`{"everySeconds":60,"cron":"@daily"}`:           {"#/everySeconds"},
		`{"timeZone":"UTC"}`:                            {"#/timeZone"},
		`{"queue":"a b","everySeconds":1.0001}`:         {"#/everySeconds", "#/queue"},
		`{"payload":{"orderId":"7","to":"ada"}}`:        {"#/payload/orderId", "#/payload/to"},
		`{"kind":"mail","payload":{"a":1,"b":2,"c":3}}`: {"#/payload"},
		`{"headers":{"caller-service":"eve"}}`:          {"#/headers/caller-service"},
		`{"headers":{"schedule":"eve"}}`:                {"#/headers"},
	} {
		var got []string
		for _, fault := range op.post("/schedules/s/change", body).problem(422, "invalid_input").Errors {
			got = append(got, fault.Pointer)
		}
		slices.Sort(got)
		slices.Sort(pointers)
		if diff := cmp.Diff(pointers, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	var stored string
	err := r.db.QueryRow(t.Context(), `SELECT concat_ws(' ', every, kind, priority, key, headers, set_by) FROM outbox.schedules WHERE tenant_id = $1`, tenantA).Scan(&stored)
	if want := `01:00:00 receipt.send 1 k {"a": "b", "caller-service": "operator-a"} operator-a`; err != nil || stored != want {
		t.Errorf("stored is %s, %v; want %s", stored, err, want)
	}
	if _, err := r.db.Exec(t.Context(), `UPDATE outbox.schedules SET set_by = NULL WHERE tenant_id = $1`, tenantA); err != nil {
		t.Fatal(err)
	}
	if p := op.post("/schedules/s/change", `{"priority":2}`).problem(409, "schedule_declared"); !strings.Contains(p.Detail, "app.Config.Schedules") {
		t.Errorf("a change of a program's schedule is refused with %q", p.Detail)
	}

	var acts struct{ Acts []api.Act }
	op.get("/audit?target=s").want(200, &acts)
	if len(acts.Acts) != 2 || acts.Acts[0].Act != "schedule.change" || acts.Acts[1].Act != "schedule.create" || acts.Acts[1].Before != nil ||
		!strings.Contains(string(acts.Acts[0].Before), `"expression":"0 7 * * *"`) || !strings.Contains(string(acts.Acts[0].After), `"every":"01:00:00"`) ||
		!strings.Contains(string(acts.Acts[0].After), `"payload_sha256":`) || strings.Contains(string(acts.Acts[0].After), "ada@") {
		t.Errorf("audit has %+v", acts.Acts)
	}
}

// The audit has of a schedule's headers the names, and their values from before only for those who may see payloads.
func TestTheAuditHasNoValuesOfHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.as("operator-a")
	op.post("/schedules", `{"name":"s","kind":"receipt.send","cron":"0 7 * * *","headers":{"x-secret":"hunter2"}}`).want(200, nil)
	op.post("/schedules/s/change", `{"headers":{"x-secret":"hunter3","x-other":"1"}}`).want(200, nil)
	var acts struct{ Acts []api.Act }
	if body := op.get("/audit?target=s").want(200, &acts).Body.String(); strings.Contains(body, "hunter") || !strings.Contains(body, `"x-secret"`) || len(acts.Acts) != 2 {
		t.Errorf("the audit has %s", body)
	}
	r.exec(`INSERT INTO outbox.audit (actor, act, target, tenant_id, before, after) VALUES ('ada', 'schedule.change', 's', '` + tenantA.String() + `',
		'{"kind": "k", "headers": {"x-secret": "hunter2"}, "payload_sha256": "abc"}', '{"headers": null}')`)
	if body := op.get("/audit?target=s").want(200, nil).Body.String(); !strings.Contains(body, "hunter2") || !strings.Contains(body, "abc") {
		t.Errorf("with payload.read the audit has %s", body)
	}
	r.handler = r.withToken("auditor", access.Principal{Name: "x", Tenant: tenantA, Capabilities: can(access.AdminRead)})
	body := r.as("auditor").get("/audit?target=s").want(200, &acts).Body.String()
	if strings.Contains(body, "hunter") || strings.Contains(body, "sha256") || string(acts.Acts[0].Before) != `{"headers":["x-secret"],"kind":"k"}` {
		t.Errorf("without payload.read the audit has %s", body)
	}
}

func TestWorkersAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	err := sqlgen.New(r.db).ShowWorker(t.Context(), sqlgen.ShowWorkerParams{
		Worker: "w1", Version: "v1.2.3", Queues: []string{"default", "post"}, Concurrency: []int32{8, 2}, Kinds: []string{"mail"}, Hearing: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Workers []api.Worker }
	for _, present := range []bool{true, false} {
		r.get("/workers").want(200, &list)
		if len(list.Workers) != 1 || list.Workers[0].Version != "v1.2.3" || list.Workers[0].Present != present || list.Workers[0].Queues["post"] != 2 {
			t.Errorf("workers = %+v, want one that is present: %t", list.Workers, present)
		}
		if _, err := r.db.Exec(t.Context(), `UPDATE outbox.workers SET seen_at = now() - interval '10 minutes'`); err != nil {
			t.Fatal(err)
		}
	}
}

// A key is found by its exact name, also where that would be another path.
func TestAKeyIsFoundByItsName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.as("operator-a")
	for _, key := range []string{".", "..", "/../", "a/b", "%2E", "☃ ?#&", "+", " "} {
		dead := r.parked(key)
		path := "/keys/default/" + strings.ReplaceAll(url.PathEscape(key), ".", "%2E")
		var got api.Key
		if op.get(path).want(200, &got); got.Key != key || got.ParkedFor != dead {
			t.Errorf("%q: got %+v, want it parked for %s", key, got, dead)
		}
		op.post(path+"/unblock", "").want(200, nil)
	}
}

// A payload that the API sets is JSON, and is checked by its kind's schema, whatever the schedule had before.
func TestAPayloadOfAScheduleIsJSON(t *testing.T) {
	t.Parallel()
	r := withKinds(t)
	for who, path := range map[string]string{"operator-a": "/schedules", "root": "/schedules"} {
		op := r.as(who)
		op.post(path, `{"name":"s","kind":"receipt.send","payload":{"orderId":7,"to":"ada@example.org"},"everySeconds":60}`).want(200, nil)
		tenant := tenantA
		if who == "root" {
			tenant = outbox.RootTenant
		}
		if _, err := r.db.Exec(t.Context(), `UPDATE outbox.schedules SET content_type = 'application/x-protobuf', payload = '\x0801' WHERE tenant_id = $1`, tenant); err != nil {
			t.Fatal(err)
		}
		stored := func() (contentType string) {
			t.Helper()
			if err := r.db.QueryRow(t.Context(), `SELECT content_type FROM outbox.schedules WHERE tenant_id = $1`, tenant).Scan(&contentType); err != nil {
				t.Fatal(err)
			}
			return contentType
		}
		op.post(path+"/s/change", `{"payload":{"orderId":"7","to":"ada"}}`).problem(422, "invalid_input")
		op.post(path+"/s/change", `{"priority":3}`).want(200, nil)
		if got := stored(); got != "application/x-protobuf" {
			t.Errorf("%s: after another change the content type is %s", who, got)
		}
		op.post(path+"/s/change", `{"payload":{"orderId":8,"to":"ada@example.org"}}`).want(200, nil)
		if got := stored(); got != "application/json" {
			t.Errorf("%s: the content type is %s, want that of the payload", who, got)
		}
	}
}

// Pages of schedules end and begin between those of one name, and between names.
func TestSchedulesArePaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at)
		SELECT tenant, name, interval '1 hour', 'mail', '{}', now() FROM unnest($1::uuid[]) AS tenant, unnest('{a,b,ü/&}'::text[]) AS name`,
		[]outbox.ID{tenantA, tenantB}); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{"root": 6, "operator-a": 3} {
		var names []string
		target := "/schedules?limit=1"
		for pages := 0; target != "" && pages < 10; pages++ {
			var page struct {
				Schedules []api.Schedule
				Next      string
			}
			answer := r.as(token).get(target).want(200, &page)
			for _, s := range page.Schedules {
				names = append(names, s.Name+" "+s.Tenant)
			}
			link := answer.Header().Get("Link")
			if target = ""; page.Next != "" {
				target = "/schedules" + strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
			}
		}
		if len(names) != want || !slices.IsSorted(names) || len(slices.Compact(names)) != want {
			t.Errorf("%s: %v, want each of %d once, by name and tenant", token, names, want)
		}
	}
	r.as("root").get("/schedules?cursor=x").problem(422, "invalid_input")
	r.as("root").get("/schedules?limit=-1").problem(422, "invalid_input")
}
