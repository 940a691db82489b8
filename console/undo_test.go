package console_test

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

var entryField = regexp.MustCompile(`name="entry" value="(\d+)"`)

// undoes returns the form on the page that an act led to; nil if the page has none.
func (a answer) undoes(r *rig) url.Values {
	r.t.Helper()
	page := r.get(a.is(303).Header().Get("Location")).is(200)
	if found := entryField.FindStringSubmatch(page.Body.String()); found != nil {
		return url.Values{"entry": {found[1]}}
	}
	return nil
}

// reversible is an act that can be undone, on a thing that is there, and how that thing stands in the database.
type reversible struct {
	page     string
	form     url.Values
	prepare  string // how the thing was before
	state    string // a query
	undoneBy string // the act, in the audit
	opposite string // the page of it, with which somebody else comes first
}

func reversibles(operation outbox.ID) map[string]reversible {
	queue, sink := url.Values{"queue": {"a/b"}}, url.Values{"name": {"nats"}}
	schedule := url.Values{"tenant": {tenantA.String()}, "name": {"sync"}}
	limits := url.Values{"queue": {"a/b"}, "running": {"9"}, "starts": {"7"}, "interval": {"3s"}}
	const (
		paused  = `SELECT coalesce(bool_or(paused_at IS NOT NULL), false)::text FROM outbox.queues WHERE queue = 'a/b'`
		limited = `SELECT concat_ws(' ', coalesce(max(max_running), 0), coalesce(max(rate), 0), max(rate_interval)) FROM outbox.queues WHERE queue = 'a/b'`
		ticking = `SELECT (paused_at IS NULL)::text FROM outbox.schedules WHERE name = 'sync'`
		flowing = `SELECT (paused_at IS NULL)::text FROM outbox.sinks WHERE sink = 'nats'`
		going   = `SELECT (stopped_at IS NULL)::text FROM outbox.operations`
	)
	return map[string]reversible{
		"pause a queue":      {"queue-pause", queue, ``, paused, "queue.resume", "queue-resume"},
		"resume a queue":     {"queue-resume", queue, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('a/b', now() - interval '1 h')`, paused, "queue.pause", "queue-pause"},
		"limit a free queue": {"queue-limits", limits, ``, limited, "queue.limit", "queue-limits"},
		"change both limits": {"queue-limits", limits, `INSERT INTO outbox.queues (queue, max_running, rate, rate_interval, limited_at) VALUES ('a/b', 4, 100, '26 hours 1.5 seconds', now())`, limited, "queue.limit", "queue-limits"},
		"lift a limit":       {"queue-limits", queue, `INSERT INTO outbox.queues (queue, max_running, limited_at) VALUES ('a/b', 4, now())`, limited, "queue.limit", "queue-limits"},
		"pause a schedule":   {"schedule-pause", schedule, ``, ticking, "schedule.resume", "schedule-resume"},
		"resume a schedule":  {"schedule-resume", schedule, `UPDATE outbox.schedules SET paused_at = now() - interval '1 h'`, ticking, "schedule.pause", "schedule-pause"},
		"pause a sink":       {"sink-pause", sink, ``, flowing, "sink.resume", "sink-resume"},
		"resume a sink":      {"sink-resume", sink, `UPDATE outbox.sinks SET paused_at = now() - interval '1 h'`, flowing, "sink.pause", "sink-pause"},
		"stop an operation":  {"operation-stop", url.Values{"id": {operation.String()}}, ``, going, "operation.resume", "operation-resume"},
	}
}

// thingsToUndo stores a schedule, a sink and an operation, and returns the operation's id.
func (r *rig) thingsToUndo() (operation outbox.ID) {
	r.t.Helper()
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'sync', '1 hour', 'sync', '{}', now() + interval '1 hour')`, tenantA)
	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('nats')`)
	r.deadLetter(tenantA, "k", "c", "m")
	o, err := operator.New(r.db).StartOperation(r.t.Context(), operator.OperationSpec{Act: operator.ReplayLetters})
	if err != nil {
		r.t.Fatal(err)
	}
	return o.ID
}

// make has the things stand as they did before the act.
func (r *rig) make(c reversible) {
	r.t.Helper()
	r.exec(`DELETE FROM outbox.queues`)
	r.exec(`UPDATE outbox.schedules SET paused_at = NULL`)
	r.exec(`UPDATE outbox.sinks SET paused_at = NULL`)
	r.exec(`UPDATE outbox.operations SET stopped_at = NULL`)
	if c.prepare != "" {
		r.exec(c.prepare)
	}
}

func (r *rig) read(query string) (text string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), query).Scan(&text); err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return text
}

func TestAnActIsUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	operation := r.thingsToUndo()
	for name, c := range reversibles(operation) {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			r.make(c)
			before := r.read(c.state)
			undo := r.confirm(c.page, c.form).undoes(&r)
			if left := r.read(c.state); left == before || undo == nil {
				t.Fatalf("it was %s, is %s, and is undone by %v", before, left, undo)
			}
			r.get("audit").is(200).has("Undo…")
			r.get("undo?"+undo.Encode()).is(200).has("If somebody changes it before you confirm", "posthaste ")
			r.as("b").post("undo", undo).is(404).has("There is no such act")
			r.as("all+jobs.read,admin.read").post("undo", undo).is(403)
			redo := r.post("undo", undo).undoes(&r)
			if got := r.read(c.state); got != before {
				t.Errorf("after undoing it is %s, want %s", got, before)
			}
			if n := r.audited(c.undoneBy, "undo of act "+undo.Get("entry")); n != 1 {
				t.Errorf("the audit has %d acts %s, want 1", n, c.undoneBy)
			}
			if r.post("undo", undo).is(409).has("was changed meanwhile", "all did "+c.undoneBy); r.read(c.state) != before {
				t.Error("a form that was sent twice has acted twice")
			}
			if _, both := reversibles(operation)["resume"+name[len("pause"):]]; both && redo == nil {
				t.Error("what undid it cannot be undone")
			}
		})
	}
}

// Between an act and its undoing somebody else has changed the thing: their act stays.
func TestWhatSomebodyHasChangedSinceIsNotUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range reversibles(r.thingsToUndo()) {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			r.make(c)
			led := r.confirm(c.page, c.form)
			undo := led.undoes(&r)
			other := r.as("all+admin.mutate,admin.read,jobs.read")
			form := c.form
			if c.page == c.opposite { // of limits
				form = url.Values{"queue": {"a/b"}, "running": {"5"}}
			}
			other.confirm(c.opposite, form).is(303)
			if c.page != c.opposite && c.undoneBy != "queue.pause" && c.undoneBy != "schedule.pause" && c.undoneBy != "sink.pause" {
				other.confirm(c.page, form).is(303) // a pause again, which is another one
			}
			want := r.read(c.state)
			if again := led.undoes(&r); again != nil {
				t.Errorf("the page still offers %v", again)
			}
			r.get("undo?"+undo.Encode()).is(409).has("was changed meanwhile", "all+admin.mutate,admin.read,jobs.read did ", "Nothing was changed")
			r.post("undo", undo).is(409).has("was changed meanwhile")
			if got := r.read(c.state); got != want {
				t.Errorf("it was %s and is %s: their act was undone", want, got)
			}
		})
	}
}

// Somebody else's act commits while the undoing waits for the row: it has read the row before, and must not act on it.
func TestAnUndoingThatMeetsAnotherActLooksAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	undo := r.confirm("queue-pause", url.Values{"queue": {"mail"}}).undoes(r)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `UPDATE outbox.queues SET paused_at = clock_timestamp() WHERE queue = 'mail'`); err != nil {
		t.Fatal(err)
	}
	got := make(chan answer)
	go func() { got <- r.post("undo", undo) }()
	pgtest.AwaitLocks(t, r.db, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-got).is(http.StatusConflict).has("was changed meanwhile")
	r.get("queues").is(200).has("mail paused")
}

// Somebody else's limits, the first of their queue, commit while the form waits for them: it has shown none.
func TestLimitsThatMeetOthersLookAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.queues (queue, max_running, limited_at) VALUES ('mail', 4, now())`); err != nil {
		t.Fatal(err)
	}
	got := make(chan answer)
	go func() {
		got <- r.post("queue-limits", url.Values{"queue": {"mail"}, "running": {"9"}, "shown": {"none"}})
	}()
	pgtest.AwaitLocks(t, r.db, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-got).is(http.StatusConflict).has("was changed meanwhile")
}

