package browsertest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const receiptSchema = `{"type": "object", "required": ["order", "to"],
	"properties": {"order": {"type": "integer"}, "to": {"type": "string"}}}`

// newEditor starts a console that holds receipts against their schema, and whose login may change payloads.
func newEditor(t *testing.T) *console {
	t.Helper()
	schemas := t.TempDir()
	file := filepath.Join(schemas, receipt{}.Kind()+".schema.json")
	if err := os.WriteFile(file, []byte(receiptSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newConsole(t, "--api-schemas", schemas)
	c.mayEdit()
	return c
}

// deadReceipt stores a dead letter, and returns its id.
func (c *console) deadReceipt() outbox.ID {
	c.Helper()
	id := c.enqueue(receipt{7, "ada@example.com"}, outbox.Options{Queue: "newsletter", MaxAttempts: 1}) // not worked
	c.claimed(id)
	c.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, failed_at = now() WHERE id = $1`, id)
	return id
}

// stored returns the status of a job and its payload.
func (c *console) stored(id outbox.ID) (status, payload string) {
	c.Helper()
	err := c.db.QueryRow(c.Context(), `SELECT status::text, convert_from(payload, 'UTF8') FROM outbox.jobs WHERE id = $1`, id).Scan(&status, &payload)
	if err != nil {
		c.Fatal(err)
	}
	return status, payload
}

// write replaces what a field has by what a person types.
func (t *tab) write(field, text string) {
	t.Helper()
	ask[bool](t, fmt.Sprintf(`document.querySelector(%[1]q).focus(), document.querySelector(%[1]q).select(), true`, field))
	call(t, input.InsertText, input.InsertTextParams{Text: text})
}

const send = "main form button.primary"

// A person edits the payload of a dead letter, reads what is wrong with it at its field, corrects that, sees what will
// be different, and the job is pending with the new payload.
func TestADeadLetterIsEditedInTheBrowser(t *testing.T) {
	t.Parallel()
	c := newEditor(t)
	id := c.deadReceipt()
	_, before := c.stored(id)
	tab := c.signedIn(c.root)
	tab.look("light", 1280, 800)
	tab.visit(c.root + "job?id=" + id.String())
	tab.leave(chromedp.Click(chromedp.CSS(`main a[href^="job-edit?"]`)))
	expect := func(what, expression string, want ...string) {
		t.Helper()
		got := ask[string](tab, "String("+expression+")")
		if !slices.ContainsFunc(want, func(text string) bool { return !strings.Contains(got, text) }) {
			return
		}
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
	const typed = "{\n  \"order\": \"seven\",\n  \"to\": \"grace@example.com\"\n}"
	tab.write("#payload", typed)
	if status := tab.leave(chromedp.Click(chromedp.CSS(send))); status != 422 {
		t.Errorf("a payload with a mistake got %d, want 422", status)
	}
	expect("the mistakes", `document.querySelector("#faults").innerText`, "Line 2", "/order", "got string, want integer", `"order": "seven"`)
	expect("the field", `document.querySelector("#payload").ariaInvalid + document.querySelector("#payload").getAttribute("aria-describedby")`, "truefaults")
	expect("what was typed", `document.querySelector("#payload").value`, typed)
	if status, payload := c.stored(id); status != "dead" || payload != before {
		t.Errorf("with a mistake the job is %s with %s, want it as it was", status, payload)
	}
	tab.write("#payload", strings.Replace(typed, `"seven"`, "7", 1))
	tab.leave(chromedp.Click(chromedp.CSS(send)))
	expect("what goes", `document.querySelector(".diff del").innerText`, `"to": "ada@example.com"`)
	expect("what comes", `document.querySelector(".diff ins").innerText`, `"to": "grace@example.com"`)
	tab.write("#reason", "another address")
	tab.leave(chromedp.Click(chromedp.CSS(send)))
	expect("where it leads", `location.href`, "job?id="+id.String())
	expect("its status", `document.querySelector("h1 .status").textContent`, "pending")
	if status, payload := c.stored(id); status != "pending" || payload != `{"order":7,"to":"grace@example.com"}` {
		t.Errorf("the job is %s with %s, want it pending with another address", status, payload)
	}
}

// answers are pages that only a form leads to.
var answers = []struct {
	name   string
	status int64
	says   string
	open   func(*console, *tab) (status int64)
}{
	{"a mistake in a payload", 422, "got string, want integer", func(c *console, t *tab) int64 {
		return c.sendEdited(t, `{"order": "seven", "to": "ada@example.com"}`)
	}},
	{"a payload before it is stored", 200, "becomes pending again", func(c *console, t *tab) int64 {
		return c.sendEdited(t, `{"order": 8, "to": "ada@example.com"}`)
	}},
	{"who was first", 409, "grace did job.replay", func(c *console, t *tab) int64 {
		id := c.deadReceipt()
		t.visit(c.root + "job-dismiss?id=" + id.String())
		grace := operator.New(c.db).As(operator.Actor{Name: "grace"})
		if err := grace.Because("the relay is back").Retry(c.Context(), id); err != nil {
			c.Fatal(err)
		}
		return t.leave(chromedp.Click(chromedp.CSS(send)))
	}},
	{"a bulk act without a reason", 400, "A reason is missing", func(c *console, t *tab) int64 {
		c.enqueue(receipt{9, "ada@example.com"}, outbox.Options{Queue: "mail"})
		t.visit(c.root + "jobs-cancel?queue=mail")
		ask[bool](t, `document.querySelector("#reason").required = false, true`) // browsers ask for it
		return t.leave(chromedp.Click(chromedp.CSS(send)))
	}},
	{"a form that is kept", 503, "What you have entered is kept", func(c *console, t *tab) int64 {
		t.visit(c.root + "queue-pause?queue=mail")
		t.write("#reason", "the relay is away")
		defer c.shutOut()()
		return t.leave(chromedp.Click(chromedp.CSS(send)))
	}},
	{"a form without a session", 401, "Sign in, in another tab", func(c *console, t *tab) int64 {
		t.visit(c.root + "queue-pause?queue=stock")
		t.write("#reason", "the supplier is away")
		if _, err := access.NewTokens(c.db, access.TokensConfig{}).Revoke(c.Context(), c.tokenID, "grace"); err != nil {
			c.Fatal(err)
		}
		time.Sleep(5 * time.Second) // then every process knows
		return t.leave(chromedp.Click(chromedp.CSS(send)))
	}},
}

// sendEdited sends the form that edits a dead letter, with a payload.
func (c *console) sendEdited(t *tab, payload string) (status int64) {
	c.Helper()
	t.visit(c.root + "job-edit?id=" + c.deadReceipt().String())
	t.write("#payload", payload)
	return t.leave(chromedp.Click(chromedp.CSS(send)))
}

// shutOut ends the connections of the console to its database, and refuses new ones until it is let in again.
func (c *console) shutOut() (letIn func()) {
	c.Helper()
	login := c.login()
	c.exec(`ALTER ROLE ` + login + ` NOLOGIN`)
	c.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, login)
	return func() { c.exec(`ALTER ROLE ` + login + ` LOGIN`) }
}

// login returns the name of the console's login of the database.
func (c *console) login() (name string) {
	c.Helper()
	err := c.db.QueryRow(c.Context(), `SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND usename LIKE 'login\_%'`).Scan(&name)
	if err != nil {
		c.Fatal(err)
	}
	return name
}

// What is answered to a form is a page like every other; and a form that is kept can be sent again.
func TestEveryAnswerToAForm(t *testing.T) {
	t.Parallel()
	c := newEditor(t)
	tab := c.signedIn(c.root)
	for _, a := range answers {
		tab.look("light", 1280, 800)
		if status := a.open(c, tab); status != a.status {
			t.Errorf("%s: got %d, want %d", a.name, status, a.status)
		}
		if text := ask[string](tab, `document.querySelector("main").innerText`); !strings.Contains(text, a.says) {
			t.Errorf("%s: the page says %q, want %q", a.name, text, a.says)
		}
		loaded := fmt.Sprintf("the server responded with a status of %d", a.status) // as the browser logs it
		tab.forgive(loaded)
		for _, e := range every {
			if e.name == "complete" {
				continue // it asks for the page again, and there is none without its form
			}
			for _, fault := range e.check(tab) {
				t.Errorf("%s: the page is not %s: %s", a.name, e.name, fault)
			}
		}
		if a.status == 503 {
			tab.look("light", 1280, 800)
			tab.leave(chromedp.Click(chromedp.CSS(send)))
			tab.visit(c.root + "queue?queue=mail")
			if text := ask[string](tab, `document.querySelector("main").innerText`); !strings.Contains(text, "Paused") {
				t.Errorf("the form that was kept and sent again led to %q", text)
			}
		}
		tab.take()
	}
}
