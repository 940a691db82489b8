package console_test

import (
	"context"
	"html"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// deadLetter stores a job of the tenant that died of an error, and returns its id.
func (r *rig) deadLetter(tenant outbox.ID, kind, code, message string) outbox.ID {
	r.t.Helper()
	id := r.enqueue(kind, `{}`, outbox.Options{Tenant: tenant, MaxAttempts: 1})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, last_error_code = $2, last_error_message = $3, failed_at = clock_timestamp(),
		error_fingerprint = $4 WHERE id = $1`, id, code, message, code+strconv.Itoa(len(message)))
	return id
}

// A list that was narrowed leads to acts on what it lists, and to nothing more.
func TestAnActOnAGroupKeepsTheConditionsOfTheList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var one outbox.ID
	for _, queue := range []string{"mail", "mail", "other", "other", "other"} {
		one = r.deadLetter(tenantA, "k", "c", "m")
		r.exec(`UPDATE outbox.jobs SET queue = $2 WHERE id = $1`, one, queue)
	}
	linkIn := func(page answer, begin string) string {
		t.Helper()
		source := page.Body.String()
		i := strings.Index(source, `href="`+begin)
		if i < 0 {
			t.Fatalf("no link begins with %s", begin)
		}
		source = source[i+len(`href="`):]
		return html.UnescapeString(source[:strings.IndexByte(source, '"')])
	}
	list := r.get("letters?queue=mail&tenant=" + tenantA.String()).is(200).has("2 in 1 group")
	group := r.get(linkIn(list, "letters?error=")).is(200).has("2 jobs shown", "queue mail", "--queue mail", "--tenant "+tenantA.String())
	for _, act := range []string{"letters-replay?", "letters-dismiss?"} {
		r.get(linkIn(group, act)).is(200).has("2 dead letters", "--queue mail")
	}
	form := r.get("selected-retry?from=letters&id=" + one.String() + "&tenant=" + tenantA.String() + "&error=c1&kind=k&queue=mail").is(200).fieldsOf()
	form.Set("reason", "x")
	if to := r.post("selected-retry", form).is(303).Header().Get("Location"); !strings.Contains(to, "tenant="+tenantA.String()) || !strings.Contains(to, "queue=mail") {
		t.Errorf("an act on selected letters leads to %s, another list", to)
	}
	all := r.get(linkIn(r.get("letters").is(200).has("4 in 1 group"), "letters?error="))
	r.get(linkIn(all, "letters-dismiss?")).is(200).has("4 dead letters")
}

func TestDeadLettersAreGroupedByError(t *testing.T) {
	t.Parallel()
	newRig(t).get("letters").is(200).has("There are no dead letters")
	r := newRig(t)
	for range 3 {
		r.deadLetter(outbox.RootTenant, "receipt.send", "smtp", "connection refused by 192.0.2.7")
	}
	other := r.deadLetter(tenantA, "invoice.render", "panic", "nil map")
	r.get("letters").is(200).has("4 in 2 groups", "connection refused", "nil map")
	r.get("letters?kind=receipt.send").is(200).has("3 in 1 group", "counted ", " s ago").hasNot("nil map", "counted in")
	r.get("letters?error=panic7&kind=invoice.render").is(200).hasNot("counted in")
	r.get("letters?error=panic7&kind=invoice.render").is(200).has("nil map", "1 job").hasNot("connection refused")
	r.as("a").get("letters").is(200).has("nil map").hasNot("connection refused")
	r.as("a").get("letters?error=panic7").is(200).has(other.String()[:8])
	r.as("b").get("letters").is(200).has("There are no dead letters")
	r.as("b").get("letters?error=panic7").is(200).has("None is left").hasNot("nil map")
	r.as("b").get("letters?tenant=" + tenantA.String()).is(403)
	r.get("letters?status=running").is(400).has("neither failed nor dead")
	r.get("letters?before=x").is(400)
	r.get("letters?since=later").is(400)
}

