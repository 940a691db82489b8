package console_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A search finds jobs by a worker, an error’s code, an attempt, the beginning of an id, and when they ended.
func TestJobsAreFoundByWhatHappenedToThem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.deadLetter(tenantA, "sent", "smtp", "connection refused")
	running := r.enqueue("running", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 3, max_attempts = 5, lease_owner = 'w-1', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, running)
	ended := r.enqueue("ended", `{}`, outbox.Options{Tenant: tenantA})
	r.running(ended)
	r.exec(`WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, finished_at, closed_from, lost_leases)
		SELECT id, tenant_id, queue, kind, 'succeeded', payload, content_type, priority, run_at, created_at, 1, max_attempts, epoch, now(), now(), status, 0 FROM gone`, ended)
	for typed, kind := range map[string]string{
		"error:smtp": "sent", "code:smtp": "sent", "id:" + dead.String(): "sent", "worker:w-1": "running", "worker:w-1 status:running": "running",
		"attempt:3": "running", "finished_since:1h": "ended",
	} {
		to := r.as("a").get("jobs?q=" + url.QueryEscape(typed)).is(303).Header().Get("Location")
		page := r.as("a").get(to).is(200).has("1 job shown", kind)
		for _, other := range []string{"sent", "running", "ended"} {
			if row := `kind=` + other; other != kind && strings.Contains(page.Body.String(), row) {
				t.Errorf("%s lists the job of the kind %s", typed, other)
			}
		}
	}
	r.as("a").get("jobs?finished_until=1h").is(200).has("No job matches")
	for _, q := range []string{"worker=w-1", "attempt=3"} {
		r.as("a+jobs.read").get("jobs?" + q).is(403).has("admin.read")
		r.as("a+jobs.read").get("jobs-export?format=csv&" + q).is(403)
	}
	r.as("a+jobs.read").get("jobs").is(200).has("finished_since:").hasNot("worker:", "attempt:", "payload:")
	r.get("jobs").is(200).has("worker:", "attempt:", "payload:", "error:")
	r.as("a").get("jobs?code=smtp").is(200).hasNot("All that match") // no operation knows it
	r.as("a").get("live?q=worker:w").is(400).has("does not say its job’s worker")
}

// A link from a list to a part of it keeps the conditions of the list.
func TestLinksNarrowTheSearchDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail"})
	const kind, queue = `href="jobs?kind=greet&amp;since=2h&amp;status=pending"`, `href="jobs?queue=mail&amp;since=2h&amp;status=pending"`
	list := r.as("a").get("jobs?status=pending&since=2h").is(200).hasHTML(kind, queue, `data-of="since=2h&amp;status=pending"`)
	id := strings.Split(strings.Split(list.Body.String(), `data-job="`)[1], `"`)[0]
	r.as("a").get("rows?id="+id+"&of="+url.QueryEscape("since=2h&status=pending")).is(200).hasHTML(kind, queue)
	r.as("a").get("rows?id=" + id + "&of=colour%3Dred").is(400)
}

// Where nothing is found, the page offers the search without each of its conditions, and an idempotency key is found.
func TestASearchWithoutMatchesLeadsOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("greet", `{}`, outbox.Options{IdempotencyKey: "order-17"})
	r.get("jobs?kind=x&queue=y&status=dead").is(200).has("Without kind:x", "Without queue:y", "Without status:dead").
		hasHTML(`href="jobs?kind=x&amp;status=dead"`).hasNot("idempotency")
	r.leads("find?q=order-17", "jobs?q=order-17")
	r.leads("jobs?q=order-17", "jobs?kind=order-17")
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v1', '{mail}', '{4}', '{greet}', true)`)
	r.get("jobs?kind=order-17").is(200).has("is an idempotency key").hasHTML(`name="idempotency" value="order-17"`, `<option value="greet">`).hasNot("Without kind")
	r.leads("find?idempotency=order-17&kind=greet", "job?id="+id.String())
	r.get("find?idempotency=order-17&kind=other").is(404).has("No job has this idempotency key", "the tenant root")
	theirs := r.enqueue("greet", `{}`, outbox.Options{IdempotencyKey: "order-18", Tenant: tenantA})
	r.get("jobs?kind=order-18").is(200).hasHTML(`name="tenant" value="root"`)
	r.get("find?idempotency=order-18&kind=greet&tenant=root").is(404)
	r.leads("find?idempotency=order-18&kind=greet&tenant="+tenantA.String(), "job?id="+theirs.String())
	r.as("a").get("jobs?kind=order-18").is(200).has("is an idempotency key").hasNot("which tenant")
	r.as("b").get("find?idempotency=order-17&kind=greet").is(404)
	r.as("b").get("find?idempotency=order-17&kind=greet&tenant=" + outbox.RootTenant.String()).is(403)
}
