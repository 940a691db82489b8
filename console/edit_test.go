package console_test

import (
	"html"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/outbox"
)

const receiptSchema = `{"type": "object", "required": ["to"], "additionalProperties": false, "properties": {
	"order": {"type": "integer", "minimum": 1}, "to": {"type": "string"}, "password": {"type": "string"},
	"lines": {"type": "array", "items": {"type": "object", "properties": {"count": {"type": "integer"}, "token": {"type": "string"}}}}}}`

func withReceipts(t *testing.T) func(*console.Config) {
	schemas := new(kinds.Schemas)
	if err := schemas.Add("receipt", []byte(receiptSchema)); err != nil {
		t.Fatal(err)
	}
	return func(c *console.Config) { c.Kinds = schemas }
}

// newEditorRig returns a rig whose console has a login that may change payloads.
func newEditorRig(t *testing.T, change ...func(*console.Config)) *rig {
	t.Helper()
	var config console.Config
	r := newRig(t, append(change, func(c *console.Config) { config = *c })...)
	config.Pool = r.db
	var err error
	if r.handler, err = console.New(config); err != nil {
		t.Fatal(err)
	}
	return r
}

// deadWith stores a dead letter with a payload, and returns its id.
func (r *rig) deadWith(tenant outbox.ID, kind, payload string) outbox.ID {
	r.t.Helper()
	id := r.enqueue(kind, payload, outbox.Options{Tenant: tenant, MaxAttempts: 1})
	r.die(id)
	return id
}