// Viewers share the groups, which say when they were counted. The list of letters is as it is now, and an act in this
// process has them counted anew.
func TestGroupsOfDeadLettersAreSharedUntilSomethingIsDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, who := range []*rig{r, r.as("a")} {
		one := r.deadLetter(tenantA, "k", "c", "m")
		who.get("letters?queue=default").is(200).has("1 in 1 group", "counted")
		who.get("letters?error=c1&kind=k").is(200).has("1 job, from", "1 job shown", "counted")
		r.deadLetter(tenantA, "k", "c", "m")
		who.get("letters?queue=default").is(200).has("1 in 1 group")
		who.get("letters?error=c1&kind=k").is(200).has("1 job, from", "2 jobs shown")
		form := who.get("selected-dismiss?from=letters&error=c1&kind=k&id=" + one.String()).is(200).fieldsOf()
		form.Set("reason", "x")
		who.post("selected-dismiss", form).is(303)
		who.get("letters?queue=default").is(200).has("1 in 1 group")
		who.get("letters?error=c1&kind=k").is(200).has("1 job, from", "1 job shown")
		r.exec(`DELETE FROM outbox.jobs`)
		who.get("letters?error=c1&kind=k").is(200).has("None is left")
		who.post("queue-pause", url.Values{"queue": {"mail"}, "shown": {"on"}, "reason": {"x"}})
	}
	r.as("b").get("letters?queue=default").is(200).has("No dead letter matches")
}

// A filter by how long ago is the same filter for all who use it in the same minute.
func TestGroupsSinceATimeAgoAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, who := range []*rig{r, r.as("a")} {
		for _, of := range []string{"since=2h", "until=1h", "since=2001-02-03T04%3A05%3A06%2B01%3A00"} {
			shared := func(kind string) bool { // whether the second of two readings asks for less
				var asked [2]int
				for i := range asked {
					r.asked.take()
					who.get("letters?kind=" + kind + "&" + of).is(200)
					asked[i] = len(r.asked.take())
				}
				return asked[1] < asked[0]
			}
			// A minute may begin once between two readings, not twice.
			if !shared("a") && !shared("b") {
				t.Errorf("%s: the groups are read for each viewer", of)
			}
		}
	}
}

// There may be no time to read all dead letters for their groups. Those of one error are listed all the same.
func TestLettersAreListedWithoutTheirNumber(t *testing.T) {
	t.Parallel()
	nobody, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nobody.Close)
	r := newRig(t, func(c *console.Config) { c.Watch = watch.New(nobody, watch.Config{}) })
	r.deadLetter(tenantA, "k", "c", "no such host")
	for _, who := range []*rig{r, r.as("a")} {
		who.get("letters?error=c12&kind=k").is(200).has("k dead", "not known yet", "no such host", "1 job shown").hasNot("None is left", "counted")
		if got := who.get("letters").Code; got < 500 {
			t.Errorf("the groups themselves: got %d, want an error", got)
		}
	}
}

func TestALetterListGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range operator.DefaultLimit + 1 {
		r.deadLetter(outbox.RootTenant, "k", "c", "m")
	}
	r.get("letters?error=c1&kind=k").is(200).has("50 jobs shown", "Older")
	letters, err := operator.New(r.db).DeadLetters(t.Context(), operator.DeadLetterFilter{}, outbox.ID{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.get("letters?error=c1&kind=k&before="+letters[49].ID.String()).is(200).has("1 job shown", "Newest")
}

// A colleague replays the group while a person reads its second page. What the page offers then must still be about the
// group, not about all dead letters.
func TestAPageOfAGroupThatIsGoneOffersNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := r.deadLetter(tenantA, "k", "c", "m")
	r.deadLetter(tenantA, "k", "other", "another message")
	for _, who := range []*rig{r, r.as("a")} {
		for _, place := range []string{"", "&before=" + gone.String()} {
			page := who.get("letters?error=c9&kind=k" + place).is(200)
			for _, act := range []string{"letters-replay", "letters-dismiss"} {
				if strings.Contains(page.Body.String(), act) {
					t.Errorf("%s: the page offers %s", place, act)
				}
			}
			if place == "" {
				page.has("None is left")
			} else {
				page.has("No older ones are left", "Newest").hasSource(t, `href="letters?error=c9&amp;kind=k"`)
			}
		}
	}
}

