package console_test

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// reads returns who has read what of a job, by the audit.
func (r *rig) reads(id outbox.ID) (all []string) {
	r.t.Helper()
	rows, err := r.db.Query(r.t.Context(), `SELECT concat_ws(' ', actor, target, tenant_id, queue) FROM outbox.audit
		WHERE act = 'payload.read' AND job_id = $1 ORDER BY id`, id)
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func TestWhoReadsWhatIsMaskedIsAudited(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t, func(c *console.Config) { c.AuditReads = true })
	for _, tenant := range []outbox.ID{outbox.RootTenant, tenantA} {
		id := r.deadWith(tenant, "k", `{"password": "hunter2", "to": "ada"}`)
		r.get("job?id=" + id.String()).is(200).hasNot("hunter2")
		r.get("job-edit?id=" + id.String()).is(200).hasNot("hunter2")
		if got := r.reads(id); len(got) != 0 {
			t.Errorf("the audit has %q of masked pages", got)
		}
		r.get("job?reveal=1&id=" + id.String()).is(200).has("hunter2")
		r.get("payload?id=" + id.String()).is(200).has("hunter2")
		r.get("job-edit?reveal=1&id=" + id.String()).is(200).has("hunter2")
		epoch := ""
		if err := r.db.QueryRow(t.Context(), `SELECT epoch::text FROM outbox.jobs WHERE id = $1`, id).Scan(&epoch); err != nil {
			t.Fatal(err)
		}
		form := url.Values{"id": {id.String()}, "epoch": {epoch}, "reveal": {"1"}, "payload": {`{"password": "hunter3"}`}}
		r.post("job-edit", form).is(200).has("hunter2")
		want := ""
		for _, where := range []string{"page", "payload", "edit", "edit"} {
			want += fmt.Sprintf("all %s %s default\n", where, tenant)
		}
		if got := strings.Join(r.reads(id), "\n") + "\n"; got != want {
			t.Errorf("the audit has\n%swant\n%s", got, want)
		}
		foreign := r.as("b").get("payload?id=" + id.String())
		if foreign.is(404); len(r.reads(id)) != 4 {
			t.Errorf("the audit has %q, with a read that was refused", r.reads(id))
		}
	}
}

func TestADownloadOfAResultIsAudited(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) { c.AuditReads = true })
	id := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`
		WITH gone AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, finished_at, closed_from, lost_leases, result)
		SELECT id, tenant_id, queue, kind, 'succeeded', payload, content_type, priority, run_at, created_at, 1, max_attempts, epoch, now(), 'running', 0, '{}' FROM gone`, id)
	r.get("result?id=" + id.String()).is(200)
	if got, want := r.reads(id), "all result "+tenantA.String()+" default"; len(got) != 1 || got[0] != want {
		t.Errorf("the audit has %q, want %q", got, want)
	}
}

