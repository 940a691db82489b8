package console_test

import (
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestQueues(t *testing.T) {
	newRig(t).get("queues").is(200).has("No queue has open jobs or rules", "counted")
	r := newRig(t)
	r.enqueue("greet", `{}`, outbox.Options{Queue: "a/b:c"})
	r.enqueue("greet", `{}`, outbox.Options{Queue: "mail", Tenant: tenantA})
	r.get("queues").is(200).has("a/b:c waiting – 1 0 0 0 0 0 0 s none", "mail waiting – 1")
	r.as("a").get("queues").is(200).has("mail waiting – 1 0 0 0 0 0 0 s none").hasNot("a/b:c")
	r.as("b").get("queues").is(200).has("No queue")
	r.get("queue?queue=a%2Fb%3Ac").is(200).has("a/b:c waiting", "1 pending", "Nothing runs", "No dispatcher works this queue now")
	r.as("a").get("queue?queue=mail").is(200).hasNot("Workers of this queue").has("Queues are shared by all tenants")
	r.get("queue").is(400)
}

// The oldest due job is that of the jobs that were counted: a tenant's, of its own. What is held or due later does not
// count.
func TestTheOldestDueJobIsOneOfThoseThatWereCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, job := range []struct {
		tenant outbox.ID
		queue  string
		due    string
		hold   bool
	}{
		{outbox.RootTenant, "mail", "5 hours", false},
		{outbox.RootTenant, "mail", "3 hours", false},
		{outbox.RootTenant, "mail", "9 hours", true},
		{tenantA, "mail", "2 hours", false},
		{tenantA, "later", "-1 hour", false},
	} {
		id := r.enqueue("k", `{}`, outbox.Options{Queue: job.queue, Tenant: job.tenant, Hold: job.hold})
		r.exec(`UPDATE outbox.jobs SET run_at = now() - $2::interval WHERE id = $1`, id, job.due)
	}
	r.get("queues").is(200).has("mail waiting – 3 0 0 1 0 0 5 h none", "later waiting – 1 0 0 0 0 0 – none")
	r.get("queue?queue=mail").is(200).has("waits for 5 h")
	r.as("a").get("queues").is(200).has("mail waiting – 1 0 0 0 0 0 2 h none", "later waiting – 1 0 0 0 0 0 – none")
	r.as("a").get("queue?queue=mail").is(200).has("waits for 2 h")
	r.as("a").get("queue?queue=later").is(200).hasNot("waits for")
}

// The list ends after a thousand queues; the page of another, and its forms, are of that queue all the same.
func TestAQueueBehindTheListIsShownAsItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload) SELECT outbox.uuid_v7(), $1, 'k', 'q' || n, '{}' FROM generate_series(1, 1000) n`, outbox.RootTenant)
	r.enqueue("k", `{}`, outbox.Options{Queue: "zeta"})
	r.confirm("queue-limits", url.Values{"queue": {"zeta"}, "running": {"7"}, "starts": {"10"}, "interval": {"1s"}}).is(303)
	paused := r.confirm("queue-pause", url.Values{"queue": {"zeta"}, "reason": {"x"}}).is(303).Header().Get("Location")
	r.get("queues").is(200).has("by name. A job’s page leads to any other").hasNot("zeta")
	r.get(paused).is(200).has("paused", "Resume", "Undo").hasSource(t, "queue-resume?")
	r.get("queue-resume?queue=zeta").is(200).has("1 job waiting")
	r.get("queue-limits?queue=zeta").is(200).hasSource(t, `value="7"`, `value="10"`)
}

// The job that has run longest may be older than as many others as a list reads.
func TestWhatHasRunLongestIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const run = `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() - $2::interval WHERE queue = $1 AND status = 'pending'`
	longest := r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Tenant: tenantA}).String()
	r.exec(run, "mail", "9 hours")
	r.enqueue("k", `{}`, outbox.Options{Queue: "other", Tenant: tenantA})
	r.exec(run, "other", "10 hours")
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload) SELECT outbox.uuid_v7(), $1, 'k', 'mail', '{}' FROM generate_series(1, 250)`, tenantA)
	r.exec(run, "mail", "1 hour")
	r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Tenant: tenantB})
	r.exec(run, "mail", "12 hours")
	r.get("queue?queue=mail").is(200).has("12 h", "9 h", "All that run").hasNot("10 h")
	r.as("a").get("queue?queue=mail").is(200).has("9 h", "All that run").hasSource(t, longest).hasNot("10 h", "12 h")
	r.as("b").get("queue?queue=mail").is(200).has("12 h").hasNot("All that run", "9 h")
}

func TestAQueueIsPausedInTwoSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("greet", `{}`, outbox.Options{Queue: "mail"})
	r.get("queue-pause?queue=mail").is(200).has("1 job waiting now", "posthaste queues pause mail", "It can be undone")
	r.get("queue?queue=mail").is(200).hasNot("paused")
	a := r.confirm("queue-pause", url.Values{"queue": {"mail"}, "reason": {"the relay is down"}}).is(303)
	if got := a.Header().Get("Location"); !strings.HasPrefix(got, "queue?queue=mail&done=") {
		t.Errorf("led to %s", got)
	}
	r.get(a.Header().Get("Location")).is(200).has("mail paused 0 s", "The queue is paused", "Undo", "“the relay is down”", "queue.pause")
	entries, err := operator.New(r.db).Audit(t.Context(), operator.AuditFilter{Act: "queue.pause"})
	if err != nil || len(entries) != 1 || entries[0].Actor != "all" || entries[0].Reason != "the relay is down" || entries[0].RequestID != a.Header().Get("X-Request-Id") {
		t.Errorf("got %+v, %v", entries, err)
	}
	r.confirm("queue-resume", url.Values{"queue": {"mail"}}).is(303)
	r.get("queues").is(200).has("mail waiting")
	r.as("a").post("queue-pause", url.Values{"queue": {"mail"}}).is(403)
	r.post("queue-pause", url.Values{"queue": {"a b"}, "shown": {"on"}}).is(400).has("That is not acceptable")
}

// confirm sends the form of an act, with what its page has shown if that is limits.
func (r *rig) confirm(page string, form url.Values) answer {
	r.t.Helper()
	form = maps.Clone(form)
	thing := url.Values{}
	for _, name := range []string{"queue", "tenant", "name", "id"} {
		if form.Has(name) {
			thing.Set(name, form.Get(name))
		}
	}
	form.Set("shown", r.get(page+"?"+thing.Encode()).is(200).fieldsOf().Get("shown"))
	return r.post(page, form)
}

// Two people open the form of the limits. What the second one sends would undo what the first one has set.
func TestLimitsAreNotSetOverThoseOfSomebodyElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	page := "queue-limits?queue=mail"
	for _, set := range []url.Values{
		{"running": {"4"}, "starts": {"100"}, "interval": {"1m"}}, {"running": {"4"}, "starts": {"100"}, "interval": {"2m"}}, {"running": {""}},
	} {
		form := r.get(page).is(200).has("If somebody changes them before you confirm").fieldsOf()
		other := r.as("all+admin.mutate,admin.read,jobs.read")
		theirs := other.get(page).is(200).fieldsOf()
		maps.Copy(theirs, set)
		other.post("queue-limits", theirs).is(303)
		want := r.get("queue?queue=mail").is(200).text()
		form.Set("running", "7")
		r.post("queue-limits", form).is(409).has("was changed meanwhile", "all+admin.mutate,admin.read,jobs.read did queue.limit")
		if bad := form; true {
			bad.Set("running", "many")
			if again := r.post("queue-limits", bad).is(400).fieldsOf().Get("shown"); again != form.Get("shown") {
				t.Errorf("the form that is shown again compares with %q, want %q", again, form.Get("shown"))
			}
		}
		if got := r.get("queue?queue=mail").is(200); !strings.Contains(got.text(), "Limits "+strings.Split(strings.Split(want, "Limits ")[1], " Counted")[0]) {
			t.Errorf("the limits are not theirs any more: %s", got.text())
		}
	}
	r.post("queue-limits", url.Values{"queue": {"mail"}, "running": {"7"}}).is(400)
}

func TestLimitsOfAQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, form := range map[string]url.Values{
		"running":  {"queue": {"mail"}, "running": {"0"}},
		"starts":   {"queue": {"mail"}, "starts": {"many"}, "interval": {"1s"}},
		"interval": {"queue": {"mail"}, "starts": {"10"}, "interval": {"1"}},
	} {
		a := r.confirm("queue-limits", form).is(400)
		if !strings.Contains(a.Body.String(), `value="`+form.Get(name)+`"`) {
			t.Errorf("%s: what was entered is gone: %s", name, a.text())
		}
	}
	limited := r.confirm("queue-limits", url.Values{"queue": {"mail"}, "running": {"4"}, "starts": {"100"}, "interval": {"1m"}}).is(303)
	r.get(limited.Header().Get("Location")).is(200).has("Running 0 of 4", "4 at once, 100 in 1m", "hold from the next claim on")
	r.get("queue-limits?queue=mail").is(200)
	r.confirm("queue-limits", url.Values{"queue": {"mail"}}).is(303)
	r.get("queue?queue=mail").is(200).hasNot("4 at once")
}

type greeting struct {
	Name string `json:"name"`
}

func (greeting) Kind() string { return "greet" }

func TestKinds(t *testing.T) {
	t.Parallel()
	var schemas kinds.Schemas
	if err := kinds.AddType[greeting](&schemas); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *console.Config) { c.Kinds = &schemas })
	id := r.evilJob(outbox.RootTenant)
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
		VALUES ('w-1', 'v1', '{default}', '{4}', '{evil.kind}', true)`)
	r.get("kinds").is(200).has("greet – no worker checked by a schema", "evil.kind – 1 worker any")
	r.get("kind?kind=greet").is(200).has(`"name"`, "None: jobs of this kind wait", "None was found")
	r.get("kind?kind=evil.kind").is(200).has("w-1", evil, "Dead letters of the last 7 days", id.String()[:8])
	r.as("b").get("kind?kind=evil.kind").is(200).hasNot("onerror", "w-1")
	r.get("kind").is(400)
}