// While it is not known how many letters a group has, its acts are those of the group.
func TestTheActsOfAGroupNameItThoughItIsNotCounted(t *testing.T) {
	t.Parallel()
	nobody, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nobody.Close)
	r := newRig(t, func(c *console.Config) { c.Watch = watch.New(nobody, watch.Config{}) })
	r.deadLetter(tenantA, "k", "c", "m")
	r.get("letters?error=c1&kind=k").is(200).hasSource(t, `href="letters-replay?error=c1&amp;kind=k"`, `href="letters-dismiss?error=c1&amp;kind=k"`)
}

func TestKeysThatHoldJobsUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.get("keys").is(200).has("No key holds jobs up")
	hostile := `a/b?c=%&d "e" ` + evil
	for range 2 {
		r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Key: outbox.KeyRules{Name: hostile}, Tenant: tenantA})
	}
	r.exec(`UPDATE outbox.jobs SET status = 'blocked' WHERE id = (SELECT max(id::text)::uuid FROM outbox.jobs)`)
	r.get("keys").is(200).has(hostile, "mail")
	r.as("b").get("keys").is(200).hasNot("mail")
	key := "key?" + url.Values{"tenant": {tenantA.String()}, "queue": {"mail"}, "key": {hostile}}.Encode()
	r.get(key).is(200).has(hostile, "pending", "blocked", "posthaste keys unblock")
	r.as("a").get(key).is(200)
	r.as("b").get(key).is(403)
	r.get("key?queue=mail&key=none").is(404).has("There is no such key")
	r.get("key?queue=mail").is(400)
	r.get("keys?after_key=x&after_tenant=1").is(400)
}

// A list that a condition, or its place, has emptied does not say that there is nothing at all; and no link drops a
// condition.
func TestAnEmptyListSaysWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, of := range []outbox.ID{tenantA, tenantB} {
		r.deadLetter(of, "k", "c", "m")
		r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'mail', 'k', now())`, of)
	}
	ofA := "tenant=" + tenantA.String()
	for page, want := range map[string]struct{ says, leads string }{
		"keys?queue=other":                 {"No key matches", `href="keys"`},
		"keys?parked=1&queue=other&" + ofA: {"No key matches", `href="keys?queue=other&amp;` + ofA + `"`},
		"keys?parked=1&" + ofA + "&after_tenant=" + tenantB.String() + "&after_queue=z&after_key=z": {"There are no keys behind", `href="keys?parked=1&amp;` + ofA + `"`},
		"letters?kind=other":                           {"No dead letter matches", `href="letters"`},
		"operations?before=" + outbox.NewID().String(): {"There are no older operations", `href="operations"`},
	} {
		r.get(page).is(200).has(want.says).hasNot("holds jobs up", "There are no dead letters", "No operations").hasSource(t, want.leads)
	}
	r.get("keys?parked=1&"+ofA).is(200).has("1 key shown", "tenant "+tenantA.String()).hasSource(t, `href="keys?`+ofA+`"`)
	r.get("keys?"+ofA+"&after_tenant="+tenantA.String()+"&after_queue=a&after_key=a").is(200).hasSource(t, `href="keys" aria-label="Take off tenant `)
}

