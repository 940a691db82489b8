package browsertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	kept       = 10_000                // rows that Live keeps
	frames     = 50                    // a second, while ten thousand rows are scrolled
	longTask   = 50 * time.Millisecond // what none may take
	passWithin = 5 * time.Millisecond  // for a change that comes in, layout included
)

// tails: the page lists each change of a job as it happens, the newest first, and leaves out what does not match.
func tails(c *console, r *road) (faults []string) {
	t := c.over(r)
	t.look("light", 1280, 900)
	t.visit(r.base + "live?queue=mail&status=pending,running")
	t.await(`document.querySelector(".live").dataset.state`, "on")
	for range 20 { // a stream begins with the hub's next look
		c.enqueue(receipt{0, "a@example.com"}, outbox.Options{Queue: "mail"})
		if t.briefly(time.Second, `document.querySelectorAll(".tail tr[data-job]").length > 0`, "true") {
			break
		}
	}
	other := c.enqueue(receipt{2, "a@example.com"}, outbox.Options{Queue: "other"})
	id := c.enqueue(receipt{1, "a@example.com"}, outbox.Options{Queue: "mail"})
	rows := fmt.Sprintf(`[...document.querySelectorAll(".tail tr[data-job]")].filter((r) => "%s %s".includes(r.dataset.job))`, id, other) +
		`.map((r) => r.dataset.job + " " + r.querySelector(".status").textContent.trim()).join()`
	if !t.await(rows, id.String()+" pending") {
		return []string{"of two jobs, one of them in queue mail, it lists " + ask[string](t, rows)}
	}
	c.claimed(id)
	if !t.await(rows, fmt.Sprintf("%[1]s running,%[1]s pending", id)) {
		faults = append(faults, "of a job that runs it lists "+ask[string](t, rows))
	}
	if tenant := ask[string](t, `document.querySelector(".tail [data-th=Tenant]").textContent`); tenant != "root" {
		faults = append(faults, "it calls the root tenant "+tenant)
	}
	faults = append(faults, accessible(t)...)
	faults = append(faults, timely(t)...)
	faults = append(faults, narrow(t)...)
	return append(faults, quiet(t)...)
}

// With as many rows as it keeps, the page scrolls smoothly and lists what comes at once.
func TestTenThousandChanges(t *testing.T) {
	c := newConsole(t)
	tab := c.signedIn(c.root)
	tab.look("light", 1280, 900)
	tab.visit(c.root + "live")
	tab.await(`document.querySelector(".live").dataset.state`, "on")
	script := func(body string) string {
		return `import(document.querySelector("script[src*='tail.js']").src).then(async (m) => {
			const made = (n) => Array.from({ length: n }, (_, i) => ({
				id: crypto.randomUUID(), kind: "receipt.send", queue: "mail", tenant: "00000000-0000-0000-0000-000000000001",
				status: ["pending", "running", "succeeded", "retrying"][i % 4], epoch: 1, attempt: 1, ...(i % 4 == 3 && { error: { code: "smtp" } }) }));
			const took = (n) => Array.from({ length: 40 }, () => {
				const changes = made(n), began = performance.now();
				m.take({ changes });
				document.documentElement.scrollHeight; // has it laid out
				return performance.now() - began;
			}).sort((a, b) => a - b)[20];` + body + `})`
	}
	// scrolled is at how many frames a second the page scrolls.
	scrolled := func() float64 {
		return ask[float64](tab, `new Promise((done) => {
			const began = performance.now();
			let frames = 0;
			scrollTo({ top: 0, behavior: "instant" });
			requestAnimationFrame(function next(now) {
				frames++;
				scrollBy({ top: 90, behavior: "instant" });
				if (now - began < 1500) requestAnimationFrame(next);
				else {
					scrollTo({ top: 0, behavior: "instant" }); // further down the list stands still
					done(frames / (now - began) * 1000);
				}
			});
		})`)
	}
	few := ask[int](tab, script(`m.take({ changes: made(100) }); return 100`))
	idle := scrolled()
	rows := ask[int](tab, script(`for (let n = 0; n < 109; n++) m.take({ changes: made(100) });
		return document.querySelectorAll(".tail tr[data-job]").length`))
	if rows > kept || rows < kept-200 {
		t.Fatalf("of 11 000 changes it keeps %d rows", rows)
	}
	one, many := ask[float64](tab, script(`return took(1)`)), ask[float64](tab, script(`return took(25)`))
	all := scrolled()
	t.Logf("a change is listed among %d rows in %.2f ms, 25 in %.2f ms; they scroll at %.0f frames a second, %d at %.0f",
		rows, one, many, all, few, idle)
	// Machines that run tests have other things to do.
	if limit := 4 * float64(passWithin) / float64(time.Millisecond); one > limit {
		t.Errorf("a change is listed in %.1f ms, want %s, and here at most %.0f", one, passWithin, limit)
	}
	if all < frames/2 && all < idle/3 { // nor does it draw fifty times a second with few rows
		t.Errorf("it scrolls at %.0f frames a second, want %d, or a third of what it does with %d rows: %.0f", all, frames, few, idle)
	}
}

