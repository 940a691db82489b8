package browsertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/outbox"
)

// selects: jobs that a person selects stay selected through updates, a switch of the theme and a way back, by mouse and
// by keys; what is done to them is asked for first, and ends the selection.
func selects(c *console, r *road) (faults []string) {
	var ids []outbox.ID
	for range 30 {
		ids = append(ids, c.enqueue(receipt{1, "a@example.com"}, outbox.Options{Queue: "mail"}))
	}
	t := c.list(r, "jobs?queue=mail")
	selected := `[...document.querySelectorAll("td.pick input:checked")].map((b) => b.value).join()`
	expect := func(what, expression, want string) {
		if !t.await(expression, want) {
			faults = append(faults, fmt.Sprintf("%s: got %s, want %s", what, ask[string](t, "String("+expression+")"), want))
		}
	}
	click := func(id outbox.ID, shift bool) {
		ask[bool](t, fmt.Sprintf(`document.querySelector('td.pick input[value="%s"]').dispatchEvent(new MouseEvent("click", {bubbles: true, shiftKey: %t}))`, id, shift))
	}
	expect("at first the bar", `document.querySelector(".selected").checkVisibility()`, "false")
	click(ids[28], false)
	click(ids[24], true)
	var five []string
	for n := 28; n >= 24; n-- {
		five = append(five, ids[n].String())
	}
	want := strings.Join(five, ",")
	expect("a range", selected, want)
	expect("the bar", `document.querySelector("[data-selected]").textContent`, "5 selected:")
	for range 2 {
		for _, id := range ids[5:] {
			c.claimed(id)
			c.retrying(id)
		}
	}
	expect("the last update", statusOf(ids[29]), "retrying")
	// The server's words of it.
	t.within(3*time.Second, `document.querySelector('tr[data-job="`+ids[29].String()+`"] [data-th="Error"]').textContent.includes("relay")`, "true")
	expect("after 100 updates", selected, want)
	ask[bool](t, `document.querySelector(".menu").open = true`)
	t.leave(chromedp.Click(chromedp.CSS(".menu button[name=theme][value=dark]")))
	expect("after the theme", `document.documentElement.dataset.theme + " " + `+selected, "dark "+want)
	t.visit(r.base + "queues")
	t.visit(r.base + "jobs?queue=mail")
	expect("on the way back", selected, want)
	t.press("jx")
	expect("x", `document.querySelector("[data-selected]").textContent`, "6 selected:")
	t.press("*")
	expect("*", `document.querySelector("[data-selected]").textContent`, "30 selected:")
	t.press("*")
	expect("* again", selected+` + document.querySelector(".selected").hidden`, "true")
	click(ids[2], false)
	t.leave(chromedp.Click(chromedp.CSS(`.selected button[formaction="selected-cancel"]`)))
	expect("the question", `document.querySelector("h1").textContent`, "Cancel 1 job")
	ask[bool](t, `document.querySelector("#reason").value = "wrong campaign", true`)
	t.leave(chromedp.Click(chromedp.CSS("main form button.danger")))
	expect("the answer", `document.querySelector(".note").textContent.trim().startsWith("Done to 1 job.") + " " + document.querySelectorAll("td.pick input:checked").length`, "true 0")
	expect("the job", statusOf(ids[2]), "cancelled")
	return append(faults, t.take()...)
}