// The jobs of a key may lie behind more newer jobs than a page reads.
func TestAKeySaysHowFarItsJobsWereSearched(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Key: outbox.KeyRules{Name: "acme"}, Tenant: tenantA})
	page := "key?" + url.Values{"tenant": {tenantA.String()}, "queue": {"mail"}, "key": {"acme"}}.Encode()
	all := `href="jobs?key=acme&amp;queue=mail&amp;tenant=` + tenantA.String() + `"`
	r.get(page).is(200).hasNot("Searched back")
	r.exec(`DELETE FROM outbox.jobs`)
	r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'mail', 'acme', now())`, tenantA)
	r.get(page).is(200).has("No open job has it").hasSource(t, all)
	r.enqueue("k", `{}`, outbox.Options{Queue: "mail", Key: outbox.KeyRules{Name: "acme"}, Tenant: tenantA})
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload) SELECT outbox.uuid_v7(), $1, 'k', 'other', '{}' FROM generate_series(1, 300000)`, tenantA)
	r.get(page).is(200).has("Searched back to", "Search on").hasNot("No open job has it").hasSource(t, `href="jobs?before=`, `&amp;key=acme&amp;queue=mail&amp;tenant=`+tenantA.String())
}

func TestSchedulesShowTheirTicks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.get("schedules").is(200).has("No schedules")
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, expression, time_zone, kind, payload, next_at)
		VALUES ($1, 'weekday-report', '0 7 * * 1-5', 'Europe/Berlin', 'report.build', '{}', now() + interval '1 hour')`, tenantA)
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'sync', '1 hour', 'sync', '{}', now() + interval '1 hour')`, outbox.RootTenant)
	r.get("schedules").is(200).has("weekday-report", "0 7 * * 1-5", "Europe/Berlin", "every 1 h", "on time")
	r.as("a").get("schedules").is(200).has("weekday-report").hasNot("every 1 h")
	r.as("a").get("schedule?name=weekday-report").is(200).has("07:00:00 CE", "posthaste schedules pause weekday-report")
	r.as("b").get("schedule?name=weekday-report").is(404)
	r.as("b").get("schedule?name=weekday-report&tenant=" + tenantA.String()).is(403)
	r.exec(`UPDATE outbox.schedules SET paused_at = now(), next_at = now() - interval '1 day' WHERE name = 'sync'`)
	// What is paused has no next tick, and those of the pause are over.
	r.get("schedule?name=sync").is(200).has("Paused since", "Next ticks, if it were resumed now", "in ").hasNot("1 d ago", " d ago", "23 h ago")
	r.get("schedules").is(200).has("sync default root – –").hasNot("1 d ago")
}

func TestWorkersSinksAndTheAudit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.get("workers").is(200).has("No dispatcher is running")
	r.get("sinks").is(200).has("No sinks")
	r.get("audit").is(200).has("Nobody has done anything yet")
	o := operator.New(r.db).As(operator.Actor{Name: "ada"}).Because("the provider asks")
	if err := o.Pause(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	id := r.evilJob(tenantA)
	r.get("audit").is(200).has("ada", "queue.pause", "mail", "the provider asks", evil)
	r.get("audit?actor=ada").is(200).has("queue.pause").hasNot("job.retry")
	r.get("audit?job=" + id.String()).is(200).has("job.retry").hasNot("queue.pause")
	r.as("a").get("audit").is(200).has("job.retry").hasNot("queue.pause")
	r.as("b").get("audit").is(200).hasNot("job.retry", "queue.pause")
	r.get("audit?act=none").is(200).has("No act matches")
	// From an older page a filter leads to the newest acts, and keeps what else was asked for.
	r.get("audit?queue=mail&before=99").is(200).hasSource(t, `href="audit?actor=ada&amp;queue=mail"`, `href="audit?act=queue.pause&amp;queue=mail"`, `<input type="hidden" name="queue" value="mail">`).hasNot(`name="before"`)
	r.get("audit?before=0").is(400)
	r.as("a").get("workers").is(403)
	r.as("a").get("sinks").is(403)
	r.get("sink?name=none").is(404).has("There is no such sink")
}