// A double click sends a form twice. The second answer is like the first, with which the act can be undone.
func TestADoubleClickIsNoConflictWithOneself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	things := reversibles(r.thingsToUndo())
	for name, c := range things {
		if c.undoneBy == "queue.limit" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			r.make(c)
			form := r.get(c.page + "?" + c.form.Encode()).is(200).fieldsOf()
			once := r.post(c.page, form).undoes(&r)
			if again := r.post(c.page, form).undoes(&r); once == nil || again.Encode() != once.Encode() {
				t.Errorf("the second answer undoes %v, want %v", again, once)
			}
			r.as("all+admin.mutate,admin.read,jobs.read").post(c.page, form).is(409).has("all did ")
			r.exec(`UPDATE outbox.audit SET at = at - interval '10 s'`)
			r.post(c.page, form).is(409).has("was changed meanwhile")
		})
	}
}

// What has ended says so, and names nobody who has done something else with it before.
func TestARefusalNamesTheActThatMattered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.thingsToUndo().String()
	stop := r.get("operation-stop?id=" + id).is(200).fieldsOf()
	r.exec(`UPDATE outbox.operations SET finished_at = now()`)
	r.post("operation-stop", stop).is(409).has("The operation has ended", "Nothing was changed").hasNot("operation.start")
	r.exec(`UPDATE outbox.operations SET finished_at = NULL, stopped_at = now()`)
	r.post("operation-stop", stop).is(409).has("was changed meanwhile").hasNot("operation.start")
}

func TestWhatHasNoOppositeIsNotUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	waits := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA}).String()
	form := url.Values{"id": {waits}, "while": {"pending@0"}}
	if undo := r.post("job-cancel", form).undoes(r); undo != nil {
		t.Errorf("a cancellation offers %v", undo)
	}
	entry := r.read(`SELECT max(id)::text FROM outbox.audit`)
	r.get("undo?entry=" + entry).is(409).has("cannot be undone")
	r.get("audit").is(200).hasNot("Undo…")
	r.post("undo", url.Values{"entry": {entry}}).is(409)
	r.get("undo?entry=9223372036854775807").is(400)
	r.get("undo?entry=99999999").is(404)
	r.get("queue?queue=mail&done=" + entry).is(200).hasNot("Undo")
	r.get("queue?queue=mail&done=x").is(400)
}

// Bob opens the form that ends a pause. Somebody else ends it meanwhile, and Ada begins another: what Bob confirms does
// not end hers, and he learns of it, also while something acts on hundreds of jobs. Nor is what is paused paused again.
func TestAFormEndsOnlyThePauseThatItHasShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	operation := r.thingsToUndo()
	things := reversibles(operation)
	ada := r.as("all+admin.mutate,admin.read,jobs.read")
	for name, pages := range map[string][2]string{
		"pause a queue": {"queue-pause", "queue-resume"}, "pause a schedule": {"schedule-pause", "schedule-resume"},
		"pause a sink": {"sink-pause", "sink-resume"}, "stop an operation": {"operation-stop", "operation-resume"},
	} {
		t.Run(name, func(t *testing.T) {
			r, ada := *r, *ada
			r.t, ada.t = t, t
			c, pause, resume := things[name], pages[0], pages[1]
			r.make(c)
			early := r.get(pause + "?" + c.form.Encode()).is(200).fieldsOf()
			ada.confirm(pause, c.form).is(303)
			r.post(pause, early).is(409).has("was changed meanwhile", ada.token+" did ")
			late := r.get(resume + "?" + c.form.Encode()).is(200).fieldsOf()
			r.confirm(resume, c.form).is(303)
			ada.confirm(pause, c.form).is(303)
			want := r.read(c.state)
			r.exec(`INSERT INTO outbox.audit (actor, act, tenant_id, job_id, queue, before) SELECT 'bulk', 'job.replay', $1, gen_random_uuid(), 'a/b', '{"status": "dead"}' FROM generate_series(1, 400)`, tenantA)
			r.post(resume, late).is(409).has("was changed meanwhile", ada.token+" did ")
			if got := r.read(c.state); got != want {
				t.Errorf("it was %s and is %s: her pause has ended", want, got)
			}
			r.post(pause, r.get(pause+"?"+c.form.Encode()).is(200).fieldsOf()).is(409).has(ada.token + " did ")
			c.form = maps.Clone(c.form)
			c.form.Del("shown")
			r.post(resume, c.form).is(400).has("shown")
		})
	}
}

