package console_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What a page names leads to its page, and a number to what it counts.
func TestWhatAPageNamesIsALink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v1', '{mail}', '{4}', '{greet}', true)`)
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, queue, payload, next_at) VALUES ($1, 's', interval '1 day', 'greet', 'mail', '{}', now() + interval '1 day')`, tenantA)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('shop')`)
	key := outbox.KeyRules{Name: "k/1", Ordered: true}
	running := r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail", Key: key})
	r.running(running)
	r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail", Key: key})
	letter := r.letterOf(tenantA, outbox.KeyRules{Name: "k/2"}, "c")
	r.exec(`UPDATE outbox.jobs SET error_fingerprint = 'c1' WHERE id = $1`, letter)
	r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'mail', 'k/2', now())`, tenantA)
	acts := operator.New(r.db).As(operator.Actor{Name: "ada"})
	started, err := acts.Because("test").StartOperation(ctx, operator.OperationSpec{Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Kind: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{acts.Pause(ctx, "other"), acts.PauseSchedule(ctx, tenantA, "s"), acts.PauseSink(ctx, "shop")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.exec(`INSERT INTO outbox.audit (actor, act, tenant_id, queue, target) VALUES ('ada', 'key.unblock', $1, 'mail', 'k/1'), ('ada', 'schedule.delete', $1, NULL, 'gone')`, tenantA)

	to := func(page string, pairs ...string) string {
		q := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		return `href="` + page + "?" + strings.ReplaceAll(q.Encode(), "&", "&amp;") + `"`
	}
	worker, tenant := to("jobs", "worker", "w", "status", "running"), tenantA.String()
	ofKey := func(name string) string { return to("key", "tenant", tenant, "queue", "mail", "key", name) }
	for page, links := range map[string][]string{
		"workers":                          {worker},
		"queue?queue=mail":                 {worker, to("jobs", "queue", "mail", "kind", "greet", "status", "running")},
		"kind?kind=greet":                  {worker, to("jobs", "kind", "greet", "queue", "mail")},
		"jobs?status=running":              {worker},
		"job?id=" + running.String():       {worker, ofKey("k/1")},
		"schedules":                        {to("queue", "queue", "mail"), to("kind", "kind", "greet")},
		"schedule?name=s&tenant=" + tenant: {to("jobs", "kind", "greet", "queue", "mail", "tenant", tenant), to("job", "id", running.String())},
		"keys":                             {to("queue", "queue", "mail"), ofKey("k/2")},
		"letters?kind=k&error=c1":          {ofKey("k/2"), to("letters", "kind", "k", "error", "c1", "queue", "mail")},
		"now":                              {to("jobs", "status", "running"), to("jobs", "status", "blocked"), `href="letters"`, to("jobs", "queue", "mail", "status", "failed,dead")},
		"audit":                            {to("queue", "queue", "other"), to("schedule", "tenant", tenant, "name", "s"), to("sink", "name", "shop"), ofKey("k/1"), to("operation", "id", started.ID.String())},
	} {
		source := r.get(page).is(200).hasHTML(links...).Body.String()
		if strings.Contains(source, "name=gone") {
			t.Errorf("%s leads to a schedule that was deleted", page)
		}
		_, main, _ := strings.Cut(source, "<main")
		for _, link := range regexp.MustCompile(`href="([a-z-]+(?:\?[^"]*)?)"`).FindAllStringSubmatch(main, -1) {
			if address := strings.ReplaceAll(link[1], "&amp;", "&"); r.get(address).Code >= 400 {
				t.Errorf("%s leads to %s, which answers with an error", page, address)
			}
		}
	}
	r.as("a+jobs.read").get("job?id="+running.String()).is(200).hasNot(worker, `href="key?`)
	r.as("a").get("audit").is(200).hasNot(`href="sink?`) // it concerns all tenants
	r.get("key?queue=mail&key=gone").is(404).has("Jobs that had it").hasHTML(to("jobs", "queue", "mail", "key", "gone"))
}