// A producer's own INSERT may name a queue as it likes, and people paste commands into a shell.
func TestACommandQuotesTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.jobs (id, kind, payload, queue, key) VALUES (outbox.uuid_v7(), 'k', '', 'a;touch b', 'k')`)
	page := "?" + url.Values{"queue": {"a;touch b"}, "key": {"k"}}.Encode()
	r.get("key" + page).is(200).has("--queue 'a;touch b'")
	r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'a;touch b', 'k', now())`, outbox.RootTenant)
	r.get("key-unblock" + page).is(200).has("--queue 'a;touch b'")
}

// A bridge or an old build has stored dead letters without a fingerprint. Their group leads to them.
func TestAGroupWithoutAFingerprintLeadsToItsLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadLetter(tenantA, "old", "c", "m")
	r.exec(`UPDATE outbox.jobs SET error_fingerprint = NULL WHERE id = $1`, id)
	r.deadLetter(tenantA, "new", "c", "m")
	to := regexp.MustCompile(`class="wrap" href="([^"]+)"`).FindAllStringSubmatch(r.get("letters?kind=old").is(200).Body.String(), -1)
	if len(to) != 1 {
		t.Fatalf("got links %q, want one", to)
	}
	r.get(html.UnescapeString(to[0][1])).is(200).has("1 job shown", id.String()[:8])
}

// A list shows an id in part, and somebody types that into Find: it leads to the job, or to those that may be meant.
func TestAShortenedIDIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.deadLetter(tenantA, "k", "c", "m").String()
	for _, part := range []string{id[:8] + "…" + id[32:], id[:8], id[:13], id[:35], strings.ToUpper(id[:20])} {
		r.leads("find?q="+url.QueryEscape(part), "job?id="+id)
		r.as("a").leads("find?q="+url.QueryEscape(part), "job?id="+id)
		r.as("b").leads("find?q="+url.QueryEscape(part), "jobs?q="+url.QueryEscape("id:"+part))
	}
	other := id[:8] + id[8:30] + "000000" // made in the same minute
	r.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, payload) VALUES ($1, $2, 'other', '{}')`, other, tenantA)
	r.leads("find?q="+url.QueryEscape(id[:8]+"…"+id[32:]), "job?id="+id)
	r.leads("find?q="+id[:8], "jobs?q="+url.QueryEscape("id:"+id[:8]))
	r.leads("jobs?q="+url.QueryEscape("id:"+id[:8]), "jobs?id_prefix="+id[:8])
	r.get("jobs?id_prefix="+id[:8]).is(200).has("2 jobs shown", "other")
	r.leads("jobs?q="+url.QueryEscape("kind:x parent:"+id[:8]+"…"+id[32:]), "jobs?kind=x&parent="+id)
	r.get("jobs?q=" + url.QueryEscape("parent:0bbbbbbb…0000")).is(400).has("shortened id")
	for _, other := range []string{id, "mail", "kind:deadbeef", "0a1b.send"} {
		r.get("find?q=" + url.QueryEscape(other)).is(303)
	}
}

// Dead letters are grouped for all who ask: the look goes on when the person who began it leaves, and so does their
// place, without which a reload after another would begin one look after another.
func TestALookKeepsThePlaceOfItsPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) { c.Timeout = 2 * time.Second })
	cookies := r.cookies()
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs`); err != nil { // the look waits
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer leave()
	req := httptest.NewRequestWithContext(ctx, "GET", "/letters", nil)
	for _, c := range cookies {
		req.AddCookie(c)
	}
	begun := time.Now()
	r.send(req)
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the page gave up its place after %s, while the look went on", took)
	}
}

// leads fails unless the page redirects to that one.
func (r *rig) leads(page, to string) {
	r.t.Helper()
	if got := r.get(page).is(303).Header().Get("Location"); got != to {
		r.t.Errorf("%s as %s leads to %s, want %s", page, r.token, got, to)
	}
}
