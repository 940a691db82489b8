package console_test

import (
	"net/url"
	"strings"
	"testing"
)

// A search gets a name, stands above the list by it, and loses it again.
func TestASearchIsSaved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	of := func(name, search string, shared bool) url.Values {
		form := viewNamed(name, shared)
		form.Set("search", search)
		form.Del("reason")
		return form
	}
	search := "kind=a%22b&since=2h&status=pending"
	link := `href="jobs?kind=a%22b&amp;since=2h&amp;status=pending"`
	r.as("a").get("jobs?" + search).is(200).has("Save this search…").hasHTML(`href="view-save?search=` + url.QueryEscape(search))
	r.as("a").get("view-save?search=" + url.QueryEscape(search)).is(200).has("Share it with all").hasHTML(link)
	r.as("a").get("jobs").is(200).hasNot("Save this search…")

	to := r.as("a").post("view-save", of(" late "+evil, search, false)).is(303).Header().Get("Location")
	if to != "jobs?kind=a%22b&since=2h&status=pending" {
		t.Errorf("it leads to %s", to)
	}
	r.as("a").get("jobs").is(200).has("late "+evil).hasNot("shared").hasHTML(link, "Delete view late", "&lt;img")
	r.as("a").get(to).is(200).hasNot("Save this search…").hasHTML(`aria-current`)
	r.as("b").get("jobs").is(200).hasNot("late")
	r.as("a+jobs.read").get("jobs").is(200).hasNot("late")

	r.as("a+jobs.read").get("view-save?search=" + url.QueryEscape(search)).is(200).has("Needs admin.mutate").hasNot("Share it")
	r.as("a+jobs.read").post("view-save", of("ours", search, true)).is(403)
	long := strings.Repeat("x", 101)
	r.as("a").post("view-save", of(long, search, true)).is(400).has("1 to 100 bytes").hasHTML(`name="shared" value="1" checked`, long)
	r.as("a").post("view-save", of(long, search, false)).is(400).hasNot(`value="1" checked`)
	r.as("a").post("view-save", of("ours", search, true)).is(303)
	r.as("a+jobs.read").get("jobs").is(200).has("ours shared")
	r.as("b").get("jobs").is(200).hasNot("ours")
	r.get("jobs").is(200).hasNot("ours")
	if acts := r.read(`SELECT string_agg(act || ' ' || target, ', ') FROM outbox.audit`); acts != "view.share ours" {
		t.Errorf("the audit has %s, want what was shared alone", acts)
	}

	r.as("a+jobs.read").get("view-delete?name=ours&shared=1").is(403)
	r.as("a+jobs.read").post("view-delete", viewNamed("ours", true)).is(403)
	r.as("b").post("view-delete", viewNamed("ours", true)).is(404)
	r.as("a").get("view-delete?name=ours&shared=1").is(200).has("has shared it")
	r.as("a").get("view-delete?name=ours").is(404)
	r.as("a").post("view-delete", viewNamed("ours", true)).is(400).has("shown")
	r.as("a").post("view-delete", r.as("a").get("view-delete?name=ours&shared=1").fieldsOf()).is(303)
	page := r.as("a").get("view-delete?" + url.Values{"name": {"late " + evil}}.Encode()).is(200).has("The view is deleted").hasHTML("&lt;img")
	r.as("a").post("view-delete", page.fieldsOf()).is(303)
	r.as("a").get("jobs").is(200).hasNot("late", "ours")
}

