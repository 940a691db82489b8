package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestJobsAreCancelledOrAskedToStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	waiting, running, done := r.reach(outbox.Pending), r.reach(outbox.Running), r.reach(outbox.Succeeded)
	var j api.Job
	for range 2 { // to repeat it is harmless
		r.post("/jobs/"+waiting+"/cancel", "").want(200, &j)
		if j.Status != "cancelled" || j.FinishedAt.IsZero() {
			t.Errorf("a cancelled job is %+v", j)
		}
		r.post("/jobs/"+running+"/cancel", "").want(202, &j)
		if j.Status != "running" || j.CancelRequestedAt.IsZero() {
			t.Errorf("a running job that was cancelled is %+v", j)
		}
	}
	r.post("/jobs/"+done+"/cancel", "").problem(409, "job_status_conflict")
	r.post("/jobs/"+r.reach(outbox.Dead)+"/cancel", "").problem(409, "job_status_conflict")

	var acts struct{ Acts []api.Act }
	r.as("operator-a").get("/audit?act=job.cancel&job_id="+waiting).want(200, &acts)
	if len(acts.Acts) == 0 || acts.Acts[0].Actor != "client-a" || acts.Acts[0].RequestID != "test" || acts.Acts[0].Tenant != tenantA.String() {
		t.Errorf("audit = %+v", acts.Acts)
	}
}

func TestManyJobsAreCancelledAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	waiting, running, dead, absent := r.reach(outbox.Pending), r.reach(outbox.Running), r.reach(outbox.Dead), outbox.NewID().String()
	foreign := r.as("client-b").reach(outbox.Pending)
	ids := fmt.Sprintf(`"ids":["%s","%s","%s","%s","%s"]`, waiting, running, dead, absent, foreign)
	want := api.BulkResult{Done: 2, Refused: 3, Jobs: []api.Outcome{
		{ID: waiting}, {ID: running, Requested: true}, {ID: dead, Code: "job_status_conflict"}, {ID: absent, Code: "job_not_found"}, {ID: foreign, Code: "job_not_found"},
	}}
	for _, dryRun := range []string{"true", "false"} {
		var got api.BulkResult
		r.post("/jobs/cancel", `{`+ids+`,"dryRun":`+dryRun+`}`).want(200, &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("cancel with dryRun %s (-want +got):\n%s", dryRun, diff)
		}
		if status := r.getJob(waiting).Status; (status == "pending") != (dryRun == "true") {
			t.Errorf("after dryRun %s the job is %s", dryRun, status)
		}
	}
	// Without a status a filter means what waits or runs, not the dead letter.
	waiting = r.reach(outbox.Pending)
	var got api.BulkResult
	r.post("/jobs/cancel", `{"filter":{"kind":"mail"}}`).want(200, &got)
	if diff := cmp.Diff(api.BulkResult{Done: 2, Jobs: []api.Outcome{{ID: waiting}, {ID: running, Requested: true}}}, got); diff != "" {
		t.Errorf("cancel by filter (-want +got):\n%s", diff)
	}
	if status := r.as("client-b").getJob(foreign).Status; status != "pending" {
		t.Errorf("another tenant's job is %s", status)
	}
}

func TestHeldJobsAreReleased(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op := r.as("operator-a")
	one, two, foreign := r.enqueue(`{"kind":"mail","hold":true}`), r.enqueue(`{"kind":"mail","hold":true}`), r.as("client-b").enqueue(`{"kind":"mail","hold":true}`)
	if status := r.getJob(one).Status; status != "created" {
		t.Errorf("a held job is %s", status)
	}
	var j api.Job
	op.post("/jobs/"+one+"/release", "").want(200, &j)
	if j.Status != "pending" {
		t.Errorf("a released job is %s", j.Status)
	}
	op.post("/jobs/"+one+"/release", "").problem(409, "job_status_conflict")
	var got api.BulkResult
	op.post("/jobs/release", `{"filter":{"kind":"mail"}}`).want(200, &got)
	if diff := cmp.Diff(api.BulkResult{Done: 1, Jobs: []api.Outcome{{ID: two}}}, got); diff != "" {
		t.Errorf("release by filter (-want +got):\n%s", diff)
	}
	if status := r.as("client-b").getJob(foreign).Status; status != "created" {
		t.Errorf("another tenant's job is %s", status)
	}
}

func TestAJobHasADeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deadline := time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)
	id := r.enqueue(`{"kind":"mail","deadline":"2100-01-02T03:04:05Z"}`)
	if j := r.getJob(id); !j.Deadline.Equal(deadline) {
		t.Errorf("deadline = %s, want %s", j.Deadline, deadline)
	}
	p := r.post("/jobs", `{"kind":"mail","runAt":"2100-01-01T00:00:00Z","deadline":"2099-01-01T00:00:00Z"}`).problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/deadline" {
		t.Errorf("errors = %+v, want one of deadline", p.Errors)
	}
}
