package api_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Callers that may see all tenants may ask for one; others have their own, and are
// refused another's before anybody looks.
func TestListsAndCountsAreOfATenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ofB, ofA := r.as("operator-b").reach(outbox.Dead), r.as("operator-a").reach(outbox.Dead)
	type page struct {
		Jobs        []api.Job
		DeadLetters []api.DeadLetter
		Next        string
	}
	ids := func(answer response) (ids []string) {
		t.Helper()
		var p page
		answer.want(200, &p)
		for _, l := range p.DeadLetters {
			p.Jobs = append(p.Jobs, l.Job)
		}
		for _, j := range p.Jobs {
			ids = append(ids, j.ID)
		}
		return ids
	}
	root := r.as("root")
	for _, list := range []string{"/jobs", "/dead-letters"} {
		if got := ids(root.get(list)); !cmp.Equal(got, []string{ofA, ofB}) {
			t.Errorf("%s of all tenants = %v", list, got)
		}
		if got := ids(root.get(list + "?tenant=" + tenantA.String())); !cmp.Equal(got, []string{ofA}) {
			t.Errorf("%s of A = %v, want %s", list, got, ofA)
		}
		r.as("operator-b").reach(outbox.Dead)
		link := root.get(list+"?limit=1&tenant="+tenantB.String()).want(200, nil).Header().Get("Link")
		if got := ids(root.get(list + link[1:len(link)-len(`>; rel="next"`)])); !cmp.Equal(got, []string{ofB}) {
			t.Errorf("%s of B, the second page = %v, want %s", list, got, ofB)
		}
		if _, err := r.db.Exec(t.Context(), `DELETE FROM outbox.jobs WHERE id NOT IN ($1, $2)`, ofA, ofB); err != nil {
			t.Fatal(err)
		}
	}
	var groups struct{ Groups []api.DeadLetterGroup }
	if root.get("/dead-letters/groups?tenant="+tenantB.String()).want(200, &groups); len(groups.Groups) != 1 || groups.Groups[0].Example != ofB {
		t.Errorf("groups of B = %+v", groups.Groups)
	}
	var stats api.Stats
	if root.get("/stats?tenant="+tenantB.String()).want(200, &stats); stats.DeadLetters != 1 {
		t.Errorf("stats of B = %+v", stats)
	}
	var queues struct{ Queues []api.Queue }
	if root.get("/queues?tenant="+tenantA.String()).want(200, &queues); len(queues.Queues) != 1 || queues.Queues[0].Jobs["dead"] != 1 {
		t.Errorf("queues of A = %+v", queues.Queues)
	}
	for _, target := range []string{"/jobs", "/dead-letters", "/dead-letters/groups", "/queues", "/stats"} {
		r.as("operator-a").get(target+"?tenant="+tenantA.String()).want(200, nil)
		r.as("operator-a").get(target+"?tenant="+tenantB.String()).problem(403, "forbidden")
		for _, none := range []string{"x", "00000000-0000-0000-0000-000000000000"} { // the second would be any
			if p := root.get(target+"?tenant="+none).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Parameter != "tenant" {
				t.Errorf("%s of %s: errors = %+v", target, none, p.Errors)
			}
		}
	}
}

// An act by filter means what the list does.
func TestActsAreOnATenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ofB, ofA := r.as("operator-b").reach(outbox.Dead), r.as("operator-a").reach(outbox.Dead)
	for _, route := range []string{"/jobs/retry", "/dead-letters/replay", "/dead-letters/dismiss"} {
		body := func(tenant string) string {
			return `{"filter":{"kind":"mail","tenant":"` + tenant + `"},"dryRun":true}`
		}
		r.as("operator-a").post(route, body(tenantB.String())).problem(403, "forbidden")
		if p := r.as("root").post(route, body("00000000-0000-0000-0000-000000000000")).problem(422, "invalid_input"); len(p.Errors) != 1 || p.Errors[0].Pointer != "#/filter/tenant" {
			t.Errorf("%s of no tenant: errors = %+v", route, p.Errors)
		}
		var got struct{ Matched, Done int }
		if r.as("root").post(route, body(tenantB.String())).want(200, &got); got.Matched+got.Done != 1 {
			t.Errorf("%s of B = %+v, want one", route, got)
		}
	}
	r.as("root").post("/jobs/dismiss", `{"filter":{"tenant":"`+tenantB.String()+`"}}`).want(200, nil)
	r.as("root").post("/dead-letters/replay", `{"filter":{"tenant":"`+tenantB.String()+`"}}`).want(200, nil)
	if a, b := r.as("operator-a").getJob(ofA).Status, r.as("operator-b").getJob(ofB).Status; a != "dead" || b != "dismissed" {
		t.Errorf("of A it is %s, of B %s; want only B's dismissed", a, b)
	}
}

// The zero id means any to the operator: nobody gets what belongs to any job by naming none.
func TestTheZeroIDIsNoJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, who := range []string{"root", "operator-a"} {
		for _, path := range []string{"/audit?job_id=", "/jobs?parent="} {
			r.as(who).get(path+outbox.ID{}.String()).problem(422, "invalid_input")
			r.as(who).get(path+outbox.NewID().String()).want(200, nil)
		}
	}
}