// A view that somebody else has shared is neither replaced nor deleted by people who have not seen what it stands for.
func TestAViewOfAnotherPersonIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shares := func(query string) {
		r.exec(`INSERT INTO outbox.saved_views SELECT tenant_id, '', 'stuck', $1, 'bob' FROM outbox.saved_views WHERE name = 'mine'
			ON CONFLICT (tenant_id, person, name) DO UPDATE SET query = excluded.query, saved_by = 'bob'`, query)
	}
	stands := func() string {
		return r.read(`SELECT coalesce(string_agg(query || ' by ' || saved_by, ', '), 'nothing') FROM outbox.saved_views WHERE name = 'stuck'`)
	}
	r.as("a").post("view-save", url.Values{"name": {"mine"}, "search": {"kind=m"}}).is(303)
	form := url.Values{"name": {"stuck"}, "search": {"kind=a"}, "shared": {"1"}}
	shares("kind=b")
	page := r.as("a").post("view-save", form).is(409).has("bob has shared stuck already", "kind:b", "choose another name").hasHTML(`value="kind=a"`, `value="stuck"`)
	form.Set("replaces", page.fieldsOf().Get("replaces"))
	shares("kind=c")
	page = r.as("a").post("view-save", form).is(409).has("kind:c")
	if got := stands(); got != "kind=c by bob" {
		t.Errorf("it stands for %s", got)
	}
	form.Set("replaces", page.fieldsOf().Get("replaces"))
	r.as("a").post("view-save", form).is(303)
	// It is their own now.
	r.as("a").post("view-save", url.Values{"name": {"stuck"}, "search": {"kind=d"}, "shared": {"1"}}).is(303)
	deletion := r.as("a").get("view-delete?name=stuck&shared=1").is(200).has("kind:d").fieldsOf()
	deletion.Set("reason", "")
	shares("kind=e")
	r.as("a").post("view-delete", deletion).is(409).has("other jobs by now")
	if got := stands(); got != "kind=e by bob" {
		t.Errorf("it stands for %s", got)
	}
	deletion = r.as("a").get("view-delete?name=stuck&shared=1").is(200).fieldsOf()
	r.as("a").post("view-delete", deletion).is(303)
	if got := stands(); got != "nothing" {
		t.Errorf("it stands for %s", got)
	}
	// Where it stands for the same, nothing is lost.
	shares("kind=f")
	r.as("a").post("view-save", url.Values{"name": {"stuck"}, "search": {"kind=f"}, "shared": {"1"}}).is(303)
	if got := stands(); !strings.HasPrefix(got, "kind=f by ") {
		t.Errorf("it stands for %s", got)
	}
}

// A view that nobody can read any more, because another release has written it, is not the end of the page of all who
// share it: each of them may delete it.
func TestAViewThatCannotBeReadIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.saved_views (tenant_id, person, name, query, saved_by) VALUES
		($1, '', 'first', 'kind=a', 'bob'), ($1, '', 'last', 'nonsense=1', 'bob')`, tenantA)
	r.as("a").get("jobs").is(200).has("first", "last").hasHTML("is no condition", `aria-label="Delete view last"`)
	r.as("a").post("view-save", url.Values{"name": {"last"}, "search": {"kind=a"}, "shared": {"1"}}).is(409).has("nonsense=1")
	deletion := r.as("a").get("view-delete?name=last&shared=1").is(200).has("nonsense=1").fieldsOf()
	r.as("a").post("view-delete", deletion).is(303)
	r.as("a").get("jobs").is(200).has("first").hasNot("last shared")
}

func (a answer) hasHTML(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.Body.String(), text) {
			a.t.Errorf("%q is not in the page", text)
		}
	}
	return a
}

// viewNamed returns the form that deletes a view.
func viewNamed(name string, shared bool) url.Values {
	form := url.Values{"name": {name}, "reason": {""}}
	if shared {
		form.Set("shared", "1")
	}
	return form
}

func TestViewsThatCannotBeSaved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, search := range []string{"", "status=nothing", "colour=red", "since=soon", "%zz"} {
		r.get("view-save?search=" + url.QueryEscape(search)).is(400)
		r.post("view-save", url.Values{"name": {"x"}, "search": {search}}).is(400)
	}
	r.as("a").post("view-save", url.Values{"name": {"x"}, "search": {"tenant=" + tenantB.String()}}).is(403)
	r.post("view-save", url.Values{"name": {"  "}, "search": {"kind=a"}}).is(400).has("A name has 1 to 100").hasHTML(`value="kind=a"`)
	r.post("view-save", url.Values{"name": {strings.Repeat("ä", 60)}, "search": {"kind=a"}}).is(400).has("A name has 1 to 100")
	r.exec(`INSERT INTO outbox.saved_views SELECT '00000000-0000-0000-0000-000000000000', 'all', 'n' || n, 'kind=a', 'all' FROM generate_series(1, 50) AS n`)
	r.post("view-save", url.Values{"name": {"x"}, "search": {"kind=a"}}).is(400).has("There are 50 views already").hasHTML(`value="x"`)
	// What another release has written, or somebody by hand.
	r.exec(`UPDATE outbox.saved_views SET query = 'colour=red' WHERE name = 'n1'`)
	r.get("jobs").is(200).hasHTML("<s title", "is no condition", `aria-label="Delete view n1"`)
}
