package console_test

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestProblemsComeFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.get("").is(303)
	r.deadLetter(tenantA, "receipt.send", "smtp", "connection refused "+evil)
	r.enqueue("nobody.knows", `{}`, outbox.Options{Tenant: tenantB})
	if err := operator.New(r.db).Pause(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	r.get("problems").is(200).has("failed: smtp", evil, "Queue default is paused", "posthaste queues resume default")
	r.as("a").get("problems").is(200).has("failed: smtp").hasNot("nobody.knows")
	r.as("b").get("problems").is(200).hasNot("failed: smtp", "refused")
	r.as("+jobs.read").get("problems").is(403)
}

// A login of one tenant reads what was checked for it, and not that all was.
func TestNothingIsWrongWithWhatWasChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.as("b").get("problems").is(200).has("Nothing is wrong with your jobs", "sinks and the installation were not").hasNot("sinks and the installation were checked")
	r.get("problems").is(200).hasNot("Nothing is wrong with your jobs")
	// What is left out of many is counted.
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, run_at) SELECT outbox.uuid_v7(), $1, 'k', 'q' || n, '{}', now() - interval '5 minutes' FROM generate_series(1, 22) AS n`, tenantA)
	r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT $1, 'mail', 'k' || n, now() FROM generate_series(1, 25) AS n`, tenantA)
	r.as("a").get("problems").is(200).has("0 problems, 40 warnings, the worst of them; checked", "and 2 more: late queues Queues", "and more: parked keys Keys").hasSource(t, `href="keys?parked=1"`)
}

func TestNowAndSystem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("greet", `{}`, outbox.Options{Queue: "mail"})
	r.get("now").is(200).has("mail", "Oldest due", "No job has ended")
	r.exec(`UPDATE outbox.schema_files SET applied_at = now() - interval '90 days'`)
	r.exec(`INSERT INTO outbox.chores VALUES ('trim', now()) ON CONFLICT DO NOTHING`)
	r.get("system").is(200).has("posthaste doctor", "ok").hasNot("not answered", "has not all been removed")
	r.as("a").get("now").is(403)
	r.as("a").get("system").is(403)
}

// A problem with a sink leads to the sink, and is a sentence; a pause has one mark, of whatever it is.
func TestAProblemOfASinkLeadsToIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink, published, moved_at, top, paused_at) VALUES ('orders', 1, now(), 1, '2001-02-03T04:05:06Z')`)
	page := r.get("problems").is(200).has("Sink orders is paused since 3 Feb 2001 04:05:06").hasNot("sinks: sink", "since 2001-02")
	if !strings.Contains(page.Body.String(), `<a class="button" href="sink?name=orders">`) {
		t.Error("the problem does not lead to the sink")
	}
	for _, list := range []string{"sinks", "sink?name=orders"} {
		if !strings.Contains(r.get(list).is(200).Body.String(), `class="status is-paused"`) {
			t.Errorf("%s: a pause has another mark", list)
		}
	}
	r.get("system").is(200).has("About").hasNot("Question")
}

// What goes on is not marked as done, and what is a list is written as one.
func TestWordsOfActs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o, err := operator.New(r.db).StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, PerSecond: 10})
	if err != nil {
		t.Fatal(err)
	}
	page := r.get("operation?id="+o.ID.String()).is(200).has("going on", "10 a second").hasNot("Done –", "10.0 a second")
	if !strings.Contains(page.Body.String(), `class="status is-run"`) {
		t.Error("what goes on is marked as done")
	}
	r.exec(`INSERT INTO outbox.audit (actor, act, target, after) VALUES ('ada', 'token.create', 'shop', '{"capabilities": ["jobs.read", "admin.read"]}')`)
	r.get("audit").is(200).has("capabilities jobs.read, admin.read").hasNot(`["`)
}