func (r *rig) die(id outbox.ID) {
	r.t.Helper()
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, failed_at = clock_timestamp() WHERE id = $1`, id)
}

func (r *rig) payloadOf(id outbox.ID) (payload string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), `SELECT convert_from(payload, 'UTF8') FROM outbox.jobs WHERE id = $1`, id).Scan(&payload); err != nil {
		r.t.Fatal(err)
	}
	return payload
}

var (
	textArea   = regexp.MustCompile(`(?s)<textarea[^>]*>\n(.*)</textarea>`)
	epochField = regexp.MustCompile(`name="epoch" value="([0-9]+)"`)
)

// edited returns the form of an editor, or of a preview, with its text changed, as a browser sends it.
func (a answer) edited(id outbox.ID, change func(string) string) url.Values {
	a.t.Helper()
	epoch, area := epochField.FindStringSubmatch(a.Body.String()), textArea.FindStringSubmatch(a.Body.String())
	if epoch == nil || area == nil {
		a.t.Fatalf("there is no editor: %s", a.text())
	}
	text := strings.ReplaceAll(change(html.UnescapeString(area[1])), "\n", "\r\n") // as browsers do
	return url.Values{"id": {id.String()}, "epoch": {epoch[1]}, "after": {a.fieldsOf().Get("after")}, "payload": {text}}
}

func TestADeadLetterIsEditedAndRunAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		as     string
		tenant outbox.ID
	}{"of a tenant": {"a", tenantA}, "of the root": {"all", outbox.RootTenant}} {
		t.Run(name, func(t *testing.T) {
			r := newEditorRig(t, withReceipts(t)).as(c.as)
			stored := `{"order":1970670598291982290,"to":"ada","password":"hunter2","lines":[{"count":1,"token":"first"},{"count":2.0,"token":"second"}]}`
			id := r.deadWith(c.tenant, "receipt", stored)
			r.get("job?id=" + id.String()).is(200).has("Edit and run again…")
			editor := r.get("job-edit?id="+id.String()).is(200).has("1970670598291982290", "••• 1", "The schema of its").hasNot("hunter2", "second")
			// The first line is removed: the secret of the second one stays its own.
			form := editor.edited(id, func(text string) string {
				text = strings.Replace(text, `"ada"`, `"grace <b>"`, 1)
				return regexp.MustCompile(`(?s)\{\s*"count": 1,.*?\},`).ReplaceAllString(text, "")
			})
			r.post("job-edit", form).is(200).has(`− "to": "ada",`, `+ "to": "grace <b>"`, "becomes pending again", "posthaste dlq replay "+id.String()).hasNot("hunter2", "second")
			if got := r.statusOf(id); got != "dead" {
				t.Fatalf("the preview made it %s", got)
			}
			form.Set("again", "1")
			r.post("job-edit", form).is(200).has("grace <b>", "Preview…")
			form.Del("again")
			r.exec(`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) VALUES ($1, 'quote', 1, '1 s', '1'), ($1, 'charge', 1, '1 s', '1')`, id)
			r.post("job-edit", form).is(200).has("keeps what 2 steps returned: charge, quote", "Forget it")
			form.Set("forget", "1")
			form.Set("reason", "wrong address")
			if got := r.post("job-edit-do", form).is(303).Header().Get("Location"); got != "job?id="+id.String() {
				t.Errorf("led to %s", got)
			}
			want := `{"order":1970670598291982290,"to":"grace <b>","password":"hunter2","lines":[{"count":2.0,"token":"second"}]}`
			if got := r.payloadOf(id); got != want {
				t.Errorf("the payload is %s, want %s", got, want)
			}
			r.get("job?id=" + id.String()).is(200).hasNot("charge")
			if got, n := r.statusOf(id), r.audited("job.replay", "wrong address"); got != "pending" || n != 1 {
				t.Errorf("it is %s, and the audit has %d acts", got, n)
			}
			r.post("job-edit-do", form).is(409).has("The job is pending by now", "ago. Nothing was changed now")
		})
	}
}

// A caller that enqueues a job chooses its payload: dots in it uncover nothing, and an edit leaves them.
func TestAPayloadWithDotsOfItsOwnIsMasked(t *testing.T) {
	for as, tenant := range map[string]outbox.ID{"a": tenantA, "all": outbox.RootTenant} {
		r := newEditorRig(t).as(as)
		id := r.deadWith(tenant, "receipt", `{"to":"ada","card":"•••• 4242","note":"••• 1","password":"hunter2"}`)
		editor := r.get("job-edit?id="+id.String()).is(200).has("•••• 4242", "stand as “••••• 1”").hasNot("hunter2")
		form := editor.edited(id, func(text string) string { return strings.Replace(text, `"ada"`, `"grace"`, 1) })
		r.post("job-edit", form).is(200).hasNot("hunter2")
		r.post("job-edit-do", form).is(303)
		if got, want := r.payloadOf(id), `{"to":"grace","card":"•••• 4242","note":"••• 1","password":"hunter2"}`; got != want {
			t.Errorf("%s: the payload is %s, want %s", as, got, want)
		}
	}
}

// What a schema, or JSON, has against a payload stands at its line; nothing is changed, and what was typed is kept.
func TestMistakesInAPayloadStandAtTheirFields(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t, withReceipts(t)).as("a")
	id := r.deadWith(tenantA, "receipt", `{"order":1,"to":"ada","password":"hunter2","lines":[{"count":1}]}`)
	editor := r.get("job-edit?id=" + id.String()).is(200)
	for name, c := range map[string]struct {
		from, to string
		wants    []string
	}{
		"a type":            {`"count": 1`, `"count": "x<b>"`, []string{"Line 7:", "/lines/0/count", "got string, want integer", `"count": "x<b>"`}},
		"a bound":           {`"order": 1`, `"order": 0`, []string{"Line 2:", "/order", "minimum"}},
		"a missing member":  {`"to": "ada",`, ``, []string{"Line 1:", "/to", "is missing"}},
		"a member too many": {`"to"`, "\"a/b\":\n1, \"to\"", []string{"Line 4:", "/a~1b", "is not a field"}},
		"no JSON":           {`"ada",`, `"ada"`, []string{"Line 4:", "is not JSON: at character 3", "invalid character"}},
		"no JSON at all":    {`{`, `nonsense {`, []string{"Line 1:", "is not JSON"}},
		"no such mask":      {`"••• 1"`, `"••• 2"`, []string{"Line 4:", "/password", "stands for no hidden value"}},
		"a mask unmasked":   {`"ada"`, `"••• 1"`, []string{"Line 3:", "/to", "is a mask at a place whose value is shown"}},
		"a broken mask":     {`"••• 1"`, `"•••"`, []string{"Line 4:", "/password", "stands for no hidden value"}},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			form := editor.edited(id, func(text string) string { return strings.Replace(text, c.from, c.to, 1) })
			for _, page := range []string{"job-edit", "job-edit-do"} {
				a := r.post(page, form).is(422).has(c.wants...).has("Nothing was changed")
				if got := a.edited(id, func(s string) string { return s }).Get("payload"); got != form.Get("payload") {
					t.Errorf("what was typed became %q, want %q", got, form.Get("payload"))
				}
			}
			if got := r.statusOf(id); got != "dead" {
				t.Errorf("it is %s", got)
			}
		})
	}
}

// A schema quotes what it refuses: not what the page masks.
func TestASchemaQuotesNoMaskedValue(t *testing.T) {
	t.Parallel()
	for as, tenant := range map[string]outbox.ID{"a": tenantA, "all": outbox.RootTenant} {
		schemas := new(kinds.Schemas)
		if err := schemas.Add("receipt", []byte(`{"properties": {"password": {"pattern": "^[A-Z]*$"},
			"to": {"pattern": "^[a-z]*$"}, "logins": {"items": {"const": {}}}}}`)); err != nil {
			t.Fatal(err)
		}
		r := newEditorRig(t, func(c *console.Config) { c.Kinds = schemas }).as(as)
		id := r.deadWith(tenant, "receipt", `{"to":"ada","password":"hunter2","logins":[{"pin":"4711"}]}`)
		form := r.get("job-edit?id="+id.String()).is(200).hasNot("hunter2", "4711").
			edited(id, func(text string) string { return strings.Replace(text, "ada", "ada <b>", 1) })
		for _, page := range []string{"job-edit", "job-edit-do"} {
			r.post(page, form).is(422).hasNot("hunter2", "4711").
				has("/password is not what the schema allows", "/logins/0 is not what the schema allows", "/to 'ada <b>' does not match pattern")
		}
	}
}

func TestWhoMayNotReadAPayloadCannotEditIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadWith(tenantA, "k", `{"a":"secret-ish"}`)
	form := url.Values{"id": {id.String()}, "epoch": {"3"}, "payload": {`{}`}}
	for _, who := range []string{"a+jobs.read,admin.read,admin.mutate", "a+jobs.read,admin.read,payload.read"} {
		r.as(who).get("job?id=" + id.String()).is(200).has("Edit and run again… : Needs")
		r.as(who).get("job-edit?id=" + id.String()).is(403).hasNot("secret-ish")
		r.as(who).post("job-edit", form).is(403)
		r.as(who).post("job-edit-do", form).is(403)
	}
	r.as("b").get("job-edit?id=" + id.String()).is(404)
	r.as("b").post("job-edit-do", form).is(404)
	if got := r.payloadOf(id); got != `{"a":"secret-ish"}` {
		t.Errorf("the payload is %s", got)
	}
}

// The login that the documentation names for the API cannot change payloads: nobody types one in vain.
func TestAnEditNeedsALoginThatMayChangePayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadWith(tenantA, "k", `{"a":1}`)
	r.get("job?id=" + id.String()).is(200).has("Needs a database login that may change payloads").hasNot(`href="job-edit`)
	r.get("job-edit?id="+id.String()).is(403).has("This console may not change payloads", "outbox_worker")
	form := url.Values{"id": {id.String()}, "epoch": {"2"}, "payload": {`{}`}}
	r.post("job-edit", form).is(403).has("This console may not change payloads")
	r.post("job-edit-do", form).is(403).has("This console may not change payloads")
	if got := r.payloadOf(id); got != `{"a":1}` {
		t.Errorf("the payload is %s", got)
	}
}

// The payload was shown, then somebody else replayed the job, and it failed again: it is a dead letter as before, but
// not the one that was shown.
func TestAnEditMeansTheEpochThatWasShown(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t)
	id := r.deadWith(tenantA, "k", `{"a":1}`)
	form := r.as("a").get("job-edit?id="+id.String()).is(200).edited(id, func(string) string { return `{"a":2}` })
	r.post("job-retry", url.Values{"id": {id.String()}, "while": {r.seen(id)}, "reason": {""}}).is(303)
	r.die(id)
	for _, page := range []string{"job-edit", "job-edit-do"} {
		r.as("a").post(page, form).is(409).has("The job is dead again by now", "all did job.replay")
	}
	if got := r.payloadOf(id); got != `{"a":1}` {
		t.Errorf("the payload is %s", got)
	}
}

