package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What a preview has counted is what the operation does: not what comes later, nor another tenant's.
func TestAnOperationOnOpenJobsIsWhatWasPreviewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enqueue := func(tenant outbox.ID) outbox.ID {
		id, err := outbox.Enqueue(t.Context(), r.db, outbox.Raw{KindName: "mail", Payload: []byte("1")}, outbox.Options{Tenant: tenant, Delay: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	mine, theirs := []outbox.ID{enqueue(tenantA), enqueue(tenantA)}, enqueue(tenantB)
	var would api.OperationPreview
	r.as("operator-a").post("/operations/preview", `{"act":"cancel","jobs":{"kind":"mail"}}`).want(200, &would)
	if would.Matched != 2 || would.ByStatus["pending"] != 2 || would.AsOf == "" {
		t.Fatalf("preview = %+v, want 2 pending", would)
	}
	late := enqueue(tenantA)
	start := fmt.Sprintf(`{"act":"cancel","jobs":{"kind":"mail","asOf":%q},"ratePerSecond":10000,"reason":"wrong campaign"}`, would.AsOf)
	r.handler = r.withToken("no-cancel", access.Principal{Name: "x", Tenant: tenantA, Capabilities: can(access.AdminMutate)})
	r.as("no-cancel").post("/operations", start).problem(403, "forbidden")
	r.as("no-cancel").post("/operations/preview", start).problem(403, "forbidden")
	var op api.Operation
	r.as("operator-a").post("/operations", start).want(202, &op)
	if op.Matched != 2 || op.Jobs.Kind != "mail" || op.Filter.Kind != "" || op.State != "running" {
		t.Errorf("started %+v, want 2 jobs of mail", op)
	}
	r.as("no-cancel").post("/operations/"+op.ID+"/stop", "").want(200, &op)
	r.as("no-cancel").post("/operations/"+op.ID+"/resume", "").problem(403, "forbidden")
	r.as("operator-a").post("/operations/"+op.ID+"/resume", "").want(200, &op)
	o := operator.New(r.db)
	for range 3 {
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r.as("operator-a").get("/operations/"+op.ID).want(200, &op); op.State != "done" || op.Done != 2 || op.Reason != "wrong campaign" {
		t.Errorf("done %+v, want 2", op)
	}
	for id, want := range map[outbox.ID]outbox.Status{mine[0]: outbox.Cancelled, mine[1]: outbox.Cancelled, late: outbox.Pending, theirs: outbox.Pending} {
		if job, err := o.Job(t.Context(), id); err != nil || job.Status != want {
			t.Errorf("%s is %s, %v, want %s", id, job.Status, err, want)
		}
	}
	var edited api.Operation
	r.as("operator-a").post("/operations", `{"act":"edit","jobs":{"kind":"mail"},"edit":{"queue":"slow","priority":-7,"runAt":"2100-01-01T00:00:00Z"}}`).want(202, &edited)
	if _, err := o.StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.as("operator-a").get("/operations/"+edited.ID).want(200, &edited); edited.Done != 1 || edited.Edit.Queue != "slow" || *edited.Edit.Priority != -7 || edited.Edit.RunAt.Year() != 2100 {
		t.Errorf("edited %+v, want the one job that is left", edited)
	}
	if job, err := o.Job(t.Context(), late); err != nil || job.Queue != "slow" || job.Priority != -7 || job.RunAt.UTC().Year() != 2100 {
		t.Errorf("the edited job is %+v, %v", job, err)
	}
	for body, pointer := range map[string]string{
		`{"act":"cancel","jobs":{}}`:                                       "#/jobs",
		`{"act":"cancel","jobs":{"asOf":"1:1:"}}`:                          "#/jobs",
		`{"act":"cancel","filter":{"kind":"mail"}}`:                        "#/filter",
		`{"act":"replay","filter":{"kind":"mail"},"jobs":{"kind":"mail"}}`: "#/jobs",
		`{"act":"replay","filter":{}}`:                                     "#/filter",
		`{"act":"cancel","jobs":{"kind":"mail","asOf":"yesterday"}}`:       "#/jobs/asOf",
		`{"act":"cancel","jobs":{"status":["dead"]}}`:                      "#/jobs/status/0",
		`{"act":"retry","jobs":{"kind":"mail"},"ratePerSecond":-1}`:        "#/ratePerSecond",
		`{"act":"explode","jobs":{"kind":"mail"}}`:                         "#/act",
	} {
		for _, path := range []string{"/operations", "/operations/preview"} {
			if p := r.as("operator-a").post(path, body).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
				t.Errorf("%s %s: %+v, want a fault at %s", path, body, p.Errors, pointer)
			}
		}
	}
	for body, pointer := range map[string]string{
		`{"act":"edit","jobs":{"kind":"mail"}}`:                              "#/edit",
		`{"act":"cancel","jobs":{"kind":"mail"},"edit":{"queue":"q"}}`:       "#/edit",
		`{"act":"edit","jobs":{"kind":"mail"},"edit":{"queue":"no blanks"}}`: "#/edit/queue",
		`{"act":"edit","jobs":{"key":"k"},"edit":{"queue":"q"}}`:             "#/edit/queue",
		`{"act":"edit","jobs":{"kind":"mail"},"edit":{"priority":40000}}`:    "#/edit/priority",
	} {
		if p := r.as("operator-a").post("/operations", body).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want a fault at %s", body, p.Errors, pointer)
		}
	}
	var first, second struct {
		Operations []api.Operation
		Next       string
	}
	r.as("operator-a").get("/operations?limit=1").want(200, &first)
	r.as("operator-a").get("/operations?limit=1&cursor="+first.Next).want(200, &second)
	if len(first.Operations) != 1 || first.Operations[0].ID != edited.ID || len(second.Operations) != 1 || second.Operations[0].ID != op.ID {
		t.Errorf("the first page has %+v, the second %+v, want the edit and the cancellation", first, second)
	}
	r.as("operator-a").get("/operations?cursor=x").problem(422, "invalid_input")
	r.as("operator-a").post("/operations", `{"act":"cancel","jobs":{"tenant":"`+tenantB.String()+`"}}`).problem(403, "forbidden")
}

// An operation that stores the jobs it concerns, because they are many, says how many it has stored.
func TestAnOperationThatCollectsItsJobsSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	id := outbox.NewID()
	if _, err := r.db.Exec(t.Context(), `INSERT INTO outbox.operations (id, tenant_id, act, open_act, next_at, open_at, filter, per_second, matched, actor, reason, request_id)
		VALUES ($1, $2, 'replay', 'collect cancel', 'infinity', now(), '{"kind":"mail","statuses":["pending"],"as_of":"3:3:@0","collected":50000}', 0, 120000, 'ada', '', '')`, id, tenantA); err != nil {
		t.Fatal(err)
	}
	var op api.Operation
	if r.get("/operations/"+id.String()).want(200, &op); !op.Collecting || op.Collected != 50_000 || op.Act != "cancel" || op.State != "running" {
		t.Errorf("it is %+v, want it collecting, with 50 000 jobs", op)
	}
	if r.post("/operations/"+id.String()+"/stop", "").want(200, &op); !op.Collecting || op.Collected != 50_000 || op.State != "stopped" {
		t.Errorf("stopped, it is %+v, want it collecting, with 50 000 jobs", op)
	}
}
