package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The audit has each reader of a payload, whatever shows it; and what cannot be recorded is not shown.
func TestWhoReadsAPayloadIsRecorded(t *testing.T) {
	t.Parallel()
	for _, audited := range []bool{true, false} {
		r := newRig(t, func(c *api.Config) { c.AuditReads = audited }).as("operator-a")
		id := r.reach(outbox.Running)
		r.report(id)
		r.exec(`INSERT INTO outbox.audit (actor, act, tenant_id, job_id, queue, before) SELECT 'ada', 'job.replay', tenant_id, id, queue, '{"payload_base64": "cDR5bDBhZA=="}' FROM outbox.jobs, generate_series(1, 2)`)
		reads := []string{"/jobs/" + id, "/jobs/" + id + "/steps", "/audit?act=job.replay"}
		for _, read := range reads {
			r.as("no-payload.read").get(read).want(200, nil)
			r.as("operator-a").get("/jobs?limit=1").want(200, nil) // lists have no payloads
			r.as("operator-a").get(read).want(200, nil)
		}
		var found string
		if err := r.db.QueryRow(t.Context(), `SELECT coalesce(string_agg(concat_ws(' ', actor, target, job_id = $1), ', ' ORDER BY id), '') FROM outbox.audit WHERE act = 'payload.read'`, id).Scan(&found); err != nil {
			t.Fatal(err)
		}
		want := ""
		if audited {
			want = "operator-a job t, operator-a steps t, operator-a audit t"
		}
		if found != want {
			t.Errorf("audited %t: the audit has %q, want %q", audited, found, want)
		}
		r.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full'; END $$`)
		r.exec(`CREATE TRIGGER refuse BEFORE INSERT ON outbox.audit FOR EACH ROW EXECUTE FUNCTION refuse()`)
		for _, read := range reads {
			if got := r.get(read); audited == (got.Code == 200) || audited && strings.Contains(got.Body.String(), "4yl0ad") {
				t.Errorf("audited %t: %s, which cannot be recorded, is answered by %d %s", audited, read, got.Code, got.Body)
			}
		}
	}
}

// The audit shows the payloads of which it has recorded the read, and no others: while it records, in one transaction,
// an act commits that has a lower id than those listed, and would be among them in a second list.
func TestTheAuditShowsThePayloadsThatItHasRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.AuditReads = true }).as("operator-a")
	r.reach(outbox.Running)
	r.reach(outbox.Running)
	late := r.reach(outbox.Running)
	replaced := `INSERT INTO outbox.audit (id, actor, act, tenant_id, job_id, queue, before) OVERRIDING SYSTEM VALUE
		SELECT %s, 'ada', 'job.replay', tenant_id, id, queue, '{"payload_base64": "cDR5bDBhZA=="}' FROM outbox.jobs WHERE (id = '` + late + `') = %t ON CONFLICT DO NOTHING`
	r.exec(fmt.Sprintf(replaced, "1000 + row_number() OVER ()", false))
	r.exec(`CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$ BEGIN ` + fmt.Sprintf(replaced, "999", true) + `; RETURN NULL; END $f$`)
	r.exec(`CREATE TRIGGER late AFTER INSERT ON outbox.audit FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION late()`)
	var page struct{ Acts []api.Act }
	r.get("/audit?act=job.replay").want(200, &page)
	r.exec(`DROP TRIGGER late ON outbox.audit`)
	var shown, recorded []string
	for _, act := range page.Acts {
		if strings.Contains(string(act.Before), "payload_base64") {
			shown = append(shown, act.JobID)
		}
	}
	var statements int
	if err := r.db.QueryRow(t.Context(), `SELECT array_agg(job_id::text ORDER BY id), count(DISTINCT xmin::text) FROM outbox.audit WHERE act = 'payload.read'`).Scan(&recorded, &statements); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 2 || !slices.Equal(shown, recorded) || statements != 1 {
		t.Errorf("the payloads of %q are shown, the reads of %q recorded in %d transactions; want the same two jobs in one", shown, recorded, statements)
	}
}

// A reader who is refused, because the bodies of others leave no room for the answer, has read nothing.
func TestAReadForWhichThereIsNoRoomIsNotRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.MaxBodyBytes, c.MaxBodies, c.Timeout, c.AuditReads = 64<<10, 3<<20, time.Hour, true
		c.BodyTimeout(time.Hour)
	})
	id := r.reach(outbox.Running)
	r.report(id)
	r.exec(`UPDATE outbox.jobs SET payload = convert_to('"' || repeat('x', 1000000) || '"', 'UTF8')`)
	r.exec(`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result)
		SELECT jobs.id, 'step ' || n, 1, '1 second', convert_to('"' || repeat('x', 250000) || '"', 'UTF8') FROM outbox.jobs, generate_series(1, 4) AS n`)
	r.exec(`INSERT INTO outbox.audit (actor, act, tenant_id, job_id, queue, before)
		SELECT 'ada', 'job.replay', tenant_id, id, queue, jsonb_build_object('payload_base64', repeat('YWFh', 300000)) FROM outbox.jobs`)
	server, batch := r.serve(), strings.Repeat(jobOf(60<<10)+"\n", 16)
	reads := []string{"/jobs/" + id, "/jobs/" + id + "/steps", "/audit?act=job.replay"}
	recorded := func() (n int) {
		if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.audit WHERE act = 'payload.read'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, read := range reads { // there is room
		r.as("operator-a").get(read).want(200, nil)
	}
	if n := recorded(); n != len(reads) {
		t.Errorf("%d reads are recorded, want %d", n, len(reads))
	}
	slow := []*sending{r.as("client-b").sendHalf(server, "/jobs/batch", batch), r.as("root").sendHalf(server, "/jobs/batch", batch)}
	for _, read := range reads {
		r.as("operator-a").get(read).problem(429, "overloaded")
	}
	if n := recorded(); n != len(reads) {
		t.Errorf("%d reads are recorded, want %d: the others were refused", n, len(reads))
	}
	for _, s := range slow {
		s.finish()
	}
}

// A dry run of an edited replay answers with the job as it is.
func TestAnEditedReplayRecordsThatItShowsThePayload(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.AuditReads = true }).as("operator-a")
	path := "/dead-letters/" + r.reach(outbox.Dead) + "/replay"
	r.as("operator-a").post(path, `{"payload":{},"dryRun":true}`)
	var n int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.audit WHERE act = 'payload.read' AND target = 'replay'`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d reads are recorded, %v; want 1", n, err)
	}
}