func TestPayloadsThatAFormWouldChangeAreNotEdited(t *testing.T) {
	t.Parallel()
	r := newEditorRig(t)
	raw := func(contentType, payload string) outbox.ID {
		id, err := outbox.Enqueue(t.Context(), r.db, outbox.Raw{KindName: "k", Payload: []byte(payload), ContentType: contentType}, outbox.Options{MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.die(id)
		return id
	}
	for name, id := range map[string]outbox.ID{
		"binary":    raw("application/x-protobuf", "\x00\x01\xff"),
		"line ends": raw("text/plain", "a\r\nb"),
		"large":     r.deadWith(outbox.RootTenant, "k", `{"a":"`+strings.Repeat("x", 300<<10)+`"}`),
	} {
		if r.get("job-edit?id="+id.String()).is(409).has("cannot be edited here", "posthaste dlq replay ID --payload @FILE"); t.Failed() {
			t.Log(name)
		}
	}
	r.get("job-edit?id=" + raw("application/vnd.posthaste.sealed", "x").String()).is(409).has("It is sealed")
	waiting := r.enqueue("k", `{}`, outbox.Options{})
	r.get("job-edit?id=" + waiting.String()).is(409).has("The job is pending by now")
	text := raw("text/plain", "\n</textarea><img src=x>\n a")
	editor := r.get("job-edit?id=" + text.String()).is(200)
	if strings.Contains(editor.Body.String(), "<img") {
		t.Error("the payload is HTML")
	}
	form := editor.edited(text, func(s string) string { return s })
	r.post("job-edit", form).is(200).has("The payload is as it was")
	form.Set("payload", form.Get("payload")+"b")
	r.post("job-edit-do", form).is(303)
	if got := r.payloadOf(text); got != "\n</textarea><img src=x>\n ab" {
		t.Errorf("the payload is %q", got)
	}
	// What is JSON by accident keeps its bytes, with masks too.
	braces := raw("text/plain", "{ \"n\" : 1.50,\n  \"password\":\"hunter2\" }\n")
	form = r.get("job-edit?id="+braces.String()).is(200).hasNot("hunter2").edited(braces, func(s string) string { return strings.Replace(s, "1.50", "2.50", 1) })
	r.post("job-edit", form).is(200).has("2.50", "•••")
	r.post("job-edit-do", form).is(303)
	if got := r.payloadOf(braces); got != "{ \"n\" : 2.50,\n  \"password\":\"hunter2\" }\n" {
		t.Errorf("the payload is %q", got)
	}
	// A mask can stand for no value of a form: the refusal leads to the page that has all of it.
	masked := raw("application/x-www-form-urlencoded", "n=1&password=hunter2")
	shown := "job-edit?id=" + masked.String() + "&reveal=1"
	if page := r.get("job-edit?id="+masked.String()).is(409).has("only be edited with all shown", "Edit with all shown"); !strings.Contains(html.UnescapeString(page.Body.String()), `href="`+shown+`"`) {
		t.Error("the refusal does not lead to the page with all shown")
	}
	form = r.get(shown).is(200).has("hunter2").edited(masked, func(s string) string { return strings.Replace(s, "1", "2", 1) })
	r.post("job-edit", form).is(409).has("Edit with all shown")
	form.Set("reveal", "1")
	r.post("job-edit-do", form).is(303)
	if got := r.payloadOf(masked); got != "n=2&password=hunter2" {
		t.Errorf("the payload is %q", got)
	}
	own := r.deadWith(outbox.RootTenant, "k", `{"password":"••• 1","a":"••• 1"}`)
	form = r.get("job-edit?id="+own.String()).is(200).edited(own, func(s string) string { return s })
	r.post("job-edit-do", form).is(303)
	if got := r.payloadOf(own); got != `{"password":"••• 1","a":"••• 1"}` {
		t.Errorf("a payload with masks of its own became %s", got)
	}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	lines := func(from, to int) (all []string) {
		for i := from; i < to; i++ {
			all = append(all, strconv.Itoa(i))
		}
		return all
	}
	for name, c := range map[string]struct {
		a, b []string
		want string
	}{
		"nothing":       {lines(0, 9), lines(0, 9), ""},
		"the middle":    {lines(0, 20), append(append(lines(0, 10), "x"), lines(11, 20)...), "…; 7; 8; 9;-10;+x; 11; 12; 13;…"},
		"the beginning": {[]string{"a", "b"}, []string{"b"}, "-a; b"},
		"the end":       {[]string{"a"}, []string{"a", "b"}, " a;+b"},
		"moved":         {[]string{"a", "b", "c"}, []string{"c", "a", "b"}, "+c; a; b;-c"},
		"far too many":  {append(lines(0, 3000), "end"), append(lines(5000, 8000), "end"), "3000 of - and 3000 of +"},
	} {
		got := console.Diff(c.a, c.b)
		if name == "far too many" {
			if n := strings.Count(got, ";-") + strings.Count(got, ";+"); n != 5999 {
				t.Errorf("%s: %d changes", name, n)
			}
			continue
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