// Thousands of changes a second cost a browser little: the page lists some, and says how many it leaves out.
func TestThousandsOfChangesASecond(t *testing.T) {
	const jobs, rounds = 2500, 6
	c := newConsole(t)
	many := slices.Repeat([]outbox.Request{{Args: receipt{1, "a@example.com"}}}, jobs)
	if _, err := outbox.EnqueueMany(t.Context(), c.db, many); err != nil {
		t.Fatal(err)
	}
	tab := c.signedIn(c.root)
	tab.look("light", 1280, 900)
	tab.visit(c.root + "live")
	tab.await(`document.querySelector(".live").dataset.state`, "on")
	ask[bool](tab, `(window.__passes = 0, window.__longest = 0,
		new MutationObserver(() => __passes++).observe(document.querySelector(".tail"), { subtree: true, childList: true }),
		new PerformanceObserver((l) => l.getEntries().forEach((e) => { __longest = Math.max(__longest, e.duration); })).observe({ type: "longtask" }), true)`)
	began := time.Now()
	for round := range rounds {
		if round%2 == 0 {
			c.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = attempt + 1, lease_owner = 'shop-7',
				lease_expires_at = now() + interval '1 h', started_at = now()`)
		} else {
			c.exec(`UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL,
				run_at = now() + interval '1 h'`)
		}
		time.Sleep(time.Until(began.Add(time.Duration(round+1) * jobs * time.Second / 5000)))
	}
	said := `document.querySelector(".tail .gap")?.textContent`
	if !tab.await(said, "Too many changes at once: 2\u202f400 are not listed") {
		t.Errorf("of %d changes at once it says %q", jobs, ask[string](tab, said+` ?? "nothing"`))
	}
	took := time.Since(began).Seconds()
	passes, longest := ask[float64](tab, "__passes")/took, ask[float64](tab, "__longest")
	rate := `Number(document.querySelector(".rate").textContent.replace(/ .*/, "").replace(/\u202f/g, "")) > 300`
	if !tab.await(rate, "true") {
		t.Errorf("its rate is %s", ask[string](tab, `document.querySelector(".rate").textContent`))
	}
	t.Logf("%d changes in %.1f s: %.1f passes a second, the longest task %.0f ms", jobs*rounds, took, passes, longest)
	if passes > 5 { // a few in the time are those that wait when it begins
		t.Errorf("it changes the list %.1f times a second, want at most 4", passes)
	}
	if longest > 10*float64(longTask)/float64(time.Millisecond) {
		t.Errorf("a task takes %.0f ms, want at most %s, and here ten times that", longest, longTask)
	}
}