// Something acts on hundreds of jobs a second: between an act and the page that it leads to, it has written more acts
// than a page of the audit has. The act can be undone all the same.
func TestAnActIsUndoneWhileSomethingActsOnManyJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`CREATE FUNCTION public.many() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		INSERT INTO outbox.audit (actor, act, job_id, queue, before) SELECT 'bulk', 'job.replay', gen_random_uuid(), 'mail', '{"status": "dead"}' FROM generate_series(1, 400);
		RETURN NULL; END $$`)
	r.exec(`CREATE TRIGGER many AFTER INSERT ON outbox.audit FOR EACH ROW WHEN (NEW.act LIKE '%.pause') EXECUTE FUNCTION public.many()`)
	r.thingsToUndo()
	for page, form := range map[string]url.Values{
		"queue-pause": {"queue": {"mail"}}, "schedule-pause": {"tenant": {tenantA.String()}, "name": {"sync"}},
	} {
		if undo := r.confirm(page, form).undoes(r); undo == nil {
			t.Errorf("what %s has done is not offered to be undone", page)
		} else {
			r.post("undo", undo).is(303)
		}
	}
	// Of the acts on one thing the audit offers to undo the last.
	r.get("audit?target=sync").is(200).has("schedule.resume", "Undo…")
	r.get("audit?act=schedule.pause").is(200).has("schedule.pause").hasNot("Undo…")
}

// Something changes the thing's row again and again, as the steps of an operation and a busy sink do, and adds to the
// audit. A person who presses Stop, Pause or Undo waits for it for a moment, and is not refused because of it.
func TestAThingIsStoppedHoweverBusyItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	things := reversibles(r.thingsToUndo())
	r.exec(`INSERT INTO outbox.queues (queue) VALUES ('a/b')`)
	const acts = `INSERT INTO outbox.audit (actor, act, job_id, queue, before) VALUES ('bulk', 'job.replay', gen_random_uuid(), 'a/b', '{"status": "dead"}')`
	for name, busy := range map[string]string{
		"pause a queue":     `UPDATE outbox.queues SET updated_at = now()`,
		"pause a schedule":  `UPDATE outbox.schedules SET updated_at = now()`,
		"pause a sink":      `UPDATE outbox.sinks SET published = published + 1`,
		"stop an operation": `UPDATE outbox.operations SET done = done + 1`,
	} {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				for ctx.Err() == nil {
					if _, err := r.db.Exec(context.WithoutCancel(ctx), `DO $$ BEGIN `+busy+`; PERFORM pg_sleep(0.02); `+acts+`; END $$`); err != nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
			c := things[name]
			before := r.read(c.state)
			undo := r.confirm(c.page, c.form).undoes(&r)
			if undo == nil || r.read(c.state) == before {
				t.Errorf("it is %s, as it was, and is undone by %v", before, undo)
			} else if r.post("undo", undo).is(303); r.read(c.state) != before {
				t.Errorf("after undoing it is not %s", before)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
