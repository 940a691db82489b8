package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// mostStatements is how many statements a page takes, whatever it shows. What begins, ties, bounds and ends a
// transaction is not counted: it reads nothing, and nearly all of it is sent along with a statement. What package watch
// reads for all viewers together is not a page's.
const mostStatements = 7

// noPages are the routes that answer with something else than a page of their own.
var noPages = map[string]string{
	"events":   "a stream, whose reader asks for all streams together",
	"provider": "leads to a provider, which this console has not",
	"callback": "a provider leads back to it",
}

// Every page of the table of routes, for somebody who sees all tenants and for one of a tenant.
func TestEveryPageTakesFewStatements(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	addresses := r.furnish()
	seen := map[string]bool{}
	for _, row := range console.Table() {
		if row.Method != http.MethodGet || noPages[row.Path] != "" {
			continue
		}
		seen[row.Path] = true
		queries := addresses[row.Path]
		if len(queries) == 0 {
			queries = []string{""}
		}
		for _, token := range []string{"all", "a"} {
			if row.Everything && token != "all" {
				continue
			}
			for _, query := range queries {
				r.as(token).countStatements(row.Path + query)
			}
		}
	}
	for path := range addresses {
		if !seen[path] {
			t.Errorf("%s is no page", path)
		}
	}
}

// countStatements fails if the page takes too many.
func (r *rig) countStatements(page string) {
	r.t.Helper()
	cookies := r.cookies()
	get := func() int {
		req := httptest.NewRequestWithContext(r.t.Context(), http.MethodGet, "/"+page, nil)
		for _, c := range cookies {
			req.AddCookie(c)
		}
		return r.send(req).Code
	}
	get() // what package watch reads for all viewers together is there then
	r.asked.take()
	if code := get(); code != http.StatusOK && code != http.StatusSeeOther {
		r.t.Errorf("%s as %s: got %d", page, r.token, code)
	}
	asked := r.asked.take()
	if r.t.Logf("%s as %s: %d", page, r.token, len(asked)); len(asked) > mostStatements {
		r.t.Errorf("%s as %s takes %d statements, want at most %d:\n%s", page, r.token, len(asked), mostStatements, strings.Join(asked, "\n"))
	}
}

// furnish stores something of everything that pages show, and returns the parameters of the pages that take some, as
// addresses have them.
func (r *rig) furnish() map[string][]string {
	r.t.Helper()
	ctx := r.t.Context()
	r.exec(`GRANT UPDATE (payload) ON outbox.jobs TO outbox_api`) // so that there is the page of an edit
	dead := r.evilJob(tenantA)
	jobs := map[string]outbox.ID{
		"waiting": r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail"}),
		"blocked": r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Key: outbox.KeyRules{Name: "k", Ordered: true}}),
		"behind":  r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Key: outbox.KeyRules{Name: "k", Ordered: true}}),
		"held":    r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA, Hold: true}),
		"running": r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA}),
		"retried": r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA}),
		"closed":  r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA}),
	}
	for range 60 {
		r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	}
	for _, name := range []string{"running", "retried", "closed"} {
		r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, jobs[name])
	}
	r.exec(`UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL WHERE id = $1`, jobs["retried"])
	r.exec(`WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, finished_at, closed_from, lost_leases, result)
		SELECT id, tenant_id, queue, kind, 'succeeded', payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, started_at, now(), status, 0, '{}' FROM gone`, jobs["closed"])
	r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v1', '{mail,default}', '{4,4}', '{greet}', true)`)
	r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', now())`, tenantA)
	r.exec(`INSERT INTO outbox.queues (queue, paused_at, max_running, rate, rate_interval) VALUES ('mail', now(), 3, 10, interval '1 s')`)
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 's', interval '1 day', 'greet', '{}', now() + interval '1 day')`, tenantA)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('shop')`)
	r.exec(`INSERT INTO outbox.measured SELECT m, m - interval '1 min', true FROM generate_series(date_trunc('minute', now()) - interval '1 h', date_trunc('minute', now()), '1 min') AS m`)
	operation, err := operator.New(r.db).As(operator.Actor{Name: "ada"}).Because("the shop is back").StartOperation(ctx, operator.OperationSpec{
		Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Kind: "none", Tenant: tenantA},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := operator.New(r.db).As(operator.Actor{Name: "ada"}).PauseSchedule(ctx, tenantA, "s"); err != nil {
		r.t.Fatal(err)
	}
	paused := r.read(`SELECT max(id)::text FROM outbox.audit WHERE act = 'schedule.pause'`)
	for _, tenant := range []string{tenantA.String(), outbox.ID{}.String()} {
		r.exec(`INSERT INTO outbox.saved_views VALUES ($1, '', 'late', 'status=pending', 'ada')`, tenant)
	}
	var every []string
	for _, id := range jobs {
		every = append(every, "?id="+id.String())
	}
	every = append(every, "?id="+dead.String(), "?reveal=1&whole=1&id="+dead.String())
	slices.Sort(every)
	of := func(name string) []string { return []string{"?id=" + jobs[name].String()} }
	key := "?" + url.Values{"tenant": {tenantA.String()}, "queue": {"default"}, "key": {"k"}}.Encode()
	schedule := []string{"?tenant=" + tenantA.String() + "&name=s"}
	found := map[string][]string{
		"find": {"?q=greet"}, "job": every, "payload": of("waiting"), "result": of("closed"), "rows": {"?id=" + jobs["waiting"].String() + "," + jobs["closed"].String()},
		"jobs":    {"", "?kind=greet&status=pending", "?key=k&queue=default", "?status=succeeded&since=1h", "?q=greet", "?payload=x&acted=x&of=2"},
		"letters": {"", "?kind=evil.kind", "?error=x"}, "audit": {"", "?actor=x&act=job.retry"}, "now": {"", "?range=14d"},
		"queue": {"?queue=default", "?queue=mail&range=14d"}, "kind": {"?kind=greet"}, "key": {key}, "sink": {"?name=shop"},
		"operation": {"?id=" + operation.ID.String()}, "job-edit": {"?id=" + dead.String()}, "schedule": schedule,
		"job-retry": {"?id=" + dead.String()}, "job-dismiss": {"?id=" + dead.String()}, "job-cancel": of("running"), "job-release": of("held"),
		"selected-retry": {"?kind=greet&id=" + jobs["waiting"].String() + "&id=" + dead.String()}, "selected-dismiss": {"?from=letters&id=" + dead.String()},
		"selected-cancel": of("running"), "selected-release": of("held"),
		"jobs-edit": {"?kind=greet", "?kind=greet&set_priority=3"}, "key-unblock": {key},
		"undo": {"?entry=" + paused}, "view-save": {"?search=kind%3Dgreet"}, "view-delete": {"?name=late&shared=1"},
	}
	for _, path := range []string{"jobs-export", "letters-export", "audit-export"} {
		found[path] = []string{"?format=csv"}
	}
	for _, path := range []string{"queue-pause", "queue-resume", "queue-limits"} {
		found[path] = []string{"?queue=mail"}
	}
	for _, path := range []string{"operation-stop", "operation-resume"} {
		found[path] = found["operation"]
	}
	for _, path := range []string{"schedule-pause", "schedule-resume", "schedule-run", "schedule-delete"} {
		found[path] = schedule
	}
	for _, path := range []string{"sink-pause", "sink-resume"} {
		found[path] = found["sink"]
	}
	return found
}
