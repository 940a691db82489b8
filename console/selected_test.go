package console_test

import (
	"context"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// fieldsOf returns the hidden fields of a form, each as often as it is there.
func (a answer) fieldsOf() url.Values {
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(a.Body.String(), -1) {
		if m[1] != "back" {
			form.Add(m[1], html.UnescapeString(m[2]))
		}
	}
	return form
}

// hasSource wants texts in the page as it was sent.
func (a answer) hasSource(t *testing.T, texts ...string) answer {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.Body.String(), text) {
			t.Errorf("the page is without %s", text)
		}
	}
	return a
}

// Jobs that a person has selected are acted on, each in the status in which it was shown, and no other.
func TestJobsThatWereSelectedAreActedOn(t *testing.T) {
	t.Parallel()
	for act, c := range map[string]struct {
		hold          bool
		says, becomes string
	}{
		"cancel": {false, "Cancel 3 jobs", "cancelled"}, "release": {true, "Release 3 jobs", "pending"}, "retry": {false, "Retry 3 jobs", "pending"},
	} {
		t.Run(act, func(t *testing.T) {
			r := newRig(t)
			var ids [4]outbox.ID
			for i := range ids {
				ids[i] = r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Hold: c.hold})
			}
			foreign := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantB, Hold: c.hold})
			was := r.statusOf(foreign)
			r.as("a").get("jobs?kind=k").is(200).hasSource(t, `form="selected"`, ids[0].String(), "selected-"+act)
			query := fmt.Sprintf("selected-%s?kind=k&id=%s&id=%s&id=%s&id=%s", act, ids[0], ids[1], ids[2], foreign)
			r.as("a+jobs.read").get(query).is(403)
			page := r.as("a").get(query).is(200).has(c.says, "The other 1 of the selected", "posthaste jobs "+act+" "+ids[0].String())
			form := page.fieldsOf()
			if len(form["id"]) != 3 {
				t.Fatalf("the form has %v", form)
			}
			if c.hold { // something else happens to one of them
				r.exec(`UPDATE outbox.jobs SET status = 'pending' WHERE id = $1`, ids[2])
			} else {
				r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now()
					WHERE id = $1`, ids[2])
			}
			moved := r.statusOf(ids[2])
			r.as("a").post("selected-"+act, form).is(400).has("A reason is missing")
			form.Set("reason", "wrong campaign")
			r.as("a+jobs.read,admin.read").post("selected-"+act, form).is(403)
			to := r.as("a").post("selected-"+act, form).is(303).Header().Get("Location")
			for id, want := range map[outbox.ID]string{ids[0]: c.becomes, ids[1]: c.becomes, ids[2]: moved, ids[3]: was, foreign: was} {
				if got := r.statusOf(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			if n := r.audited("job."+act, "wrong campaign"); n != 2 {
				t.Errorf("the audit has %d acts, want 2", n)
			}
			if !strings.HasPrefix(to, "jobs?") || !strings.Contains(to, "kind=k") {
				t.Errorf("it leads to %s", to)
			}
			r.as("a").get(to).is(200).has("Done to 2 of 3 jobs", "Audit")
		})
	}
}

// Dead letters of a group are selected, too, and what is done leads back to the group.
func TestLettersThatWereSelectedAreActedOn(t *testing.T) {
	t.Parallel()
	for act, becomes := range map[string]string{"retry": "pending", "dismiss": "dismissed"} {
		t.Run(act, func(t *testing.T) {
			r := newRig(t)
			first, second := r.deadLetter(tenantA, "k", "c", "m"), r.deadLetter(tenantA, "k", "c", "m")
			waits := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
			list := r.as("a").get("letters").is(200).Body.String()
			group := list[strings.Index(list, "letters?error="):]
			group = html.UnescapeString(group[:strings.IndexByte(group, '"')])
			page := r.as("a").get(group).is(200).hasSource(t, `form="selected"`, "selected-"+act)
			if strings.Contains(page.Body.String(), "selected-cancel") {
				t.Error("dead letters cannot be cancelled, and are offered to be")
			}
			query := strings.Replace(group, "letters?", "selected-"+act+"?from=letters&", 1) + "&id=" + first.String()
			form := r.as("a").get(query).is(200).has(upperFirst(act) + " 1 job").fieldsOf()
			form.Set("reason", "the relay is back")
			to := r.as("a").post("selected-"+act, form).is(303).Header().Get("Location")
			for id, want := range map[outbox.ID]string{first: becomes, second: "dead", waits: "pending"} {
				if got := r.statusOf(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			if !strings.HasPrefix(to, "letters?") {
				t.Errorf("it leads to %s", to)
			}
			r.as("a").get(to).is(200).has("Done to 1 job").hasSource(t, second.String())
		})
	}
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// What cannot be meant is refused, and nothing is done.
func TestASelectionThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("k", `{}`, outbox.Options{})
	r.get("selected-cancel").is(400).has("No job is selected")
	r.get("selected-cancel?id=x").is(400).has("id")
	r.get("selected-dismiss?id=" + id.String()).is(409).has("Nothing to dismiss")
	many := url.Values{}
	for range 101 {
		many.Add("id", outbox.NewID().String())
	}
	r.get("selected-cancel?"+many.Encode()).is(400).has("101 jobs are selected", "Select 100 at most")
	r.post("selected-cancel", url.Values{"id": {id.String()}, "reason": {"x"}}).is(400).has("while")
	r.post("selected-cancel", url.Values{"id": {id.String()}, "while": {"soon"}, "reason": {"x"}}).is(400).has("while")
	if got := r.statusOf(id); got != "pending" {
		t.Errorf("it is %s", got)
	}
	r.post("selected-cancel", url.Values{"id": {id.String(), id.String()}, "while": {r.seen(id), r.seen(id)}, "reason": {"x"}}).is(400).has("while")
	other := r.enqueue("k", `{}`, outbox.Options{})
	r.post("selected-cancel", url.Values{"id": {id.String(), other.String()}, "while": {r.seen(id), "pending@soon"}, "reason": {"x"}}).is(400).has("while")
	if got := r.statusOf(id); got != "pending" {
		t.Errorf("it is %s", got)
	}
	r.get("jobs?acted=0&of=3").is(200).has("Done to 0 of 3 jobs", "locked").hasSource(t, "jobs-export?format=csv\"")
	for _, not := range []string{"acted=x&of=3", "acted=4&of=3", "acted=-1&of=3", "acted=1&of=101"} {
		r.get("jobs?" + not).is(200).hasNot("Done to")
	}
}

// A form that names another tenant's job does nothing to it, also where the login is the owner's, for whom there is no
// row security.
func TestAForgedSelectionReachesNoOtherTenant(t *testing.T) {
	t.Parallel()
	for name, owner := range map[string]bool{"with row security": false, "as the owner": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if owner {
				handler, err := console.New(console.Config{Pool: r.db, Authenticator: fixed{}, Name: "test"})
				if err != nil {
					t.Fatal(err)
				}
				r.handler = handler
			}
			own, foreign := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA}), r.enqueue("k", `{}`, outbox.Options{Tenant: tenantB})
			form := url.Values{"id": {foreign.String(), own.String()}, "while": {r.seen(foreign), r.seen(own)}, "reason": {"x"}}
			to := r.as("a").post("selected-cancel", form).is(303).Header().Get("Location")
			if got := [2]string{r.statusOf(own), r.statusOf(foreign)}; got != [2]string{"cancelled", "pending"} {
				t.Errorf("its own and the other's are %v", got)
			}
			r.as("a").get(to).is(200).has("Done to 1 of 2 jobs")
		})
	}
}

// A job whose row a handler's transaction holds keeps the others from nothing, and the page says that not all was done.
func TestASelectedJobThatIsLockedIsPassedBy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	locked, free := r.enqueue("k", `{}`, outbox.Options{}), r.enqueue("k", `{}`, outbox.Options{})
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, locked); err != nil {
		t.Fatal(err)
	}
	form := url.Values{"id": {locked.String(), free.String()}, "while": {r.seen(locked), r.seen(free)}, "reason": {"x"}}
	to := r.post("selected-cancel", form).is(303).Header().Get("Location")
	if got := r.statusOf(free); got != "cancelled" {
		t.Errorf("the one that is not locked is %s", got)
	}
	r.get(to).is(200).has("Done to 1 of 2 jobs. The others are locked").hasNot("not known", "An error ended it")
}

// What may have been done is not reported as left alone: a commit that takes longer than the console waits, and is
// completed all the same as one that waits for a standby is; and an act whose connection breaks. The others go on.
func TestASelectedJobWhoseOutcomeIsUnknownIsSaidToBe(t *testing.T) {
	t.Parallel()
	for kind, becomes := range map[string]string{"slow": "cancelled", "broken": "pending"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(`CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF OLD.kind = 'broken' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF;
				PERFORM pg_sleep(2);
				RETURN NULL;
			EXCEPTION WHEN query_canceled THEN RETURN NULL; END $$`)
			r.exec(`CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE OR DELETE ON outbox.jobs DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW WHEN (OLD.kind IN ('slow', 'broken')) EXECUTE FUNCTION at_commit()`)
			form := url.Values{"reason": {"x"}}
			var ids [2]outbox.ID
			for i, kind := range []string{"good", kind} {
				ids[i] = r.enqueue(kind, `{}`, outbox.Options{})
				form.Add("id", ids[i].String())
				form.Add("while", r.seen(ids[i]))
			}
			to := r.post("selected-cancel", form).is(303).Header().Get("Location")
			for end := time.Now().Add(time.Minute); r.statusOf(ids[1]) != becomes; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it is %s, want %s", r.statusOf(ids[1]), becomes)
				}
			}
			r.get(to).is(200).has("Done to 1 of 2 jobs. Whether it was done to 1 job is not known").hasNot("The others are locked", "An error ended it")
		})
	}
}

// What the database refuses for one job keeps the others from nothing, and an error that ends the act is not put down
// to the jobs.
func TestAnErrorInTheMiddleOfASelectionIsSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tenant  outbox.ID
		code    string
		says    string
		becomes [3]string
	}{
		"refused":                 {outbox.RootTenant, "P0001", "Done to 2 of 3 jobs. The database refused it for 1 job", [3]string{"cancelled", "pending", "cancelled"}},
		"refused, another tenant": {tenantA, "P0001", "Done to 2 of 3 jobs. The database refused it for 1 job", [3]string{"cancelled", "pending", "cancelled"}},
		"ended":                   {outbox.RootTenant, "XX000", "Done to 1 of 3 jobs. An error ended it before 2 jobs", [3]string{"cancelled", "pending", "pending"}},
		"ended, another tenant":   {tenantA, "XX000", "Done to 1 of 3 jobs. An error ended it before 2 jobs", [3]string{"cancelled", "pending", "pending"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + c.code + `'; END $$`)
			r.exec(`CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.jobs FOR EACH ROW WHEN (OLD.kind = 'bad') EXECUTE FUNCTION refuse()`)
			form := url.Values{"reason": {"x"}}
			var ids [3]outbox.ID
			for i, kind := range []string{"good", "bad", "good"} {
				ids[i] = r.enqueue(kind, `{}`, outbox.Options{Tenant: c.tenant})
				form.Add("id", ids[i].String())
				form.Add("while", r.seen(ids[i]))
			}
			to := r.post("selected-cancel", form).is(303).Header().Get("Location")
			for i, want := range c.becomes {
				if got := r.statusOf(ids[i]); got != want {
					t.Errorf("job %d is %s, want %s", i, got, want)
				}
			}
			r.get(to).is(200).has(c.says).hasNot("The others are locked")
		})
	}
	r := newRig(t)
	for _, not := range []string{"acted=1&of=2&refused=2", "acted=1&of=2&ended=x", "acted=1&of=2&refused=-1"} {
		r.get("jobs?" + not).is(200).hasNot("Done to")
	}
}
