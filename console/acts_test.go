package console_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// statusOf returns a job's status in the database.
func (r *rig) statusOf(id outbox.ID) (status string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), `SELECT status::text FROM outbox.jobs WHERE id = $1 UNION ALL SELECT status::text FROM outbox.history WHERE id = $1`, id).Scan(&status); err != nil {
		r.t.Fatal(err)
	}
	return status
}

// seen returns what a form has of a job that its page has just shown.
func (r *rig) seen(id outbox.ID) (while string) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), `SELECT status::text||'@'||epoch::text FROM outbox.jobs WHERE id = $1`, id).Scan(&while); err != nil {
		r.t.Fatal(err)
	}
	return while
}

// diesOf has a job run and die once more.
func (r *rig) diesOf(id outbox.ID, code string) {
	r.t.Helper()
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, last_error_code = $2, failed_at = clock_timestamp() WHERE id = $1`, id, code)
}

// audited returns how many acts of the kind the audit has, with the reason.
func (r *rig) audited(act, reason string) (n int) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), `SELECT count(*) FROM outbox.audit WHERE act = $1 AND reason = $2`, act, reason).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestAnActIsShownBeforeItIsDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		path, says, becomes string
		job                 func() outbox.ID
	}{
		"a dead letter is run again": {"job-retry", "becomes pending again, with all its 1 attempts", "pending", func() outbox.ID { return r.deadLetter(tenantA, "k", "c", "m") }},
		"a held job is released":     {"job-release", "runs when it is due", "pending", func() outbox.ID { return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Hold: true}) }},
		"a waiting job is cancelled": {"job-cancel", "never runs", "cancelled", func() outbox.ID { return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA}) }},
		"a dead letter is dismissed": {"job-dismiss", "moves to the history", "dismissed", func() outbox.ID { return r.deadLetter(tenantA, "k", "c", "m") }},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.job()
			before := r.statusOf(id)
			r.as("a").get("job?id=" + id.String()).is(200)
			if !strings.Contains(r.as("a").get("job?id="+id.String()).Body.String(), c.path+"?id=") {
				t.Error("the job's page does not lead to the act")
			}
			r.as("a").get(c.path+"?id="+id.String()).is(200).has(c.says, "posthaste jobs")
			if got := r.statusOf(id); got != before {
				t.Fatalf("the first step made it %s", got)
			}
			form := url.Values{"id": {id.String()}, "while": {r.seen(id)}, "reason": {"because of " + name}}
			r.as("b").post(c.path, form).is(404)
			r.as("a+jobs.read,admin.read").post(c.path, form).is(403)
			if got := r.as("a").post(c.path, form).is(303).Header().Get("Location"); got != "job?id="+id.String() {
				t.Errorf("led to %s", got)
			}
			if got := r.statusOf(id); got != c.becomes {
				t.Errorf("it is %s, want %s", got, c.becomes)
			}
			// The same form once more: a second click, the back button. To cancel what is cancelled is no mistake.
			if again := r.as("a").post(c.path, form).Code; again != 409 && c.path != "job-cancel" {
				t.Errorf("the second time: got %d", again)
			}
			act := strings.Replace(c.path, "-", ".", 1)
			if act == "job.retry" { // of a dead letter
				act = "job.replay"
			}
			if n := r.audited(act, "because of "+name); n != 1 {
				t.Errorf("the audit has %d acts %s, want 1", n, act)
			}
		})
	}
}

// The job was pending when the page was made, and runs when the form is sent: what was previewed does not hold.
func TestAnActDoesWhatWasShownOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("k", `{}`, outbox.Options{})
	form := url.Values{"id": {id.String()}, "while": {r.seen(id)}, "reason": {"x"}}
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	r.post("job-cancel", form).is(409).has("The job is running by now", "Nothing was changed")
	var asked bool
	if err := r.db.QueryRow(t.Context(), `SELECT cancel_requested_at IS NOT NULL FROM outbox.jobs WHERE id = $1`, id).Scan(&asked); err != nil || asked {
		t.Errorf("its handler was asked to stop: %v, %v", asked, err)
	}
}

// Somebody has run the dead letter again since the page was made, and it has died of something else, which nobody who
// dismisses it has seen.
func TestAnActIsNotDoneToWhatHasDiedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, act := range map[string]struct{ path, answer string }{
		"by itself": {"job-dismiss", ""}, "among selected": {"selected-dismiss", "Done to 0 of 1 job"}, "to be run again": {"job-retry", ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := r.deadLetter(tenantA, "k", "c", "m")
			form := r.as("a").get(act.path + "?id=" + id.String()).is(200).fieldsOf()
			form.Set("reason", "it is of no use")
			r.as("a").post("job-retry", url.Values{"id": {id.String()}, "while": {r.seen(id)}, "reason": {"mended"}}).is(303)
			r.diesOf(id, "another")
			sent := r.as("a").post(act.path, form)
			if act.answer == "" {
				sent.is(409).has("The job is dead again by now", "Nothing was changed")
			} else {
				r.as("a").get(sent.is(303).Header().Get("Location")).is(200).has(act.answer)
			}
			if got := r.statusOf(id); got != "dead" {
				t.Errorf("it is %s", got)
			}
		})
	}
}

func TestTheSecondOneLearnsWhoWasFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadLetter(tenantA, "k", "c", "m")
	form := r.get("job-dismiss?id=" + id.String()).is(200).fieldsOf()
	r.as("a").post("job-retry", form).is(303)
	r.post("job-dismiss", form).is(409).has("The job is pending by now", "a did job.replay", "Look again").hasSource(t, `href="job?id=`+id.String()+`"`)
	// Afterwards a worker is first. The one who acted before the page was made is not to blame.
	form = r.get("job-cancel?id=" + id.String()).is(200).fieldsOf()
	r.diesOf(id, "another")
	for _, who := range []*rig{r, r.as("a")} {
		who.post("job-cancel", form).is(409).has("The job is dead by now", "Nobody has acted on it since", "Look again").hasNot("a did job.replay")
	}
	form.Del("after")
	r.post("job-cancel", form).is(409).has("in no status in which this can be done").hasNot("a did job.replay")
}

// A person who unblocks a key acts on the letters that block it.
func TestTheSecondOneLearnsWhoUnblockedTheKey(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": tenantA} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.letterOf(tenant, outbox.KeyRules{Name: "k", Ordered: true}, "c")
			form := r.get("job-dismiss?id=" + id.String()).is(200).fieldsOf()
			if _, err := operator.New(r.db).As(operator.Actor{Name: "grace"}).Unblock(t.Context(), operator.KeyName{Tenant: tenant, Queue: "mail", Key: "k"}); err != nil {
				t.Fatal(err)
			}
			r.post("job-dismiss", form).is(409).has("The job is pending by now", "grace did job.replay").hasNot("Nobody has acted")
		})
	}
}

// letterOf stores a dead letter of a key.
func (r *rig) letterOf(tenant outbox.ID, rules outbox.KeyRules, code string) outbox.ID {
	r.t.Helper()
	id := r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Tenant: tenant, Key: rules, MaxAttempts: 1})
	r.diesOf(id, code)
	return id
}

// The page of a key offers to unblock it only if that changes something, and says what: not all dead letters of a key
// block it.
func TestUnblockingAKeyIsPreviewedAsItIsDone(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": tenantA} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			of := func(key string) string {
				return url.Values{"tenant": {tenant.String()}, "queue": {"mail"}, "key": {key}}.Encode()
			}
			plain := r.letterOf(tenant, outbox.KeyRules{Name: "plain"}, "c")
			r.letterOf(tenant, outbox.KeyRules{Name: "passed", Ordered: true, OnDeath: outbox.SkipDead}, "c")
			for _, key := range []string{"plain", "passed"} {
				r.get("key?" + of(key)).is(200).hasNot("Unblock…")
				r.get("key-unblock?" + of(key)).is(409).has("Nothing to unblock")
			}
			// The key is parked for what has lapsed; the other letter has not parked it, and stays.
			lapsed := r.letterOf(tenant, outbox.KeyRules{Name: "plain", OnLapse: outbox.BlockLapsed}, "lease_lost")
			r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at, parked_for) VALUES ($1, 'mail', 'plain', now(), $2)
				ON CONFLICT (tenant_id, queue, key) DO UPDATE SET parked_at = excluded.parked_at, parked_for = excluded.parked_for`, tenant, lapsed)
			r.get("key?" + of("plain")).is(200).has("Unblock…")
			form := r.get("key-unblock?"+of("plain")).is(200).has("at its old place: 1 dead letter", "Its other dead letters (1) stay", "no longer parked").fieldsOf()
			another := r.letterOf(tenant, outbox.KeyRules{Name: "plain", OnLapse: outbox.BlockLapsed}, "lease_lost")
			form = r.post("key-unblock", form).is(400).has("Other dead letters block the key by now", "Nothing was changed", "at its old place: 2 dead letters").fieldsOf()
			if got := r.statusOf(lapsed); got != "dead" {
				t.Fatalf("what was refused has made it %s", got)
			}
			r.get(r.post("key-unblock", form).is(303).Header().Get("Location")).is(200).has("runs again: 2 dead letters")
			for id, want := range map[outbox.ID]string{plain: "dead", lapsed: "pending", another: "pending"} {
				if got := r.statusOf(id); got != want {
					t.Errorf("a letter is %s, want %s", got, want)
				}
			}
			r.get("key?" + of("plain") + "&request=x").is(200).hasNot("was unblocked")
		})
	}
}

func TestKeysSchedulesAndSinksAreActedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hostile := `a/b?c=%&d ` + evil
	head := r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Tenant: tenantA, Key: outbox.KeyRules{Name: hostile, Ordered: true}, MaxAttempts: 1})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, head)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, failed_at = clock_timestamp() WHERE id = $1`, head)
	key := url.Values{"tenant": {tenantA.String()}, "queue": {"mail"}, "key": {hostile}}
	form := r.as("a").get("key-unblock?"+key.Encode()).is(200).has("What blocks it runs again, at its old place: 1 dead letter", hostile).fieldsOf()
	r.as("b").post("key-unblock", form).is(403)
	r.as("a").post("key-unblock", key).is(400)
	r.as("a").get(r.as("a").post("key-unblock", form).is(303).Header().Get("Location")).is(200).has("The key was unblocked", "runs again: 1 dead letter")
	r.as("a").post("key-unblock", form).is(409).has("Nothing to unblock")
	if got := r.statusOf(head); got != "pending" {
		t.Errorf("the dead letter is %s, want pending", got)
	}

	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'sync', '1 hour', 'sync', '{}', now() + interval '1 hour')`, tenantA)
	schedule := url.Values{"tenant": {tenantA.String()}, "name": {"sync"}, "reason": {"why not"}}
	r.as("a").get("schedule-pause?tenant=" + tenantA.String() + "&name=sync").is(200).has("No tick fires any more")
	r.as("b").post("schedule-pause", schedule).is(403)
	r.as("a").confirm("schedule-pause", schedule).is(303)
	r.as("a").get("schedule?name=sync").is(200).has("Paused since")
	r.as("a").post("schedule-run", schedule).is(400).has("once")
	for _, id := range []string{
		"ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "00000000-0000-7000-8000-000000000000",
		"01000000-0000-7000-8000-000000000001", "f0000000-0000-7000-8000-000000000001", strings.Replace(outbox.NewID().String(), "-7", "-4", -1),
	} {
		schedule.Set("once", id)
		r.as("a").post("schedule-run", schedule).is(400).has("is no id that this form had")
	}
	schedule.Set("once", outbox.NewID().String())
	r.as("a").confirm("schedule-run", schedule).is(303)
	schedule.Del("once")
	r.as("a").get("jobs?kind=sync").is(200).has("1 job shown")
	r.as("a").confirm("schedule-resume", schedule).is(303)
	r.as("a").confirm("schedule-delete", schedule).is(303)
	r.as("a").get("schedule?name=sync").is(404)

	r.exec(`INSERT INTO outbox.sinks (sink) VALUES ('nats-eu')`)
	sink := url.Values{"name": {"nats-eu"}, "reason": {"upgrade"}}
	r.as("a").post("sink-pause", sink).is(403)
	r.confirm("sink-pause", sink).is(303)
	r.get("sink?name=nats-eu").is(200).has("paused", "nothing is lost")
	r.confirm("sink-resume", sink).is(303)
	if n := r.audited("sink.pause", "upgrade"); n != 1 {
		t.Errorf("the audit has %d acts, want 1", n)
	}
}

func TestAButtonThatIsOffSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadLetter(tenantA, "k", "c", "m").String()
	r.as("a+jobs.read,admin.read").get("job?id=" + id).is(200).has("Run again… : Needs admin.mutate")
}

// A link to a key names an unblocking of long ago, or none at all. The page does not search the whole audit for it.
func TestTheLinkToAKeyDoesNotSearchTheWholeAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Key: outbox.KeyRules{Name: "acme"}})
	r.exec(`INSERT INTO outbox.audit (at, actor, act, tenant_id, queue, target) SELECT now() - interval '3 hours', 'bulk', 'queue.limit', $1, 'other', 'x' FROM generate_series(1, 5000)`, tenantA)
	page := "key?tenant=" + tenantA.String() + "&queue=default&key=acme&request=long-ago"
	r.get(page).is(200).hasNot("was unblocked")
	r.countStatements(page)
}

// A worker is killed while it runs a job. The page of the job says that it has not been seen.
func TestThePageOfARunningJobSaysWhatIsKnownOfItsWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'gone', lease_expires_at = now() - interval '1 minute', started_at = now() - interval '2 minutes' WHERE id = $1`, id)
	r.get("job?id="+id.String()).is(200).has("How it runs", "lapsed").hasNot("Why it does not run")
}
