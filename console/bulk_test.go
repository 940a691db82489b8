package console_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)

// hiddenFields returns the hidden fields of the form of an act.
func (a answer) hiddenFields() url.Values {
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(a.Body.String(), -1) {
		if m[1] != "back" {
			form.Set(m[1], html.UnescapeString(m[2]))
		}
	}
	return form
}

// All that match are acted on, by an operation: those that were counted, whatever page they are on.
func TestAllOpenJobsOfASearchAreActedOn(t *testing.T) {
	for act, c := range map[string]struct {
		hold          bool
		says, becomes string
		verb          string
	}{
		"jobs-cancel":  {false, "Cancel 2 jobs", "cancelled", "cancelled"},
		"jobs-release": {true, "Release 2 jobs", "pending", "released"},
		"jobs-retry":   {false, "Run 2 jobs now", "pending", "made due"},
	} {
		t.Run(act, func(t *testing.T) {
			r := newRig(t)
			enqueue := func(tenant outbox.ID, kind string) outbox.ID {
				return r.enqueue(kind, `{}`, outbox.Options{Tenant: tenant, Hold: c.hold})
			}
			first, second, other, foreign := enqueue(tenantA, "k"), enqueue(tenantA, "k"), enqueue(tenantA, "other"), enqueue(tenantB, "k")
			was := r.statusOf(other)
			r.as("a").get("jobs?kind=k&since=2h").is(200).has("All that match, on every page")
			page := r.as("a").get(act+"?kind=k&since=2h").is(200).has(c.says, "2 "+was, "can be stopped", "posthaste operations start "+act[len("jobs-"):]+" --kind k --created-since 2", " --as-of ")
			late := enqueue(tenantA, "k")
			form := page.hiddenFields()
			if form.Get("since") == "2h" {
				t.Error("the form says how long ago, which is another instant when it is sent")
			}
			r.as("a").post(act, form).is(400).has("A reason is missing")
			form.Set("reason", "wrong campaign")
			r.as("a+jobs.read,admin.read").post(act, form).is(403)
			bare := url.Values{"kind": {"k"}, "matched": {"2"}, "once": {outbox.NewID().String()}, "reason": {"x"}}
			r.as("a").post(act, bare).is(400).has("as_of")
			bare.Set("as_of", "yesterday")
			r.as("a").post(act, bare).is(400)
			r.as("a").post(act, form).is(303)
			o := operator.New(r.db)
			for range 3 {
				if _, err := o.StepOperation(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for id, want := range map[outbox.ID]string{first: c.becomes, second: c.becomes, late: was, other: was, foreign: was} {
				if got := r.statusOf(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			if n := r.audited("job."+act[len("jobs-"):], "wrong campaign"); n != 2 {
				t.Errorf("the audit has %d acts, want 2", n)
			}
			r.as("a").get("operations").is(200).has("done", "2 "+c.verb+" of 2", "kind k", "wrong campaign")
			r.as("b").get("operations").is(200).has("No operations")
		})
	}
	r := newRig(t)
	r.deadLetter(tenantA, "k", "c", "m")
	r.get("jobs?status=dead").is(200).hasNot("All that match")
	r.as("a").get("jobs-cancel?tenant=" + tenantB.String()).is(403)
}

// An edit is said first, then previewed with some of the jobs, then done to those that were counted.
func TestAllWaitingJobsOfASearchAreEdited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, keyed := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA}), r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Key: outbox.KeyRules{Name: "x"}})
	r.as("a").get("jobs?kind=k").is(200).has("Edit all")
	asked := r.as("a").get("jobs-edit?kind=k").is(200).has("Edit all jobs that match", "Preview").hasNot("Reason")
	if !strings.Contains(asked.Body.String(), `name="kind" value="k"`) {
		t.Error("the form forgets which jobs are meant")
	}
	for mistake, says := range map[string]string{
		"set_priority=high": "“high” is no priority", "set_priority=40000": "is no priority", "set_queue=no+blanks": "The queue is", "set_run_at=soon": "“soon” is no time",
		"key=x&set_queue=slow": "The queue is not for jobs of a key",
	} {
		r.as("a").get("jobs-edit?kind=k&"+mistake).is(200).has("Edit all jobs that match", says)
	}
	page := r.as("a").get("jobs-edit?kind=k&set_queue=slow&set_priority=-7&set_run_at=2h").is(200).
		has("Edit 2 jobs", "Each gets queue slow, priority -7, the time ", "1 of them have a key", "These jobs", " --set-queue=slow --set-priority=-7 --set-run-at=2")
	if !strings.Contains(page.Body.String(), `data-job="`+first.String()) {
		t.Error("the preview shows none of the jobs")
	}
	late := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
	form := page.hiddenFields()
	form.Set("reason", "make room")
	r.as("a").post("jobs-edit", form).is(303)
	o := operator.New(r.db)
	for range 2 {
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[outbox.ID]string{first: "slow", keyed: "default", late: "default"} {
		if job, err := o.Job(t.Context(), id); err != nil || job.Queue != want || (job.Priority == -7) != (want == "slow") {
			t.Errorf("%s is %+v, %v, want it in %s", id, job, err, want)
		}
	}
	r.as("a").get("operations").is(200).has("1 edited of 2, 1 left alone")
	if n := r.audited("job.edit", "make room"); n != 1 {
		t.Errorf("the audit has %d edits, want 1", n)
	}
}

// Of more than a thousand jobs the person types how many they are.
func TestTheNumberOfManyJobsIsTyped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.jobs (id, kind, payload) SELECT outbox.uuid_v7(), 'k', '{}' FROM generate_series(1, 1001)`)
	page := r.get("jobs-cancel?kind=k").is(200).has("Type 1001", "The newest of them")
	form := page.hiddenFields()
	form.Set("reason", "x")
	r.post("jobs-cancel", form).is(400).has("The number does not match")
	form.Set("typed", "1000")
	r.post("jobs-cancel", form).is(400).has("Nothing was changed")
	form.Del("matched")
	r.post("jobs-cancel", form).is(400).has("matched")
	form.Set("matched", "1001")
	form.Set("typed", " 1 001 ")
	r.post("jobs-cancel", form).is(303)
	r.exec(`DELETE FROM outbox.jobs WHERE id IN (SELECT id FROM outbox.jobs LIMIT 1)`)
	r.get("jobs-cancel?kind=k").is(200).hasNot("Type 1")
}

// Of a search for jobs on which an act is not possible there is nothing to confirm, and no command, which would act on
// others.
func TestAnActOnNothingHasNoCommand(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": tenantA} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			waits := r.enqueue("k", `{}`, outbox.Options{Tenant: tenant})
			for page, says := range map[string]string{
				"jobs-cancel?status=succeeded":                  "Nothing to cancel",
				"jobs-cancel?status=succeeded&status=dismissed": "those that are succeeded or dismissed",
				"jobs-release?kind=k&status=pending":            "Nothing to release",
				"jobs-retry?status=running":                     "jobs that are pending or retrying",
				"jobs-edit?status=running&set_priority=1":       "Nothing to edit",
			} {
				r.get(page+"&tenant="+tenant.String()).is(409).has(says).hasNot("posthaste operations", "--all", waits.String()[:8])
			}
			form := r.get("jobs-cancel?status=pending&status=succeeded").is(200).has("--status pending").hasNot("--all").fieldsOf()
			form.Set("status", "succeeded")
			form.Set("reason", "x")
			r.post("jobs-cancel", form).is(409).has("Nothing to cancel")
		})
	}
}
