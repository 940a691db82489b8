package api_test

import (
	"fmt"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// With its own role for a login, the database lets the API do everything that it has
// a route for, but for changing a payload.
func TestTheAPIsRoleSufficesForItsRoutes(t *testing.T) {
	t.Parallel()
	owner := newRig(t)
	_, err := owner.db.Exec(t.Context(), `
		INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'report', '1 hour', 'mail', '{}', now())`, tenantA)
	if err != nil {
		t.Fatal(err)
	}
	r := owner.as("operator-a")
	waiting, running, dead, failed := r.reach(outbox.Pending), r.reach(outbox.Running), r.reach(outbox.Dead), r.reach(outbox.Failed)
	r.report(running)
	parked := r.parked("k")
	held := r.enqueue(`{"kind":"mail","hold":true,"idempotencyKey":"i"}`)
	for range 2 {
		r.post("/jobs", `{"kind":"mail","key":"full","maxQueued":1,"whenFull":"replace-oldest"}`).want(202, nil)
	}
	r.post("/dead-letters/"+dead+"/replay", `{"payload":{}}`).problem(403, "forbidden")
	for _, call := range []struct {
		method, target, body string
		status               int
	}{
		{"GET", "/jobs/" + running + "/progress", "", 200},
		{"GET", "/jobs/" + running + "/logs", "", 200},
		{"GET", "/jobs/" + running + "/steps", "", 200},
		{"POST", "/jobs/" + waiting + "/cancel", "", 200},
		{"POST", "/jobs/" + running + "/cancel", "", 202},
		{"POST", "/jobs/" + held + "/release", "", 200},
		{"GET", "/dead-letters", "", 200},
		{"GET", "/dead-letters/groups", "", 200},
		{"POST", "/jobs/retry", fmt.Sprintf(`{"ids":["%s"]}`, failed), 200},
		{"POST", "/dead-letters/replay", `{"filter":{"queue":"` + r.getJob(dead).Queue + `"}}`, 200},
		{"GET", "/keys", "", 200},
		{"GET", "/keys/default/k", "", 200},
		{"POST", "/keys/default/k/unblock", "", 200},
		{"POST", "/dead-letters/dismiss", `{"filter":{"status":["failed","dead"]}}`, 200},
		{"GET", "/schedules", "", 200},
		{"POST", "/schedules", `{"name":"made","kind":"mail","cron":"@daily"}`, 200},
		{"POST", "/schedules/made/change", `{"everySeconds":60}`, 200},
		{"POST", "/schedules/report/pause", "", 200},
		{"POST", "/schedules/report/resume", "", 200},
		{"POST", "/schedules/report/run", "", 202},
		{"POST", "/schedules/report/delete", "", 200},
		{"GET", "/audit", "", 200},
	} {
		if answer := r.do(call.method, call.target, call.body); answer.Code != call.status {
			t.Errorf("%s %s = %d %s, want %d", call.method, call.target, answer.Code, answer.Body, call.status)
		}
	}
	r.as("root").get("/workers").want(200, nil)
	r.as("root").post("/queues/default/limits", `{"maxRunning":7}`).want(200, nil)
	r.as("root").post("/queues/default/limits", `{"maxRunning":0}`).want(200, nil)
	for id, want := range map[string]string{waiting: "cancelled", held: "pending", dead: "pending", failed: "pending", parked: "pending"} {
		if status := r.getJob(id).Status; status != want {
			t.Errorf("a job is %s, want %s", status, want)
		}
	}
}
