package console_test

import (
	"html"
	"regexp"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A job's page leads to what was stored at its end, and a search lists all of that: of the viewer's tenant.
func TestTheFollowUpsOfAJobAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	parent := r.enqueue("order", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, parent)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, failed_at = now() WHERE id = $1`, parent)
	r.as("a").get("job?id=" + parent.String()).is(200).hasNot("Follow-ups")
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, payload, parent_id) SELECT ('7fffffff-0000-7000-8000-00000000000' || n)::uuid, $2, 'step' || n, '{}', $1 FROM generate_series(1, 7) AS n`, parent, tenantA)
	r.enqueue("unrelated", `{}`, outbox.Options{Tenant: tenantA})
	r.as("a").get("job?id="+parent.String()).is(200).has("Follow-ups", "step7", "step3", "All follow-ups").hasNot("step2", "unrelated")
	list := "jobs?parent=" + parent.String()
	r.as("a").get(list).is(200).has("step1", "step7", "7 jobs shown").hasNot("unrelated", "All that match")
	first := r.as("a").get(list+"&limit=4").is(200).has("step7", "step4", "Older").hasNot("step3")
	if next := regexp.MustCompile(`href="(jobs\?[^"]*)" rel="next"`).FindStringSubmatch(first.Body.String()); next == nil {
		t.Error("the first four lead to no more")
	} else {
		r.as("a").get(html.UnescapeString(next[1])).is(200).has("step3", "step1").hasNot("step4")
	}
	r.as("b").get(list).is(200).has("No job matches").hasNot("step1")
	if to := r.as("a").get("jobs?q=parent:" + parent.String()).is(303).Header().Get("Location"); to != list {
		t.Errorf("what was typed leads to %s, want %s", to, list)
	}
	r.as("a").get(list+"&kind=step1").is(200).has("1 job shown", "posthaste jobs list --kind step1 --parent "+parent.String())
}