// What cannot be recorded is not shown.
func TestNothingIsRevealedUnrecorded(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t, func(c *console.Config) { c.AuditReads = true })
	id := r.deadWith(tenantA, "k", `{"password": "hunter2"}`).String()
	r.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'standby' USING ERRCODE = '25006'; END $$`)
	r.exec(`CREATE TRIGGER refuse BEFORE INSERT ON outbox.audit FOR EACH ROW EXECUTE FUNCTION refuse()`)
	for _, page := range []string{"job?reveal=1&id=", "payload?id=", "job-edit?reveal=1&id="} {
		r.get(page + id).is(503).has("accepts no writes").hasNot("hunter2")
	}
}

// Only a person reveals: a page that shows all of a payload does not read itself again, which would be another reading.
func TestARevealedPageIsReadOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tenant := range []outbox.ID{outbox.RootTenant, tenantA} {
		id := r.enqueue("greet", `{"password":"hunter2"}`, outbox.Options{Tenant: tenant}).String()
		for page, again := range map[string]bool{
			"job?id=" + id: true, "job?reveal=&id=" + id: true, "job?reveal=1&id=" + id: false, "job?reveal=1&whole=1&id=" + id: false,
		} {
			main, _, _ := strings.Cut(r.get(page).is(200).Body.String(), "</main>")
			_, main, _ = strings.Cut(main, "<main ")
			main, _, _ = strings.Cut(main, ">")
			if strings.Contains(main, "data-change") != again || strings.Contains(main, "data-every") || strings.Contains(main, "data-rows") {
				t.Errorf("%s: <main %s>; reads itself again: want %t", page, main, again)
			}
		}
	}
}

// Somebody posts the address of a page with all shown in a chat. A person that follows it has not asked for what is
// masked: they see the page as usual, and the audit has no reading of theirs. Nor does the page show a masked result to
// people who may see no payloads.
func TestALinkFromElsewhereRevealsNothing(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t, func(c *console.Config) { c.AuditReads = true })
	id := r.deadWith(tenantA, "k", `{"password": "hunter2", "to": "`+strings.Repeat("ada", 30<<10)+`"}`)
	to := r.as("").get("job?reveal=1&id=" + id.String()).is(303).Header().Get("Location")
	if to != "login?back=job%3Fid%3D"+id.String() {
		t.Errorf("it leads to %s, and from there to what is masked", to)
	}
	for _, page := range []string{"job?reveal=1&id=", "job-edit?reveal=1&id="} {
		for site, reveals := range map[string]bool{"none": false, "cross-site": false, "same-site": false, "same-origin": true} {
			before := len(r.reads(id))
			req := httptest.NewRequestWithContext(t.Context(), "GET", "/"+page+id.String(), nil)
			req.Header.Set("Sec-Fetch-Site", site)
			for _, c := range r.cookies() {
				req.AddCookie(c)
			}
			a := r.send(req).is(200)
			if shown := strings.Contains(a.text(), "hunter2"); shown != reveals || len(r.reads(id))-before != map[bool]int{true: 1}[reveals] {
				t.Errorf("%s from %s: revealed is %t, want %t, and there are %d readings more", page, site, shown, reveals, len(r.reads(id))-before)
			}
			// Nor do the page's own links ask for what its address did, such as those that show all and reload it.
			plain, _, _ := strings.Cut(page, "reveal=1&")
			links, usual := strings.Count(a.Body.String(), "reveal=1"), strings.Count(r.get(plain+"id="+id.String()).Body.String(), "reveal=1")
			if links > usual && !reveals || links <= usual && reveals {
				t.Errorf("%s from %s: %d links reveal, and of the page without it %d", page, site, links, usual)
			}
		}
	}
	done := outbox.NewID()
	r.exec(`INSERT INTO outbox.history (id, tenant_id, queue, kind, status, payload, content_type, priority, run_at, created_at, attempt, max_attempts, epoch, finished_at, closed_from, lost_leases, result)
		VALUES ($1, $2, 'default', 'k', 'succeeded', '{}', 'application/json', 0, now(), now(), 1, 1, 2, now(), 'running', 0, '{"token": "hunter3"}')`, done, tenantA)
	r.as("all+jobs.read").get("job?reveal=1&id="+done.String()).is(200).has("•••").hasNot("hunter3", "Reveal")
	r.get("job?reveal=1&id=" + done.String()).is(200).has("hunter3")
}

// What a payload is called does not decide whether its secrets are shown.
func TestSecretsAreMaskedWhateverTheTypeIsCalled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const form = "application/x-www-form-urlencoded"
	for payload, contentType := range map[string]string{
		`{"password":"hunter2","n":1.50}`: "text/json", "{\"n\":1.50}\n{\"password\":\"hunter2\"}\n": "application/x-ndjson", `[{"password":"hunter2","n":1.50}]`: "text/plain",
		`[{"n":1.50,"password":"hunter2"}]`: "application/cloudevents-batch+json", "n=1.50&pass%77ord=hunter2": form,
		`{"n":1.50,"password":"hunter2"}`: form, "n=1.50&user[password]=hunter2": form, "n=1.50&user%5Bpassword%5D%5B%5D=hunter2": form,
		"{\"n\":1.50,\"password\":\"hunter2\"}\n{\"n\":1.5": "text/plain",
	} {
		id := r.deadLetter(tenantA, "k", "c", "m")
		r.exec(`UPDATE outbox.jobs SET payload = $2, content_type = $3 WHERE id = $1`, id, []byte(payload), contentType)
		r.get("job?id="+id.String()).is(200).has("1.50", "•••", "Reveal 1 masked value").hasNot("hunter2")
		r.get("job?reveal=1&id="+id.String()).is(200).has("1.50", "hunter2")
		r.get("job-edit?id=" + id.String()).hasNot("hunter2")
	}
	plain := r.deadLetter(tenantA, "k", "c", "m")
	r.exec(`UPDATE outbox.jobs SET payload = 'my password: none', content_type = 'text/plain' WHERE id = $1`, plain)
	r.get("job?id=" + plain.String()).is(200).has("my password: none")
}
