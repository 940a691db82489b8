package console_test

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// The navigation and the statuses have the numbers that somebody has asked for already; no page asks for them.
func TestPagesShowTheNumbersThatAreKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', now())`)
	for range 3 {
		r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantA})
	}
	r.enqueue("greet", `{}`, outbox.Options{Tenant: tenantB})
	r.deadLetter(tenantA, "k", "c", "m")
	r.get("jobs").is(200).hasNot(`class="badge"`, `class="n"`, "counted")
	r.get("queues").is(200)
	r.get("problems").is(200)
	r.asked.take()
	r.get("jobs").is(200).hasHTML(`class="n">4</b>`, `class="n">1</b>`, `class="badge" title="Counted at `).has("Dead letters 1", "Problems ", "counted ")
	for _, sql := range r.asked.take() {
		if strings.Contains(sql, "CountOpenJobs") {
			t.Errorf("the list of jobs counts: %s", sql)
		}
	}
	r.get("jobs?status=dead").is(200).hasHTML(`class="n"`)
	r.get("jobs?kind=greet").is(200).hasNot(`class="n"`, "counted")
	r.as("a").get("queues").is(200)
	r.as("a").get("jobs").is(200).hasHTML(`class="n">3</b>`).hasNot(`class="n">4</b>`)
	r.as("b").get("jobs").is(200).hasNot(`class="n">4</b>`, `class="n">3</b>`, "Dead letters 1")
}
