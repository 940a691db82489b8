package browsertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// saidWithin is how long a fault may last before the open page of problems says so, and how long the page may say so
// after the repair.
const saidWithin = 35 * time.Second

// fault is something wrong, with what a page says of it and where its link leads, and how it comes and goes.
type fault struct{ says, link, cause, repair string }

// faults prepares a database for faults, and returns them.
func (c *console) faults() []fault {
	c.Helper()
	c.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, started_at, seen_at)
		VALUES ('well', 'v1', '{default,mail,keyed}', '{3,3,3}', '{receipt.send}', true, now(), now() + interval '1 hour'),
			('killed', 'v1', '{default}', '{3}', '{receipt.send}', true, now(), now() + interval '1 hour')`)
	parked := c.enqueue(receipt{1, "a"}, outbox.Options{Queue: "keyed", Key: outbox.KeyRules{Name: "k"}})
	tomorrow := `'outbox.history_' || to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')`
	return []fault{
		{
			"no present dispatcher of the queue has a handler", "jobs?kind=stock.sync",
			`SELECT outbox.enqueue('stock.sync', '{}')`,
			`UPDATE outbox.workers SET kinds = kinds || '{stock.sync}'::text[]`,
		},
		{
			"has not fired", "schedule?name=nightly",
			`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ('` + outbox.RootTenant.String() + `', 'nightly', '1 day', 'mail', '{}', now() - interval '1 hour')`,
			`UPDATE outbox.schedules SET next_at = now() + interval '1 hour'`,
		},
		{
			"partitions for 0 days ahead", "system",
			`DO $$ BEGIN EXECUTE 'ALTER TABLE outbox.history DETACH PARTITION ' || ` + tomorrow + `; END $$`,
			`DO $$ BEGIN EXECUTE format('ALTER TABLE outbox.history ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', ` + tomorrow + `,
				date_trunc('day', now(), 'UTC') + interval '1 day', date_trunc('day', now(), 'UTC') + interval '2 days'); END $$`,
		},
		{
			"Queue mail is paused", "queue?queue=mail",
			`SELECT outbox.enqueue('receipt.send', '{}', queue => 'mail'); INSERT INTO outbox.queues (queue, paused_at) VALUES ('mail', now())`,
			`UPDATE outbox.queues SET paused_at = NULL`,
		},
		{
			`Key "k" of queue keyed is parked`, "key?key=k",
			`ALTER TABLE outbox.jobs DISABLE TRIGGER USER; UPDATE outbox.jobs SET status = 'blocked' WHERE id = '` + parked.String() + `'; ALTER TABLE outbox.jobs ENABLE TRIGGER USER;
				INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ('` + outbox.RootTenant.String() + `', 'keyed', 'k', now())
				ON CONFLICT (tenant_id, queue, key) DO UPDATE SET parked_at = now()`,
			`UPDATE outbox.keys SET parked_at = NULL`,
		},
		{
			"Dispatcher killed (v1) is silent", "workers",
			`UPDATE outbox.workers SET seen_at = now() - interval '10 minutes' WHERE worker = 'killed'`,
			`DELETE FROM outbox.workers WHERE worker = 'killed'`,
		},
	}
}

// An open page shows faults soon after they have happened, the worst first, each with a link that leads to what it is
// about; and no longer than that after each has been repaired. All happen at once.
func TestFaultsAreShownSoonAndGoAgain(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	faults := c.faults()
	r := &road{base: c.root}
	tab := c.over(r)
	tab.look("light", 1280, 900)
	tab.visit(r.base + "problems")
	said := func(text string) string {
		return fmt.Sprintf(`[...document.querySelectorAll(".problem h2")].some((h) => h.textContent.includes(%q))`, text)
	}
	for _, f := range faults {
		if ask[bool](tab, said(f.says)) {
			t.Errorf("%s, before it was so", f.says)
		}
		c.exec(f.cause)
	}
	began := time.Now()
	for _, f := range faults {
		if !tab.briefly(saidWithin-time.Since(began), said(f.says), "true") {
			t.Errorf("after %s nobody says that %s", saidWithin, f.says)
		}
		links := ask[[]string](tab, fmt.Sprintf(`[...document.querySelectorAll(".problem")].filter((p) => p.innerText.includes(%q)).flatMap((p) => [...p.querySelectorAll("a.button")].map((a) => a.href))`, f.says))
		if !slices.ContainsFunc(links, func(to string) bool { return strings.Contains(to, "/"+f.link) }) {
			t.Errorf("%s: its links are %q, want one to %s", f.says, links, f.link)
		}
	}
	t.Logf("all are said after %s", time.Since(began).Round(time.Second))
	order := ask[[]string](tab, `[...document.querySelectorAll(".problem")].map((p) => p.classList.contains("is-bad") ? "bad" : "warn")`)
	if !slices.IsSorted(order) {
		t.Errorf("they have the order %q, want the worst first", order)
	}
	for _, f := range faults {
		c.exec(f.repair)
	}
	began = time.Now()
	for _, f := range faults {
		if !tab.briefly(saidWithin-time.Since(began), said(f.says), "false") {
			t.Errorf("%s after the repair it still says that %s", saidWithin, f.says)
		}
	}
	t.Logf("none is said after %s", time.Since(began).Round(time.Second))
}
